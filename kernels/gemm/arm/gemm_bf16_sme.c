/* bf16 matrix products by SME outer products (BFMOPA: sums of two products in fp32) on all four ZA tiles, for any
 * streaming vector length. A panel contains pairs of k. Each pair is two vectors of 32-bit words, with the lower k in
 * the lower half. BFMOPA treats denormal operands and sums as zero. */
#include <string.h>

#include "gemm/arm/block_sme.h"

#define BFMOPA(tile, rows, columns) "bfmopa za" #tile ".s, %[all]/m, %[all]/m, z" #rows ".h, z" #columns ".h\n"
HC_DEFINE_MULTIPLY(BFMOPA)

/* Packing job. "Rows" are rows of a panel: rows of A, or columns of B with its matrix transposed. */
typedef struct {
    int64_t rows, depth;
    const void *data;
    int64_t row_stride, depth_stride;
    int dtype;
    float scale;
    float *sums; /* NULL, or (rows): sums of the unrounded elements */
    uint32_t *panels;
} hc_packing;

/* Load a vector of fp32 or bf16 elements as fp32. Lanes outside `lanes` are zero. */
static inline svfloat32_t read_f32(svbool_t lanes, const void *data, int64_t index, int dtype) HC_SME_HELPER {
    if (dtype == HC_F32) {
        return svld1_f32(lanes, (const float *)data + index);
    }
    return svreinterpret_f32(svlsl_z(lanes, svld1uh_u32(lanes, (const uint16_t *)data + index), 16));
}

static inline svuint32_t pair(svfloat32_t earlier, svfloat32_t later) HC_SME_HELPER {
    const svbool_t all = svptrue_b32();
    return svreinterpret_u32(svcvtnt_bf16_x(svcvt_bf16_x(all, earlier), all, later));
}

/* Pack rows that are adjacent in memory, with unchanged bf16. Two steps of k are interleaved, for the width of a panel
 * at a time. */
HC_SME_ENTRY static void pack_zipped(const hc_packing *p) {
    const int64_t lanes = (int64_t)svcntw();
    const uint16_t *data = p->data;
    uint32_t *out = p->panels;
    for (int64_t panel = 0; panel < p->rows; panel += 2 * lanes) {
        const svbool_t some = svwhilelt_b16(panel, p->rows);
        for (int64_t k = 0; k < p->depth; k += 2, out += 2 * lanes) {
            const svuint16_t earlier = svld1(some, data + panel + k * p->depth_stride);
            const svbool_t paired = k + 1 < p->depth ? some : svpfalse_b();
            const svuint16_t later = svld1(paired, data + panel + (k + 1 < p->depth ? k + 1 : k) * p->depth_stride);
            svst1(svptrue_b32(), out, svreinterpret_u32(svzip1(earlier, later)));
            svst1(svptrue_b32(), out + lanes, svreinterpret_u32(svzip2(earlier, later)));
        }
    }
}

/* Pack rows that are adjacent in memory. Elements are scaled, summed and rounded. */
HC_SME_ENTRY static void pack_rounded(const hc_packing *p) {
    const int64_t lanes = (int64_t)svcntw();
    uint32_t *out = p->panels;
    for (int64_t panel = 0; panel < p->rows; panel += 2 * lanes) {
        for (int64_t k = 0; k < p->depth; k += 2) {
            for (int64_t row = panel; row < panel + 2 * lanes; row += lanes, out += lanes) {
                const svbool_t some = svwhilelt_b32(row, p->rows);
                const svbool_t paired = k + 1 < p->depth ? some : svpfalse_b();
                const int64_t next = k + 1 < p->depth ? k + 1 : k;
                const svfloat32_t earlier = svmul_z(some, read_f32(some, p->data, row + k * p->depth_stride, p->dtype), p->scale);
                const svfloat32_t later =
                    svmul_z(paired, read_f32(paired, p->data, row + next * p->depth_stride, p->dtype), p->scale);
                svst1(svptrue_b32(), out, pair(earlier, later));
                if (p->sums != NULL) {
                    const svfloat32_t sum = svadd_x(some, svld1(some, p->sums + row), earlier);
                    svst1(some, p->sums + row, svadd_x(some, sum, later));
                }
            }
        }
    }
}

/* Pack one vector of rows that are contiguous in k, with unchanged bf16. A pair of k is a 32-bit word. ZA tiles
 * transpose the words. */
static void transpose_words(const hc_packing *p, int64_t row, uint32_t *out) HC_SME_PART {
    const svbool_t all = svptrue_b32();
    const int64_t lanes = (int64_t)svcntw(), pairs = (p->depth + 1) / 2;
    const int64_t rows = p->rows - row < lanes ? p->rows - row : lanes;
    for (int64_t k = 0; k < pairs; k += 2 * lanes) {
        const svbool_t first = svwhilelt_b16(2 * k, p->depth), second = svwhilelt_b16(2 * (k + lanes), p->depth);
        svzero_za(); /* zeros for rows after the last row */
        for (int64_t r = 0; r < rows; r++) {
            const uint16_t *from = (const uint16_t *)p->data + (row + r) * p->row_stride + 2 * k;
            svwrite_hor_za32_m(0, (uint32_t)r, all, svreinterpret_u32(svld1(first, from)));
            svwrite_hor_za32_m(1, (uint32_t)r, all, svreinterpret_u32(svld1_vnum(second, from, 1)));
        }
        for (int64_t word = 0; word < lanes && k + word < pairs; word++) {
            svst1_ver_za32(0, (uint32_t)word, all, out + (k + word) * 2 * lanes);
        }
        for (int64_t word = 0; word < lanes && k + lanes + word < pairs; word++) {
            svst1_ver_za32(1, (uint32_t)word, all, out + (k + lanes + word) * 2 * lanes);
        }
    }
}

