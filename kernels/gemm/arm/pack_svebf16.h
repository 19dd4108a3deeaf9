/* Packing of fp32 and bf16 matrices for BFMMLA, for any vector length.
 *
 * A panel is [k / 4][rows][4 of k]: the four depths of a row, a word of 64 bits, are one row of a 2 x 4 operand. k is
 * padded with zeros. "Rows" are rows of a panel: rows of A, or columns of B with its matrix transposed. */
#ifndef HC_PACK_SVEBF16_H
#define HC_PACK_SVEBF16_H

#include <arm_sve.h>

#include "gemm/gemm_kernel.h"

#define HC_DEPTHS 4

typedef struct {
    int64_t rows, depth;
    const void *data;
    int64_t row_stride, depth_stride;
    int dtype;
    float scale;
    float *sums;   /* NULL, or (rows): sums of the unrounded elements */
    int64_t width; /* rows per panel */
    uint16_t *panels;
} hc_packing;

/* Load depth k of consecutive rows into 32-bit lanes: bits of fp32, or of bf16 in the lower half. Lanes outside `some`
 * are zero. Gather loads use signed 32-bit offsets, so lanes * row_stride must fit 32 bits. */
static inline svuint32_t read_bits(const hc_packing *p, svbool_t some, int64_t row, int64_t k) {
    const int64_t index = row * p->row_stride + k * p->depth_stride;
    const svint32_t distances = svindex_s32(0, (int32_t)p->row_stride);
    if (p->dtype == HC_F32) {
        const uint32_t *from = (const uint32_t *)p->data + index;
        return p->row_stride == 1 ? svld1(some, from) : svld1_gather_index(some, from, distances);
    }
    const uint16_t *from = (const uint16_t *)p->data + index;
    return p->row_stride == 1 ? svld1uh_u32(some, from) : svld1uh_gather_index_u32(some, from, distances);
}

static inline svfloat32_t scaled(const hc_packing *p, svuint32_t bits) {
    const svbool_t all = svptrue_b32();
    return svmul_x(all, svreinterpret_f32(p->dtype == HC_F32 ? bits : svlsl_x(all, bits, 16)), p->scale);
}

/* Return depths k and k + 1 of consecutive rows as pairs of bf16. Add both to `sum`, except with as_it_is. */
static inline svuint32_t read_pair(const hc_packing *p, int as_it_is, svbool_t some, int64_t row, int64_t k, svfloat32_t *sum) {
    const svbool_t all = svptrue_b32(), none = svpfalse_b();
    const svuint32_t earlier = read_bits(p, k < p->depth ? some : none, row, k);
    const svuint32_t later = read_bits(p, k + 1 < p->depth ? some : none, row, k + 1);
    if (as_it_is) {
        return svreinterpret_u32(svtrn1(svreinterpret_u16(earlier), svreinterpret_u16(later)));
    }
    const svfloat32_t x = scaled(p, earlier), y = scaled(p, later);
    *sum = svadd_x(all, svadd_x(all, *sum, x), y);
    return svreinterpret_u32(svcvtnt_bf16_x(svcvt_bf16_x(all, x), all, y));
}

/* Pack from depth first_k on, a multiple of 4. The lanes of a vector are consecutive rows. */
static inline void pack_lanes(const hc_packing *p, int as_it_is, int64_t first_k) {
    const svbool_t none = svpfalse_b();
    const int64_t lanes = (int64_t)svcntw(), padded_k = (p->depth + HC_DEPTHS - 1) / HC_DEPTHS * HC_DEPTHS;
    for (int64_t panel = 0; panel < p->rows; panel += p->width) {
        for (int64_t k = first_k; k < p->depth; k += HC_DEPTHS) {
            uint32_t *out = (uint32_t *)(void *)(p->panels + panel * padded_k + k * p->width);
            for (int64_t row = 0; row < p->width; row += lanes) {
                const svbool_t exists = svwhilelt_b32(panel + row, p->rows);
                const svbool_t some = svand_z(exists, exists, svwhilelt_b32(row, p->width));
                float *sums = p->sums == NULL ? NULL : p->sums + panel + row;
                svfloat32_t sum = svld1(sums == NULL ? none : some, sums);
                const svuint32_t first = read_pair(p, as_it_is, some, panel + row, k, &sum);
                const svuint32_t second = read_pair(p, as_it_is, some, panel + row, k + 2, &sum);
                svst1(sums == NULL ? none : some, sums, sum);
                svst1(svwhilelt_b32(2 * row, 2 * p->width), out + 2 * row, svzip1(first, second));
                svst1(svwhilelt_b32(2 * row + lanes, 2 * p->width), out + 2 * row + lanes, svzip2(first, second));
            }
        }
    }
}

/* Pack the complete words of rows that are contiguous in k, with unchanged bf16. A gather load reads a word per row. */
static void pack_words(const hc_packing *p) {
    const int64_t lanes = (int64_t)svcntd(), padded_k = (p->depth + HC_DEPTHS - 1) / HC_DEPTHS * HC_DEPTHS;
    const svint64_t distances = svindex_s64(0, 2 * p->row_stride);
    for (int64_t panel = 0; panel < p->rows; panel += p->width) {
        for (int64_t k = 0; k + HC_DEPTHS <= p->depth; k += HC_DEPTHS) {
            uint64_t *out = (uint64_t *)(void *)(p->panels + panel * padded_k + k * p->width);
            for (int64_t row = 0; row < p->width; row += lanes) {
                const svbool_t inside = svwhilelt_b64(row, p->width), exists = svwhilelt_b64(panel + row, p->rows);
                const uint16_t *from = (const uint16_t *)p->data + (panel + row) * p->row_stride + k;
                svst1(inside, out + row,
                      svld1_gather_offset(svand_z(exists, exists, inside), (const uint64_t *)(const void *)from, distances));
            }
        }
    }
}

static void pack(const hc_packing *p) {
    const int as_it_is = p->dtype == HC_BF16 && p->scale == 1.0f && p->sums == NULL;
    if (!as_it_is) {
        pack_lanes(p, 0, 0);
    } else if (p->depth_stride != 1 || p->row_stride == 1) {
        pack_lanes(p, 1, 0);
    } else {
        pack_words(p);
        pack_lanes(p, 1, p->depth / HC_DEPTHS * HC_DEPTHS);
    }
}

#endif
