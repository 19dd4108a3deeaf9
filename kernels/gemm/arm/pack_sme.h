/* Packing in streaming SVE, for fp32 and fp64. A ZA tile transposes rows that are contiguous in k.
 *
 * This file is a template. Before the inclusion, HC_ELEMENT, HC_VECTOR, HC_LANES(), HC_SOME_LANES(from, to),
 * HC_ALL_LANES(), HC_SET(value), HC_READ(lanes, data, index, dtype), and HC_WRITE_ROW and HC_READ_COLUMN of a tile must
 * be defined for the element type. "Rows" are rows of a panel: rows of A, or columns of B with its matrix transposed.
 * Streaming mode has no gather loads, so a matrix with neither stride 1 (one row or one column) is read element by
 * element. */
#include <arm_sme.h>

#include "gemm/gemm_kernel.h"

typedef struct {
    int64_t rows, depth;
    const void *data;
    int64_t row_stride, depth_stride;
    int dtype;
    HC_ELEMENT scale;
    HC_ELEMENT *sums;  /* NULL, or (rows) */
    int64_t vectors;   /* vectors of rows per panel */
    HC_ELEMENT *panels;
} hc_packing;

/* Pack rows that are adjacent in memory. Each step of k is a copy. */
HC_SME_ENTRY static void pack_copied(const hc_packing *p) {
    const int64_t lanes = (int64_t)HC_LANES();
    const HC_VECTOR scale = HC_SET(p->scale);
    HC_ELEMENT *out = p->panels;
    for (int64_t panel = 0; panel < p->rows; panel += p->vectors * lanes) {
        for (int64_t k = 0; k < p->depth; k++) {
            for (int64_t row = panel; row < panel + p->vectors * lanes; row += lanes, out += lanes) {
                const svbool_t some = HC_SOME_LANES(row, p->rows);
                const HC_VECTOR x = svmul_z(some, HC_READ(some, p->data, row + k * p->depth_stride, p->dtype), scale);
                svst1(HC_ALL_LANES(), out, x);
                if (p->sums != NULL) {
                    svst1(some, p->sums + row, svadd_x(some, svld1(some, p->sums + row), x));
                }
            }
        }
    }
}

/* Store columns first..first + count of a tile, each a vector of rows, to consecutive steps of a panel. */
#define HC_STORE_COLUMNS(tile, first, count)                                                             \
    for (int64_t column = 0; column < (count); column++) {                                               \
        const HC_VECTOR x = svmul_x(all, HC_READ_COLUMN(HC_SET(0), all, tile, (uint32_t)column), scale); \
        svst1(all, out + ((first) + column) * step, x);                                                  \
        sum = svadd_x(all, sum, x);                                                                      \
    }

#define HC_LOAD_ROW(tile, first)                                                                                  \
    do {                                                                                                          \
        const svbool_t some = HC_SOME_LANES(first, p->depth);                                                     \
        HC_WRITE_ROW(tile, (uint32_t)r, all, HC_READ(some, p->data, (row + r) * p->row_stride + (first), p->dtype)); \
    } while (0)

/* Pack one vector of rows from `row` on, contiguous in k, over all of k. Two tiles double the run of each row per
 * pass. */
static void pack_transposed_rows(const hc_packing *p, int64_t row, HC_ELEMENT *out) HC_SME_PART {
    const svbool_t all = HC_ALL_LANES();
    const int64_t lanes = (int64_t)HC_LANES(), step = p->vectors * lanes;
    const int64_t rows = p->rows - row < lanes ? p->rows - row : lanes;
    const HC_VECTOR scale = HC_SET(p->scale);
    HC_VECTOR sum = HC_SET(0);
    for (int64_t k = 0; k < p->depth; k += 2 * lanes) {
        const int64_t left = p->depth - k;
        svzero_za(); /* zeros for rows after the last row */
        for (int64_t r = 0; r < rows; r++) {
            HC_LOAD_ROW(0, k);
            HC_LOAD_ROW(1, k + lanes);
        }
        HC_STORE_COLUMNS(0, k, left < lanes ? left : lanes)
        HC_STORE_COLUMNS(1, k + lanes, left < 2 * lanes ? left - lanes : lanes)
    }
    if (p->sums != NULL && rows > 0) {
        const svbool_t some = HC_SOME_LANES(row, p->rows);
        svst1(some, p->sums + row, svadd_x(some, svld1(some, p->sums + row), sum));
    }
}

HC_SME_ENTRY static void pack_transposed(const hc_packing *p) {
    const int64_t lanes = (int64_t)HC_LANES(), width = p->vectors * lanes;
    for (int64_t panel = 0; panel < p->rows; panel += width) {
        for (int64_t v = 0; v < p->vectors; v++) {
            pack_transposed_rows(p, panel + v * lanes, p->panels + panel * p->depth + v * lanes);
        }
    }
}

static void pack_scattered(const hc_packing *p) {
    const int64_t width = p->vectors * HC_STREAMING_LANES();
    HC_ELEMENT *out = p->panels;
    for (int64_t panel = 0; panel < p->rows; panel += width) {
        for (int64_t k = 0; k < p->depth; k++) {
            for (int64_t row = panel; row < panel + width; row++, out++) {
                *out = 0;
                if (row < p->rows) {
                    *out = p->scale * HC_READ_ONE(p->data, row * p->row_stride + k * p->depth_stride, p->dtype);
                    if (p->sums != NULL) {
                        p->sums[row] += *out;
                    }
                }
            }
        }
    }
}

static void pack(const hc_packing *p) {
    if (p->row_stride == 1) {
        pack_copied(p);
    } else if (p->depth_stride == 1) {
        pack_transposed(p);
    } else {
        pack_scattered(p);
    }
}