/* Pack one vector of rows that are contiguous in k. Elements are scaled and summed, fp32 is transposed, and pairs are
 * rounded when they are stored. */
static void transpose_rounded(const hc_packing *p, int64_t row, uint32_t *out) HC_SME_PART {
    const svbool_t all = svptrue_b32();
    const int64_t lanes = (int64_t)svcntw();
    const int64_t rows = p->rows - row < lanes ? p->rows - row : lanes;
    const svbool_t some = svwhilelt_b32(row, p->rows);
    svfloat32_t sum = svdup_f32(0.0f);
    for (int64_t k = 0; k < p->depth; k += lanes) { /* the number of lanes is even */
        const svbool_t depths = svwhilelt_b32(k, p->depth);
        svzero_za();
        for (int64_t r = 0; r < rows; r++) {
            const svfloat32_t x = read_f32(depths, p->data, (row + r) * p->row_stride + k, p->dtype);
            svwrite_hor_za32_m(0, (uint32_t)r, depths, svmul_z(depths, x, p->scale));
        }
        for (int64_t column = 0; column < lanes && k + column < p->depth; column += 2) {
            const svfloat32_t earlier = svread_ver_za32_m(sum, all, 0, (uint32_t)column);
            const svfloat32_t later = svread_ver_za32_m(sum, all, 0, (uint32_t)column + 1);
            svst1(all, out + (k + column) * lanes, pair(earlier, later));
            sum = svadd_x(all, svadd_x(all, sum, earlier), later);
        }
    }
    if (p->sums != NULL) {
        svst1(some, p->sums + row, svadd_x(some, svld1(some, p->sums + row), sum));
    }
}

HC_SME_ENTRY static void pack_transposed(const hc_packing *p, int as_it_is) {
    const int64_t lanes = (int64_t)svcntw(), pairs = (p->depth + 1) / 2;
    for (int64_t panel = 0; panel < p->rows; panel += 2 * lanes) {
        for (int64_t row = panel; row < panel + 2 * lanes; row += lanes) {
            uint32_t *out = p->panels + panel * pairs + row - panel;
            if (as_it_is) {
                transpose_words(p, row, out);
            } else {
                transpose_rounded(p, row, out);
            }
        }
    }
}

/* Pack one row or one column with arbitrary strides. */
HC_SME_ENTRY static void pack_scattered(const hc_packing *p) {
    const int64_t lanes = (int64_t)svcntw(), width = 2 * lanes, size = p->dtype == HC_F32 ? 4 : 2;
    const svbool_t one = svwhilelt_b32(0, 1);
    for (int64_t row = 0; row < (p->rows + width - 1) / width * width; row++) {
        uint32_t *out = p->panels + row / width * width * ((p->depth + 1) / 2) + row % width;
        for (int64_t k = 0; k < p->depth; k += 2, out += width) {
            svfloat32_t earlier = svdup_f32(0.0f), later = svdup_f32(0.0f);
            if (row < p->rows) {
                const char *from = (const char *)p->data + (row * p->row_stride + k * p->depth_stride) * size;
                earlier = svmul_z(one, read_f32(one, from, 0, p->dtype), p->scale);
                if (k + 1 < p->depth) {
                    later = svmul_z(one, read_f32(one, from + p->depth_stride * size, 0, p->dtype), p->scale);
                }
                if (p->sums != NULL) {
                    const svfloat32_t sum = svadd_x(one, svld1(one, p->sums + row), earlier);
                    svst1(one, p->sums + row, svadd_x(one, sum, later));
                }
            }
            svst1(one, out, pair(earlier, later));
        }
    }
}

static void pack(const hc_packing *p) {
    const int as_it_is = p->dtype == HC_BF16 && p->scale == 1.0f && p->sums == NULL;
    if (p->row_stride == 1 && as_it_is) {
        pack_zipped(p);
    } else if (p->row_stride == 1) {
        pack_rounded(p);
    } else if (p->depth_stride == 1) {
        pack_transposed(p, as_it_is);
    } else {
        pack_scattered(p);
    }
}

static void pack_a(int64_t m, int64_t k, const hc_matrix *a, float scale, void *out_panels, float *row_sum) {
    pack(&(hc_packing){m, k, a->data, a->row_stride, a->column_stride, a->dtype, scale, row_sum, out_panels});
}

static void pack_b(int64_t k, int64_t n, const hc_matrix *b, void *out_panels) {
    pack(&(hc_packing){n, k, b->data, b->column_stride, b->row_stride, b->dtype, 1.0f, NULL, out_panels});
}

static void block_bf16(int64_t m, int64_t n, int64_t k, const void *a_panels, const void *b_panels, void *c, int64_t ldc,
                       const void *bias, int add) {
    block(m, n, (k + 1) / 2, a_panels, b_panels, c, ldc, bias, add);
}

const hc_gemm_kernel hc_gemm_bf16_sme = {
    .name = "gemm_bf16_sme",
    .isa = HC_ISA_SME,
    .dtype = HC_BF16,
    .mr = two_vectors,
    .nr = two_vectors,
    .kr = 2,
    .element_bytes = sizeof(uint16_t),
    .pack_a = pack_a,
    .pack_b = pack_b,
    .block = block_bf16,
    .b_group = 2,
};
