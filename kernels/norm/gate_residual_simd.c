/* Gate + residual: out = x + gate y. Gradients: dy = gate dout, dgate = sum over rows of dout y. */
#include "norm/norm.h"
#include "norm/rows.h"
#include "simd/simd.h"

typedef struct {
    int64_t start, i, n; /* start of the row, index of the vector, elements in it */
    int full, pass_caches;
} place;

HC_INLINE void forward_(const hc_gate_residual_forward_block *b, place at) HC_STREAMING_OK {
    const hc_vf gate = hc_load_some(b->gate, at.i, at.n, at.full, b->gate_type);
    const hc_vf x = hc_load_some(b->x, at.start + at.i, at.n, at.full, b->x_type);
    const hc_vf y = hc_load_some(b->y, at.start + at.i, at.n, at.full, b->y_type);
    hc_store_some(b->out, at.start + at.i, at.n, at.full, at.pass_caches, b->out_type, hc_fma(gate, y, x));
}

HC_KERNEL_FUNCTION void HC_NAME(gate_residual_forward)(const hc_gate_residual_forward_block *block) HC_KERNEL_STREAMING {
    const hc_gate_residual_forward_block b = *block;
    const int64_t lanes = hc_lanes(), quarter = (b.rows + HC_ROWS_AT_ONCE - 1) / HC_ROWS_AT_ONCE;
    const int pass_caches = b.pass_caches && hc_rows_aligned(b.out, b.columns, b.out_type);
    for (int64_t visit = 0; visit < HC_ROWS_AT_ONCE * quarter; visit++) {
        const int64_t row = visit % HC_ROWS_AT_ONCE * quarter + visit / HC_ROWS_AT_ONCE, start = row * b.columns;
        if (row >= b.rows) {
            continue;
        }
        int64_t i = 0;
        for (; i + lanes <= b.columns; i += lanes) {
            forward_(&b, (place){start, i, lanes, 1, pass_caches});
        }
        if (i < b.columns) {
            forward_(&b, (place){start, i, b.columns - i, 0, 0});
        }
    }
    hc_stream_end();
}

/* Compute dy of a vector of one row. Return dgate plus the contribution of the row. */
HC_INLINE hc_vf backward_(const hc_gate_residual_backward_block *b, place at, hc_vf gate, hc_vf dgate) HC_STREAMING_OK {
    const hc_vf dout = hc_load_some(b->dout, at.start + at.i, at.n, at.full, b->dout_type);
    const hc_vf y = hc_load_some(b->y, at.start + at.i, at.n, at.full, b->y_type);
    hc_store_some(b->out_dy, at.start + at.i, at.n, at.full, at.pass_caches, b->dy_type, hc_mul(gate, dout));
    return hc_fma(dout, y, dgate);
}

/* Process `rows` (1 or 4, constant) rows from `start`, with a distance of `step` elements. */
HC_INLINE void group_(const hc_gate_residual_backward_block *b, int64_t start, int64_t step, int rows, int first,
                      int pass_caches) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes();
    for (int64_t i = 0; i < b->columns; i += lanes) {
        const int64_t n = b->columns - i < lanes ? b->columns - i : lanes;
        const int full = n == lanes;
        const hc_vf gate = hc_load_some(b->gate, i, n, full, b->gate_type);
        hc_vf dgate = first ? hc_zero() : hc_load_some(b->out_dgate, i, n, full, HC_F32);
        for (int row = 0; row < rows; row++) {
            dgate = backward_(b, (place){start + row * step, i, n, full, pass_caches}, gate, dgate);
        }
        hc_store_some(b->out_dgate, i, n, full, 0, HC_F32, dgate);
    }
}

HC_KERNEL_FUNCTION void HC_NAME(gate_residual_backward)(const hc_gate_residual_backward_block *block) HC_KERNEL_STREAMING {
    const hc_gate_residual_backward_block b = *block;
    const int64_t quarter = b.rows / HC_ROWS_AT_ONCE;
    const int pass_caches = b.pass_caches && hc_rows_aligned(b.out_dy, b.columns, b.dy_type);
    for (int64_t i = 0; i < quarter; i++) {
        group_(&b, i * b.columns, quarter * b.columns, HC_ROWS_AT_ONCE, i == 0, pass_caches);
    }
    for (int64_t row = HC_ROWS_AT_ONCE * quarter; row < b.rows; row++) {
        group_(&b, row * b.columns, 0, 1, row == 0, pass_caches);
    }
    hc_stream_end();
}
