/* adaLN: LayerNorm without weights, scaled and shifted by the condition, and its gradients.
 *
 * D columns; xh = (x - mean) rstd; forward out = xh (1 + scale) + shift. Backward, with g = dout (1 + scale):
 * dx = rstd (g - sum(g) / D - xh sum(g xh) / D), dshift = sum over rows of dout, dscale = sum over rows of dout xh. */
#include <math.h>
#include <stddef.h>

#include "norm/norm.h"
#include "norm/rows.h"
#include "simd/simd.h"

typedef struct {
    float mean, error, rstd; /* the mean is mean + error: together exact to more than fp32 */
} row_statistics;

/* Where the next row to be visited starts is asked for while this one is computed: the caches' own prefetchers stop at the end of a row,
 * and without it the memory idles while a row is in its second and third pass. */
HC_INLINE void ask_for_(const void *x, int64_t i, int type) HC_STREAMING_OK {
    hc_prefetch((const char *)x + i * (type == HC_F32 ? 4 : 2));
}

/* Two passes over a row that the first one brought into the cache. The second also sums x - mean, which is not zero where the mean was
 * rounded: it corrects mean and variance for rows far from zero. Four chains of additions, because each waits for its last. */
HC_INLINE row_statistics statistics_(const void *x, int64_t start, int64_t next, int64_t columns, int type,
                                     float eps) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes();
    const float inverse = 1.0f / (float)columns;
    hc_vf a = hc_zero(), b = a, c = a, d = a;
    int64_t i = 0;
    for (; i + 4 * lanes <= columns; i += 4 * lanes) {
        a = hc_add(a, hc_load_as(x, start + i, type));
        b = hc_add(b, hc_load_as(x, start + i + lanes, type));
        c = hc_add(c, hc_load_as(x, start + i + 2 * lanes, type));
        d = hc_add(d, hc_load_as(x, start + i + 3 * lanes, type));
    }
    for (; i < columns; i += lanes) {
        const int64_t n = columns - i < lanes ? columns - i : lanes;
        a = hc_add(a, hc_load_some(x, start + i, n, n == lanes, type));
    }
    const float mean = hc_sum(hc_add(hc_add(a, b), hc_add(c, d))) * inverse;
    const hc_vf center = hc_set(mean);
    a = b = c = d = hc_zero(); /* a, b: sums of x - mean; c, d: of its squares */
    for (i = 0; i + 2 * lanes <= columns; i += 2 * lanes) {
        ask_for_(x, next + i, type);
        ask_for_(x, next + i + lanes, type);
        const hc_vf v = hc_sub(hc_load_as(x, start + i, type), center);
        const hc_vf w = hc_sub(hc_load_as(x, start + i + lanes, type), center);
        a = hc_add(a, v);
        b = hc_add(b, w);
        c = hc_fma(v, v, c);
        d = hc_fma(w, w, d);
    }
    for (; i < columns; i += lanes) {
        const int64_t n = columns - i < lanes ? columns - i : lanes;
        const hc_vf all = hc_sub(hc_load_some(x, start + i, n, n == lanes, type), center);
        const hc_vf v = n == lanes ? all : hc_select(hc_first(n), all, hc_zero());
        a = hc_add(a, v);
        c = hc_fma(v, v, c);
    }
    const float error = hc_sum(hc_add(a, b)) * inverse;
    const float variance = hc_sum(hc_add(c, d)) * inverse - error * error;
    return (row_statistics){mean, error, 1.0f / sqrtf((variance < 0.0f ? 0.0f : variance) + eps)};
}

HC_INLINE void forward_vector_(const hc_adaln_forward_block *b, int64_t start, row_statistics s, int64_t i, int64_t n, int whole,
                               int pass_caches) HC_STREAMING_OK {
    const hc_vf factor = hc_add(hc_set(1.0f), hc_load_some(b->scale, i, n, whole, b->condition_type));
    const hc_vf shift = hc_load_some(b->shift, i, n, whole, b->condition_type);
    const hc_vf x = hc_load_some(b->x, start + i, n, whole, b->x_type);
    const hc_vf normal = hc_fma(hc_sub(x, hc_set(s.mean)), hc_set(s.rstd), hc_set(-s.error * s.rstd));
    hc_store_some(b->out, start + i, n, whole, pass_caches, b->out_type, hc_fma(normal, factor, shift));
}

/* Row number `visit` in the order of visits. */
HC_INLINE int64_t row_of_(int64_t visit, int64_t quarter) HC_STREAMING_OK {
    return visit % HC_ROWS_AT_ONCE * quarter + visit / HC_ROWS_AT_ONCE;
}

