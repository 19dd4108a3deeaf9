/* Packing of both operands into panels for any vector width, included by each kernel file.
 *
 * A panel of A is a list of blocks. A block has mr rows of PACK_LANES consecutive depths. The last block has the
 * remaining depths. A row-major A is therefore packed by copying vectors, and the tile kernel reads every element of a
 * block at a constant distance from one pointer. A panel of B is k rows of nr columns.
 *
 * The including file defines PACK_LANES, PACK_MR, PACK_NR (a multiple of PACK_LANES), PACK_ROUND(v) (the rounding of
 * operands of this compute type), the types pack_element and pack_vector, and pack_zero, pack_load, pack_store,
 * pack_add, pack_scale, pack_total, pack_transpose (see gemm_lanes_avx512.h). */
#include "gemm/gemm_kernel.h"

/* Prefetch distance in rows. */
#define ROWS_AHEAD 8

#define PACK_INLINE static inline __attribute__((always_inline))

PACK_INLINE int64_t pack_min(int64_t a, int64_t b) { return a < b ? a : b; }

PACK_INLINE const char *pack_address(const hc_matrix *x, int dtype, int64_t row, int64_t column) {
    const int64_t bytes = dtype == HC_F64 ? 8 : dtype == HC_F32 ? 4 : 2;
    return (const char *)x->data + (row * x->row_stride + column * x->column_stride) * bytes;
}

/* Load `count` elements with a distance of `stride`. */
PACK_INLINE pack_vector pack_read(const char *from, int64_t stride, int dtype, int64_t count) {
    if (stride == 1) return pack_load(from, dtype, count);
    pack_element gathered[PACK_LANES] = {0};
    const int64_t bytes = dtype == HC_F64 ? 8 : dtype == HC_F32 ? 4 : 2;
    for (int64_t i = 0; i < count; i++) pack_store(gathered + i, 1, pack_load(from + i * stride * bytes, dtype, 1));
    return pack_load((const char *)gathered, sizeof(pack_element) == 8 ? HC_F64 : HC_F32, PACK_LANES);
}

/* Pack an A with rows that are contiguous in k, by copying vectors. */
PACK_INLINE void pack_a_rows(int64_t m, int64_t k, const hc_matrix *a, int dtype, int64_t stride, pack_element scale,
                             pack_element *out, pack_element *row_sum) {
    for (int64_t i = 0; i < (m + PACK_MR - 1) / PACK_MR * PACK_MR; i++) {
        pack_element *panel = out + i / PACK_MR * PACK_MR * k;
        const int64_t row = i % PACK_MR;
        pack_vector sum = pack_zero();
        for (int64_t p = 0; p < k; p += PACK_LANES) {
            const int64_t depth = pack_min(PACK_LANES, k - p);
            pack_vector v = pack_zero();
            if (i < m) v = pack_scale(pack_read(pack_address(a, dtype, i, p), stride, dtype, depth), scale);
            sum = pack_add(sum, v);
            pack_store(panel + p * PACK_MR + row * depth, depth, PACK_ROUND(v));
        }
        if (row_sum && i < m) row_sum[i] += pack_total(sum);
    }
}

/* Pack an A with columns that are contiguous in memory (the transpose of a row-major matrix). Squares of PACK_LANES x
 * PACK_LANES are transposed in registers. */
PACK_INLINE void pack_a_columns(int64_t m, int64_t k, const hc_matrix *a, int dtype, pack_element scale, pack_element *out,
                                pack_element *row_sum) {
    for (int64_t p = 0; p < k; p += PACK_LANES) {
        const int64_t depth = pack_min(PACK_LANES, k - p);
        for (int64_t i = 0; i < m; i += PACK_LANES) {
            const int64_t rows = pack_min(PACK_LANES, m - i);
            pack_vector square[PACK_LANES], sum = pack_zero();
            for (int64_t q = 0; q < PACK_LANES; q++) {
                square[q] = pack_zero();
                if (q < depth) square[q] = pack_scale(pack_load(pack_address(a, dtype, i, p + q), dtype, rows), scale);
                sum = pack_add(sum, square[q]);
                square[q] = PACK_ROUND(square[q]);
            }
            if (row_sum) {
                const int type = sizeof(pack_element) == 8 ? HC_F64 : HC_F32;
                pack_store(row_sum + i, rows, pack_add(sum, pack_load((const char *)(row_sum + i), type, rows)));
            }
            pack_transpose(square);
            pack_element *panel = out + i / PACK_MR * PACK_MR * k + p * PACK_MR;
            int64_t row = i % PACK_MR;
            for (int64_t q = 0; q < rows; q++) {
                pack_store(panel + row * depth, depth, square[q]);
                if (++row == PACK_MR) {
                    row = 0;
                    panel += PACK_MR * k;
                }
            }
        }
        for (int64_t i = m; i % PACK_MR; i++)
            pack_store(out + i / PACK_MR * PACK_MR * k + p * PACK_MR + i % PACK_MR * depth, depth, pack_zero());
    }
}

