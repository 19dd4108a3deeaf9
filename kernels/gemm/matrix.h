/* Addresses of matrix elements, and arithmetic of lengths. */
#ifndef HC_GEMM_MATRIX_H
#define HC_GEMM_MATRIX_H

#include <stdint.h>

#include "hcops.h"
#include "minmax.h"

static inline int64_t hc_round_up(int64_t count, int64_t multiple) {
    return (count + multiple - 1) / multiple * multiple;
}

static inline int64_t hc_size_of(int dtype) {
    return dtype == HC_F64 ? 8 : dtype == HC_F32 ? 4 : 2;
}

static inline void *hc_element(const hc_matrix *x, int64_t row, int64_t column) {
    return (char *)x->data + (row * x->row_stride + column * x->column_stride) * hc_size_of(x->dtype);
}

static inline hc_matrix hc_from(const hc_matrix *x, int64_t row, int64_t column) {
    hc_matrix part = *x;
    part.data = hc_element(x, row, column);
    return part;
}

/* Return the number of rows that determines the order of summation. */
static inline int64_t hc_order_rows(const hc_gemm_arguments *x) {
    return x->rows_like > 0 ? x->rows_like : x->m;
}

#endif
