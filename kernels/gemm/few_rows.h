/* Products with few rows or small depth. They read one large matrix once, with few operations per element, and without
 * packing. */
#ifndef HC_FEW_ROWS_H
#define HC_FEW_ROWS_H

#include <stdint.h>

#include "hcops.h"

/* Conversion of elements of B to operands. */
typedef enum { HC_B_F32 = 0, HC_B_BF16 = 1, HC_B_F32_ROUNDED = 2 /* rounded to bf16 */ } hc_b_kind;

/* c = A B, or c += A B if `add` is set. */
typedef struct {
    int64_t m, n, k;
    const float *a; /* m rows of k elements */
    int64_t a_stride, a_step; /* distance of rows, and of steps of k: 1 for dots */
    const void *b; /* lines, at a distance of b_stride elements */
    int64_t b_stride;
    hc_b_kind b_kind;
    float *c; /* rows of n elements, at a distance of c_stride */
    int64_t c_stride;
    int add;
    /* few_depths: store c with non-temporal stores, four vectors at a time; rows start at multiples of a vector */
    int stream;
} hc_few_rows;

typedef void hc_few_rows_kernel(const hc_few_rows *x);

/* Each element is summed in an order that depends only on k and the instruction set.
 * dots: the lines of B are its columns. An element of C is the dot product of a row of A and a line.
 * sums: the lines of B are its rows. Multiples of them are added to each row of C.
 * depths: the lines of B are its rows, few enough to stay cached while C is written once. */
typedef hc_few_rows_kernel hc_few_rows_dots_kernel, hc_few_rows_sums_kernel, hc_few_depths_kernel;

extern hc_few_rows_kernel hc_few_rows_dots_ref, hc_few_rows_dots_avx2, hc_few_rows_dots_avx512, hc_few_rows_dots_neon,
    hc_few_rows_dots_sve, hc_few_rows_dots_sme;
extern hc_few_rows_kernel hc_few_rows_sums_ref, hc_few_rows_sums_avx2, hc_few_rows_sums_avx512, hc_few_rows_sums_neon,
    hc_few_rows_sums_sve, hc_few_rows_sums_sme;
extern hc_few_rows_kernel hc_few_depths_ref, hc_few_depths_avx2, hc_few_depths_avx512, hc_few_depths_neon, hc_few_depths_sve,
    hc_few_depths_sme;

#endif
