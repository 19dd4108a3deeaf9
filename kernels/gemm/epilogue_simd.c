/* Epilogue of a block of C after its last sum, while the block is cached. */
#include "gemm/epilogue.h"
#include "simd/math.h"
#include "simd/simd.h"

/* One row of the epilogue's arrays. NULL for absent terms. */
typedef struct {
    const float *sum;
    const void *gelu_gradient_at, *gate, *residual;
    void *out, *out_before;
    int type, before_type, gate_type, residual_type, gelu;
} epilogue_row;

HC_INLINE const void *at(const void *array, int64_t index, int dtype) HC_STREAMING_OK {
    return array ? (const char *)array + index * (dtype == HC_F32 ? 4 : 2) : 0;
}

HC_INLINE hc_vf finish(const epilogue_row *row, int64_t j, int64_t n, hc_vf v) HC_STREAMING_OK {
    const int rounds = row->type == HC_BF16;
    if (row->out_before) {
        hc_store_as_n(row->out_before, j, n, row->before_type, v);
    }
    if (row->gelu) {
        v = rounds ? hc_gelu_coarse(v) : hc_gelu(v);
    }
    if (row->gelu_gradient_at) {
        const hc_vf x = hc_load_as_n(row->gelu_gradient_at, j, n, row->type);
        v = hc_mul(v, rounds ? hc_gelu_gradient_coarse(x) : hc_gelu_gradient(x));
    }
    if (row->gate) {
        v = hc_mul(v, hc_load_as_n(row->gate, j, n, row->gate_type));
    }
    if (row->residual) {
        v = hc_add(v, hc_load_as_n(row->residual, j, n, row->residual_type));
    }
    return v;
}

/* Prefetch column j of the next row, which is too far for the hardware prefetcher. */
HC_INLINE void prefetch_next_row(const epilogue_row *row, int64_t j, int64_t row_stride) HC_STREAMING_OK {
    const int64_t next = j + row_stride; /* row_stride is 0 in the last row */
    hc_prefetch_to_write(at(row->out, next, row->type));
    if (row->out_before) {
        hc_prefetch_to_write(at(row->out_before, next, row->before_type));
    }
    if (row->gelu_gradient_at) {
        hc_prefetch(at(row->gelu_gradient_at, next, row->type));
    }
    if (row->residual) {
        hc_prefetch(at(row->residual, next, row->residual_type));
    }
}

HC_KERNEL_FUNCTION void HC_NAME(epilogue)(int64_t row, int64_t column, int64_t rows, int64_t columns, const void *sum,
                                          int64_t sum_stride, const hc_matrix *out_c,
                                          const hc_epilogue *epilogue) HC_KERNEL_STREAMING {
    const int64_t lanes = hc_lanes();
    for (int64_t i = 0; i < rows; i++) {
        const int64_t start = (row + i) * out_c->row_stride + column;
        const int64_t gate_start = epilogue->gate ? (row + i) / epilogue->rows_per_gate * epilogue->gate_stride + column : 0;
        const epilogue_row here = {
            .sum = (const float *)sum + i * sum_stride,
            .gelu_gradient_at = at(epilogue->gelu_gradient_at, start, out_c->dtype),
            .gate = at(epilogue->gate, gate_start, epilogue->gate_type),
            .residual = at(epilogue->residual, start, epilogue->residual_type),
            .out = (void *)at(out_c->data, start, out_c->dtype),
            .out_before = (void *)at(epilogue->out_before, start, epilogue->before_type),
            .type = out_c->dtype,
            .before_type = epilogue->before_type,
            .gate_type = epilogue->gate_type,
            .residual_type = epilogue->residual_type,
            .gelu = epilogue->gelu,
        };
        int64_t j = 0;
        for (; j + lanes <= columns; j += lanes) {
            prefetch_next_row(&here, j, i + 1 < rows ? out_c->row_stride : 0);
            hc_store_as(here.out, j, here.type, finish(&here, j, lanes, hc_load(here.sum + j)));
        }
        if (j < columns) {
            const int64_t n = columns - j;
            hc_store_as_n(here.out, j, n, here.type, finish(&here, j, n, hc_load_n(here.sum + j, n)));
        }
    }
}