HC_KERNEL_FUNCTION void HC_NAME(adaln_forward)(const hc_adaln_forward_block *block) HC_KERNEL_STREAMING {
    const hc_adaln_forward_block b = *block;
    const int64_t lanes = hc_lanes(), quarter = (b.rows + HC_ROWS_AT_ONCE - 1) / HC_ROWS_AT_ONCE;
    const int pass_caches = b.pass_caches && hc_rows_aligned(b.out, b.columns, b.out_type);
    for (int64_t visit = 0; visit < HC_ROWS_AT_ONCE * quarter; visit++) {
        const int64_t row = row_of_(visit, quarter), start = row * b.columns;
        if (row >= b.rows) {
            continue;
        }
        const int64_t next = row_of_(visit + 1, quarter) * b.columns;
        const row_statistics s = statistics_(b.x, start, next, b.columns, b.x_type, b.eps);
        int64_t i = 0;
        for (; i + lanes <= b.columns; i += lanes) {
            forward_vector_(&b, start, s, i, lanes, 1, pass_caches);
        }
        if (i < b.columns) {
            forward_vector_(&b, start, s, i, b.columns - i, 0, 0);
        }
        b.out_mean[row] = s.mean + s.error;
        b.out_rstd[row] = s.rstd;
    }
    hc_stream_end();
}

/* Up to four rows that are worked on together: where they start, their statistics, and for dx = dout (1 + scale) rstd - constant -
 * (x - mean) slope what the sums over their columns give. */
typedef struct {
    int64_t start[HC_ROWS_AT_ONCE];
    float mean[HC_ROWS_AT_ONCE], rstd[HC_ROWS_AT_ONCE];
    float constant[HC_ROWS_AT_ONCE], slope[HC_ROWS_AT_ONCE];
} row_group;

/* A vector of columns. */
typedef struct {
    int64_t i, n;
    int whole;
} place;

HC_INLINE hc_vf dout_(const hc_adaln_backward_block *b, const row_group *r, place at, int row) HC_STREAMING_OK {
    return hc_load_some(b->dout, r->start[row] + at.i, at.n, at.whole, b->dout_type);
}

HC_INLINE hc_vf centered_(const hc_adaln_backward_block *b, const row_group *r, place at, int row) HC_STREAMING_OK {
    return hc_sub(hc_load_some(b->x, r->start[row] + at.i, at.n, at.whole, b->x_type), hc_set(r->mean[row]));
}

HC_INLINE hc_vf factor_(const hc_adaln_backward_block *b, place at) HC_STREAMING_OK {
    return hc_add(hc_set(1.0f), hc_load_some(b->scale, at.i, at.n, at.whole, b->condition_type));
}

/* A vector of dx of each row of a group whose sums are known. */
HC_INLINE void store_vectors_(const hc_adaln_backward_block *b, const row_group *r, int rows, place at, hc_vf factor,
                              int pass_caches) HC_STREAMING_OK {
    for (int row = 0; row < rows; row++) {
        const hc_vf from_g = hc_fma(hc_mul(dout_(b, r, at, row), factor), hc_set(r->rstd[row]), hc_set(-r->constant[row]));
        const hc_vf dx = hc_fnma(centered_(b, r, at, row), hc_set(r->slope[row]), from_g);
        hc_store_some(b->out_dx, r->start[row] + at.i, at.n, at.whole, pass_caches, b->dx_type, dx);
    }
}

/* Adds one row's part of a vector to the sums of its columns (dshift, dscale) and of the row (g, gx). Lanes past the end of the row add
 * nothing: dout is 0 there. */
#define ADD_ROW(row, g_sum, gx_sum)                                                                                        \
    do {                                                                                                                   \
        const hc_vf dout = dout_(b, r, at, row), xh = hc_mul(centered_(b, r, at, row), hc_set(r->rstd[row]));              \
        const hc_vf g = hc_mul(dout, factor);                                                                              \
        dshift = hc_add(dshift, dout);                                                                                     \
        dscale = hc_fma(dout, xh, dscale);                                                                                 \
        g_sum = hc_add(g_sum, g);                                                                                          \
        gx_sum = hc_fma(g, xh, gx_sum);                                                                                    \
    } while (0)

HC_INLINE void keep_sums_(const hc_adaln_backward_block *b, row_group *r, int row, hc_vf g, hc_vf gx) HC_STREAMING_OK {
    const float rstd = r->rstd[row], columns = (float)b->columns;
    r->constant[row] = rstd * (hc_sum(g) / columns);
    r->slope[row] = rstd * rstd * (hc_sum(gx) / columns);
}

/* Sums of `rows` (1 or 4, constant) rows: to the columns' in memory (first: there are none yet), and to the group's. `before`: NULL, or
 * the group before, whose dx is stored on the way. So memory is read all the time, and not only in every second pass. */