/* Select the function by the strides alone, so that the order of a row sum does not depend on the number of rows of a
 * block. */
PACK_INLINE void pack_a_typed(int64_t m, int64_t k, const hc_matrix *a, int dtype, pack_element scale, void *out_panels,
                              void *row_sum) {
    if (a->column_stride == 1)
        pack_a_rows(m, k, a, dtype, 1, scale, out_panels, row_sum);
    else if (a->row_stride == 1)
        pack_a_columns(m, k, a, dtype, scale, out_panels, row_sum);
    else
        pack_a_rows(m, k, a, dtype, a->column_stride, scale, out_panels, row_sum);
}

/* Pack a B with contiguous rows, by copying vectors. Eight panels are packed at a time. Each access to a row of B then
 * reads a run of many cache lines, and the number of written lines, one per panel, is below the associativity of an L1
 * cache. Rows are on separate pages, where hardware prefetching ends, so following rows are prefetched (time of packing
 * X for dW: -25%). */
PACK_INLINE void pack_b_rows(int64_t k, int64_t n, const hc_matrix *b, int dtype, int64_t stride, pack_element *out) {
    const int64_t group = 8 * PACK_NR, padded = (n + PACK_NR - 1) / PACK_NR * PACK_NR;
    for (int64_t first = 0; first < padded; first += group) {
        for (int64_t p = 0; p < k; p++) {
            for (int64_t j = first; j < pack_min(first + group, padded); j += PACK_LANES) {
                const int64_t columns = pack_min(PACK_LANES, n - j);
                pack_vector v = pack_zero();
                if (columns > 0) {
                    v = PACK_ROUND(pack_read(pack_address(b, dtype, p, j), stride, dtype, columns));
                    __builtin_prefetch(pack_address(b, dtype, p + ROWS_AHEAD, j));
                }
                pack_store(out + j / PACK_NR * PACK_NR * k + p * PACK_NR + j % PACK_NR, PACK_LANES, v);
            }
        }
    }
}

/* Pack a B with contiguous columns (the transpose of a row-major matrix). */
PACK_INLINE void pack_b_columns(int64_t k, int64_t n, const hc_matrix *b, int dtype, pack_element *out) {
    for (int64_t j = 0; j < (n + PACK_NR - 1) / PACK_NR * PACK_NR; j += PACK_LANES) {
        pack_element *panel = out + j / PACK_NR * PACK_NR * k + j % PACK_NR;
        const int64_t columns = pack_min(PACK_LANES, n - j);
        for (int64_t p = 0; p < k; p += PACK_LANES) {
            const int64_t depth = pack_min(PACK_LANES, k - p);
            pack_vector square[PACK_LANES];
            for (int64_t q = 0; q < PACK_LANES; q++) {
                square[q] = pack_zero();
                if (q < columns) square[q] = PACK_ROUND(pack_load(pack_address(b, dtype, p, j + q), dtype, depth));
            }
            pack_transpose(square);
            for (int64_t q = 0; q < depth; q++) pack_store(panel + (p + q) * PACK_NR, PACK_LANES, square[q]);
        }
    }
}

PACK_INLINE void pack_b_typed(int64_t k, int64_t n, const hc_matrix *b, int dtype, void *out_panels) {
    if (b->column_stride == 1)
        pack_b_rows(k, n, b, dtype, 1, out_panels);
    else if (b->row_stride == 1)
        pack_b_columns(k, n, b, dtype, out_panels);
    else
        pack_b_rows(k, n, b, dtype, b->column_stride, out_panels);
}

/* The pack functions of a kernel descriptor. One copy of the code per operand type, so that no loop tests the type. */
static void pack_a(int64_t m, int64_t k, const hc_matrix *a, float scale, void *out_panels, float *row_sum) {
    if (sizeof(pack_element) == 8)
        pack_a_typed(m, k, a, HC_F64, scale, out_panels, row_sum);
    else if (a->dtype == HC_F32)
        pack_a_typed(m, k, a, HC_F32, scale, out_panels, row_sum);
    else
        pack_a_typed(m, k, a, HC_BF16, scale, out_panels, row_sum);
}

static void pack_b(int64_t k, int64_t n, const hc_matrix *b, void *out_panels) {
    if (sizeof(pack_element) == 8)
        pack_b_typed(k, n, b, HC_F64, out_panels);
    else if (b->dtype == HC_F32)
        pack_b_typed(k, n, b, HC_F32, out_panels);
    else
        pack_b_typed(k, n, b, HC_BF16, out_panels);
}
