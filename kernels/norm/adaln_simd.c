/* adaLN: LayerNorm or RMSNorm without weights, scaled and shifted by the condition, and its gradients.
 *
 * D columns; xh = (x - mean) rstd; forward out = xh (1 + scale) + shift. Backward, with g = dout (1 + scale): dx = rstd
 * (g - sum(g) / D - xh sum(g xh) / D), dshift = sum over rows of dout, dscale = sum over rows of dout xh. RMSNorm has
 * mean = 0, and no term sum(g), which is the derivative of the mean. */
#include <float.h>
#include <math.h>

#include "norm/norm.h"
#include "norm/rows.h"
#include "simd/simd.h"

typedef struct {
    float mean, error, rstd; /* the mean is mean + error, with more than fp32 precision */
} row_statistics;

/* Prefetch the next row during the second pass over the current row, because memory would idle while a cached row is
 * computed. Out of cache on two cores, D = 1152: 59% of the bandwidth of a copy without prefetches, 71 to 75% with
 * them. */
HC_INLINE void prefetch_(const void *x, int64_t i, int type) HC_STREAMING_OK {
    hc_prefetch((const char *)x + i * (type == HC_F32 ? 4 : 2));
}

/* Return the statistics of a row in two passes. The first pass loads the row into the cache. The second pass also sums
 * x - mean, which is not zero if the mean was rounded. This corrects mean and variance for rows far from zero. Four
 * chains of additions hide their latency. */
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
    a = b = c = d = hc_zero(); /* a, b: sums of x - mean; c, d: sums of squares */
    for (i = 0; i + 2 * lanes <= columns; i += 2 * lanes) {
        prefetch_(x, next + i, type);
        prefetch_(x, next + i + lanes, type);
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
    if (!(variance <= FLT_MAX)) {
        return (row_statistics){mean, error, NAN}; /* nan, because 1 / sqrt(inf) = 0 would hide the overflow */
    }
    return (row_statistics){mean, error, 1.0f / sqrtf((variance < 0.0f ? 0.0f : variance) + eps)};
}

/* Return the statistics of a row for RMSNorm, in one pass with four chains of additions. The next row is not
 * prefetched. The pass over this row would wait for both rows, and the second pass does not access memory either (fp32,
 * out of cache, D = 1152, one core: 5 to 15% slower with prefetches). */
HC_INLINE row_statistics mean_square_(const void *x, int64_t start, int64_t columns, int type, float eps) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes();
    hc_vf a = hc_zero(), b = a, c = a, d = a;
    int64_t i = 0;
    for (; i + 4 * lanes <= columns; i += 4 * lanes) {
        const hc_vf v = hc_load_as(x, start + i, type), w = hc_load_as(x, start + i + lanes, type);
        const hc_vf y = hc_load_as(x, start + i + 2 * lanes, type), z = hc_load_as(x, start + i + 3 * lanes, type);
        a = hc_fma(v, v, a);
        b = hc_fma(w, w, b);
        c = hc_fma(y, y, c);
        d = hc_fma(z, z, d);
    }
    for (; i < columns; i += lanes) {
        const int64_t n = columns - i < lanes ? columns - i : lanes;
        const hc_vf v = hc_load_some(x, start + i, n, n == lanes, type);
        a = hc_fma(v, v, a);
    }
    const float square = hc_sum(hc_add(hc_add(a, b), hc_add(c, d))) * (1.0f / (float)columns);
    return (row_statistics){0.0f, 0.0f, 1.0f / sqrtf(square + eps)};
}

HC_INLINE void forward_vector_(const hc_adaln_forward_block *b, int64_t start, row_statistics s, int64_t i, int64_t n,
                               int full, int pass_caches) HC_STREAMING_OK {
    const hc_vf factor = hc_add(hc_set(b->offset), hc_load_some(b->scale, i, n, full, b->condition_type));
    const hc_vf shift = hc_load_some(b->shift, i, n, full, b->condition_type);
    const hc_vf x = hc_load_some(b->x, start + i, n, full, b->x_type);
    const hc_vf normal = hc_fma(hc_sub(x, hc_set(s.mean)), hc_set(s.rstd), hc_set(-s.error * s.rstd));
    hc_store_some(b->out, start + i, n, full, pass_caches, b->out_type, hc_fma(normal, factor, shift));
}