HC_INLINE void add_group_(const hc_adaln_backward_block *b, row_group *r, const row_group *before, int rows, int first,
                          int pass_caches) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes();
    hc_vf g0 = hc_zero(), g1 = g0, g2 = g0, g3 = g0, gx0 = g0, gx1 = g0, gx2 = g0, gx3 = g0;
    for (int64_t i = 0; i < b->columns; i += lanes) {
        const int64_t n = b->columns - i < lanes ? b->columns - i : lanes;
        const place at = {i, n, n == lanes};
        const hc_vf factor = factor_(b, at);
        hc_vf dshift = first ? hc_zero() : hc_load_some(b->out_dshift, i, n, at.whole, HC_F32);
        hc_vf dscale = first ? hc_zero() : hc_load_some(b->out_dscale, i, n, at.whole, HC_F32);
        ADD_ROW(0, g0, gx0);
        if (rows == HC_ROWS_AT_ONCE) {
            ADD_ROW(1, g1, gx1);
            ADD_ROW(2, g2, gx2);
            ADD_ROW(3, g3, gx3);
        }
        hc_store_some(b->out_dshift, i, n, at.whole, 0, HC_F32, dshift);
        hc_store_some(b->out_dscale, i, n, at.whole, 0, HC_F32, dscale);
        if (before != NULL) {
            store_vectors_(b, before, rows, at, factor, pass_caches);
        }
    }
    keep_sums_(b, r, 0, g0, gx0);
    if (rows == HC_ROWS_AT_ONCE) {
        keep_sums_(b, r, 1, g1, gx1);
        keep_sums_(b, r, 2, g2, gx2);
        keep_sums_(b, r, 3, g3, gx3);
    }
}

HC_INLINE void store_group_(const hc_adaln_backward_block *b, const row_group *r, int rows, int pass_caches) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes();
    for (int64_t i = 0; i < b->columns; i += lanes) {
        const int64_t n = b->columns - i < lanes ? b->columns - i : lanes;
        const place at = {i, n, n == lanes};
        store_vectors_(b, r, rows, at, factor_(b, at), pass_caches);
    }
}

/* The rows `row`, `row` + step, ... */
HC_INLINE row_group group_of_(const hc_adaln_backward_block *b, int64_t row, int64_t step, int rows) HC_STREAMING_OK {
    row_group group = {{0}, {0.0f}, {0.0f}, {0.0f}, {0.0f}};
    for (int i = 0; i < rows; i++) {
        group.start[i] = (row + i * step) * b->columns;
        group.mean[i] = b->mean[row + i * step];
        group.rstd[i] = b->rstd[row + i * step];
    }
    return group;
}

HC_KERNEL_FUNCTION void HC_NAME(adaln_backward)(const hc_adaln_backward_block *block) HC_KERNEL_STREAMING {
    const hc_adaln_backward_block b = *block;
    const int64_t quarter = b.rows / HC_ROWS_AT_ONCE;
    const int pass_caches = b.pass_caches && hc_rows_aligned(b.out_dx, b.columns, b.dx_type);
    if (quarter > 0) {
        row_group before = group_of_(&b, 0, quarter, HC_ROWS_AT_ONCE);
        add_group_(&b, &before, NULL, HC_ROWS_AT_ONCE, 1, 0);
        for (int64_t i = 1; i < quarter; i++) {
            row_group group = group_of_(&b, i, quarter, HC_ROWS_AT_ONCE);
            add_group_(&b, &group, &before, HC_ROWS_AT_ONCE, 0, pass_caches);
            before = group;
        }
        store_group_(&b, &before, HC_ROWS_AT_ONCE, pass_caches);
    }
    for (int64_t row = HC_ROWS_AT_ONCE * quarter; row < b.rows; row++) {
        row_group alone = group_of_(&b, row, 0, 1);
        add_group_(&b, &alone, NULL, 1, row == 0, 0);
        store_group_(&b, &alone, 1, pass_caches);
    }
    hc_stream_end();
}

HC_KERNEL_FUNCTION void HC_NAME(add_blocks)(int64_t blocks, int64_t stride, int64_t count, const float *sums, void *out,
                                            int out_type) HC_KERNEL_STREAMING {
    const int64_t lanes = hc_lanes();
    for (int64_t i = 0; i < count; i += lanes) {
        const int64_t n = count - i < lanes ? count - i : lanes;
        hc_vf sum = hc_zero();
        for (int64_t block = 0; block < blocks; block++) {
            sum = hc_add(sum, hc_load_some(sums, block * stride + i, n, n == lanes, HC_F32));
        }
        hc_store_some(out, i, n, n == lanes, 0, out_type, sum);
    }
}
