/* Products that pass over one large matrix once and compute little with it: of few rows, or of little depth. Nothing is
 * packed. */
#ifndef HC_FEW_ROWS_H
#define HC_FEW_ROWS_H

#include <stdint.h>

#include "hcops.h"

/* How elements of B become operands. */
typedef enum { HC_B_F32 = 0, HC_B_BF16 = 1, HC_B_F32_ROUNDED = 2 /* to bf16 */ } hc_b_kind;

/* c = A B, added to c with `add`. */
typedef struct {
    int64_t m, n, k;
    const float *a; /* m rows of k elements */
    int64_t a_stride, a_step; /* elements from row to row, and from depth to depth: 1 for dots */
    const void *b; /* lines, b_stride elements apart */
    int64_t b_stride;
    hc_b_kind b_kind;
    float *c; /* rows of n elements, c_stride apart */
    int64_t c_stride;
    int add;
    /* few_depths: rows of c are stored without caching, four vectors at a time; they start at multiples of one */
    int stream;
} hc_few_rows;

typedef void hc_few_rows_kernel(const hc_few_rows *x);

/* Each element is summed in an order that depends on k and on the instruction set alone.
 * dots: the lines of B are its columns; an element of C is a dot product of a row of A and a line.
 * sums: the lines of B are its rows; to each row of C are added multiples of them.
 * depths: the same lines, of which there are so few that they stay in cache while C is written once. */
typedef hc_few_rows_kernel hc_few_rows_dots_kernel, hc_few_rows_sums_kernel, hc_few_depths_kernel;

extern hc_few_rows_kernel hc_few_rows_dots_ref, hc_few_rows_dots_avx2, hc_few_rows_dots_avx512, hc_few_rows_dots_neon,
    hc_few_rows_dots_sve, hc_few_rows_dots_sme;
extern hc_few_rows_kernel hc_few_rows_sums_ref, hc_few_rows_sums_avx2, hc_few_rows_sums_avx512, hc_few_rows_sums_neon,
    hc_few_rows_sums_sve, hc_few_rows_sums_sme;
extern hc_few_rows_kernel hc_few_depths_ref, hc_few_depths_avx2, hc_few_depths_avx512, hc_few_depths_neon, hc_few_depths_sve,
    hc_few_depths_sme;

#endif