/* Return the row at position `visit` of the order of visits. */
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
        const row_statistics s = b.out_mean == NULL ? mean_square_(b.x, start, b.columns, b.x_type, b.eps)
                                                    : statistics_(b.x, start, next, b.columns, b.x_type, b.eps);
        int64_t i = 0;
        for (; i + lanes <= b.columns; i += lanes) {
            forward_vector_(&b, start, s, i, lanes, 1, pass_caches);
        }
        if (i < b.columns) {
            forward_vector_(&b, start, s, i, b.columns - i, 0, 0);
        }
        if (b.out_mean != NULL) {
            b.out_mean[row] = s.mean + s.error;
        }
        b.out_rstd[row] = s.rstd;
    }
    hc_stream_end();
}

/* Four rows: their starts, their statistics, and the sums of g and g xh over their columns. */
typedef struct {
    int64_t start[HC_ROWS_AT_ONCE];
    float mean[HC_ROWS_AT_ONCE], rstd[HC_ROWS_AT_ONCE];
    float mean_g[HC_ROWS_AT_ONCE], mean_g_xh[HC_ROWS_AT_ONCE];
} row_group;

typedef struct {
    const hc_adaln_backward_block *b;
    const row_group *r;
    int64_t i, n;
    int full;
} place;

HC_INLINE hc_vf dout_(place at, int row) HC_STREAMING_OK {
    return hc_load_some(at.b->dout, at.r->start[row] + at.i, at.n, at.full, at.b->dout_type);
}

HC_INLINE hc_vf xh_(place at, int row) HC_STREAMING_OK {
    const hc_vf x = hc_load_some(at.b->x, at.r->start[row] + at.i, at.n, at.full, at.b->x_type);
    return hc_mul(hc_sub(x, hc_set(at.r->mean[row])), hc_set(at.r->rstd[row]));
}

/* Add one row's part of a vector to the sums of its columns (dshift, dscale) and of the row (g, gx). Lanes after the
 * end of the row add 0, because dout is 0 there. */
#define ADD_ROW(row, g_sum, gx_sum)                                                                                        \
    do {                                                                                                                   \
        const hc_vf dout = dout_(at, row), xh = xh_(at, row);                                                              \
        const hc_vf g = hc_mul(dout, factor);                                                                              \
        dshift = hc_add(dshift, dout);                                                                                     \
        dscale = hc_fma(dout, xh, dscale);                                                                                 \
        g_sum = hc_add(g_sum, g);                                                                                          \
        gx_sum = hc_fma(g, xh, gx_sum);                                                                                    \
    } while (0)

/* Add `rows` (1 or 4, constant) rows to the column sums in memory and to the sums of the group. */
HC_INLINE void add_group_(const hc_adaln_backward_block *b, row_group *r, int rows, int first) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes();
    hc_vf g0 = hc_zero(), g1 = g0, g2 = g0, g3 = g0, gx0 = g0, gx1 = g0, gx2 = g0, gx3 = g0;
    for (int64_t i = 0; i < b->columns; i += lanes) {
        const int64_t n = b->columns - i < lanes ? b->columns - i : lanes;
        const place at = {b, r, i, n, n == lanes};
        const hc_vf factor = hc_add(hc_set(b->offset), hc_load_some(b->scale, i, n, at.full, b->condition_type));
        hc_vf dshift = first ? hc_zero() : hc_load_some(b->out_dshift, i, n, at.full, HC_F32);
        hc_vf dscale = first ? hc_zero() : hc_load_some(b->out_dscale, i, n, at.full, HC_F32);
        ADD_ROW(0, g0, gx0);
        if (rows == HC_ROWS_AT_ONCE) {
            ADD_ROW(1, g1, gx1);
            ADD_ROW(2, g2, gx2);
            ADD_ROW(3, g3, gx3);
        }
        hc_store_some(b->out_dshift, i, n, at.full, 0, HC_F32, dshift);
        hc_store_some(b->out_dscale, i, n, at.full, 0, HC_F32, dscale);
    }
    const float inverse = 1.0f / (float)b->columns, of_mean = b->mean == NULL ? 0.0f : inverse;
    r->mean_g[0] = hc_sum(g0) * of_mean;
    r->mean_g[1] = hc_sum(g1) * of_mean;
    r->mean_g[2] = hc_sum(g2) * of_mean;
    r->mean_g[3] = hc_sum(g3) * of_mean;
    r->mean_g_xh[0] = hc_sum(gx0) * inverse;
    r->mean_g_xh[1] = hc_sum(gx1) * inverse;
    r->mean_g_xh[2] = hc_sum(gx2) * inverse;
    r->mean_g_xh[3] = hc_sum(gx3) * inverse;
}

/* Compute dx of one row of the group, which is cached. Prefetch the row after it, of the next group. Storing dx during
 * the sums of the next group was 5 to 10% slower in cache, and slower out of cache at D = 384 and 1152. */
HC_INLINE void store_row_(const hc_adaln_backward_block *b, const row_group *r, int row, int pass_caches) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes();
    const float rstd_value = r->rstd[row];
    const hc_vf rstd = hc_set(rstd_value), mean = hc_set(r->mean[row]);
    const hc_vf constant = hc_set(rstd_value * r->mean_g[row]), slope = hc_set(rstd_value * rstd_value * r->mean_g_xh[row]);
    for (int64_t i = 0; i < b->columns; i += lanes) {
        const int64_t n = b->columns - i < lanes ? b->columns - i : lanes;
        const place at = {b, r, i, n, n == lanes};
        const int64_t next = r->start[row] + b->columns + i;
        hc_prefetch_far((const char *)b->dout + next * (b->dout_type == HC_F32 ? 4 : 2));
        hc_prefetch_far((const char *)b->x + next * (b->x_type == HC_F32 ? 4 : 2));
        const hc_vf factor = hc_add(hc_set(b->offset), hc_load_some(b->scale, i, n, at.full, b->condition_type));
        const hc_vf x = hc_load_some(b->x, r->start[row] + i, n, at.full, b->x_type);
        const hc_vf from_g = hc_sub(hc_mul(dout_(at, row), hc_mul(factor, rstd)), constant);
        hc_vf dx = hc_fnma(hc_sub(x, mean), slope, from_g);
        if (b->dstream) {
            dx = hc_add(dx, hc_load_some(b->dstream, r->start[row] + i, n, at.full, b->dstream_type));
        }
        hc_store_some(b->out_dx, r->start[row] + i, n, at.full, pass_caches, b->dx_type, dx);
    }
}

HC_INLINE void backward_group_(const hc_adaln_backward_block *b, int64_t row, int64_t step, int rows, int first,
                               int pass_caches) HC_STREAMING_OK {
    row_group group;
    for (int i = 0; i < rows; i++) {
        group.start[i] = (row + i * step) * b->columns;
        group.mean[i] = b->mean == NULL ? 0.0f : b->mean[row + i * step];
        group.rstd[i] = b->rstd[row + i * step];
    }
    add_group_(b, &group, rows, first);
    for (int i = 0; i < rows; i++) {
        store_row_(b, &group, i, pass_caches);
    }
}

HC_KERNEL_FUNCTION void HC_NAME(adaln_backward)(const hc_adaln_backward_block *block) HC_KERNEL_STREAMING {
    const hc_adaln_backward_block b = *block;
    const int64_t quarter = b.rows / HC_ROWS_AT_ONCE;
    const int pass_caches = b.pass_caches && hc_rows_aligned(b.out_dx, b.columns, b.dx_type);
    for (int64_t i = 0; i < quarter; i++) {
        backward_group_(&b, i, quarter, HC_ROWS_AT_ONCE, i == 0, pass_caches);
    }
    for (int64_t row = HC_ROWS_AT_ONCE * quarter; row < b.rows; row++) {
        backward_group_(&b, row, 0, 1, row == 0, pass_caches);
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
