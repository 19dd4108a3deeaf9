/* Products of fp32 panels by SVE multiply-adds, for any vector length, included by the fp32 and the bf16 kernel.
 *
 * A tile is 8 rows of A times 3 vectors of B. 24 accumulators, 3 vectors of B and broadcasts of A use 28 of 32
 * registers. 24 independent chains cover a latency of 9 cycles on two pipes (A64FX). LD1RW broadcasts the elements of
 * A, because indexed FMLA takes two operations on some cores. Panels contain fp32. Packing rounds bf16 operands,
 * because bf16 products (BFDOT, BFMMLA) are an extension that SVE machines such as A64FX lack. */
#ifndef HC_PANELS_SVE_H
#define HC_PANELS_SVE_H

#if !defined(HC_TARGET_SVE) || !defined(__ARM_FEATURE_SVE)
#error "SVE kernels are built with -march=armv8.2-a+sve and HC_TARGET_SVE (kernels/CMakeLists.txt)"
#endif

#include <arm_sve.h>
#include <stddef.h>

#include "gemm/gemm_kernel.h"

#define HC_ROWS 8
#define HC_VECTORS 3

static int64_t panel_rows(void) {
    return HC_ROWS;
}

static int64_t panel_columns(void) {
    return HC_VECTORS * (int64_t)svcntw();
}

/* Round fp32 to bf16, to nearest even. A nan stays nan, with the quiet bit set. */
static inline svfloat32_t round_to_bf16(svbool_t some, svfloat32_t x) {
    const svuint32_t bits = svreinterpret_u32(x);
    const svuint32_t odd = svand_x(some, svlsr_x(some, bits, 16), 1);
    const svuint32_t nearest = svadd_x(some, svadd_x(some, bits, 0x7fff), odd);
    const svuint32_t kept = svsel(svcmpuo(some, x, x), svorr_x(some, bits, 0x400000), nearest);
    return svreinterpret_f32(svand_z(some, kept, 0xffff0000));
}

/* Load the elements selected by `some`, from `index` on with a distance of `stride`, as fp32. Other lanes are zero.
 * Gather loads use signed 32-bit offsets. Callers advance through long rows step by step, so only lanes * stride must
 * fit 32 bits. */
static inline svfloat32_t read_f32(svbool_t some, const void *data, int64_t index, int64_t stride, int dtype) {
    if (dtype == HC_F32) {
        const float *from = (const float *)data + index;
        return stride == 1 ? svld1(some, from) : svld1_gather_index(some, from, svindex_s32(0, (int32_t)stride));
    }
    const uint16_t *from = (const uint16_t *)data + index;
    const svuint32_t halves =
        stride == 1 ? svld1uh_u32(some, from) : svld1uh_gather_index_u32(some, from, svindex_s32(0, (int32_t)stride));
    return svreinterpret_f32(svlsl_z(some, halves, 16));
}

/* Pack `rows` rows into panels of `width` rows. A row of a panel of B is a column of the matrix, which is passed
 * transposed. The lanes of a vector are consecutive rows. */
static inline void pack(int64_t rows, int64_t depth, const void *data, int64_t row_stride, int64_t depth_stride, int dtype,
                        float scale, int round, int64_t width, float *out, float *sums) {
    for (int64_t panel = 0; panel < rows; panel += width) {
        for (int64_t k = 0; k < depth; k++, out += width) {
            for (int64_t row = 0; row < width; row += (int64_t)svcntw()) {
                const svbool_t inside = svwhilelt_b32(row, width), some = svwhilelt_b32(panel + row, rows);
                const svbool_t read = svand_z(inside, inside, some);
                svfloat32_t x = read_f32(read, data, (panel + row) * row_stride + k * depth_stride, row_stride, dtype);
                x = svmul_z(read, x, scale);
                if (sums != NULL) {
                    svst1(read, sums + panel + row, svadd_x(read, svld1(read, sums + panel + row), x));
                }
                svst1(inside, out + row, round ? round_to_bf16(read, x) : x);
            }
        }
    }
}

#define HC_EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define HC_DECLARE_SUM(r) svfloat32_t sum##r = svdup_f32(0.0f);
#define HC_READ_ROW(r)                                                                                                  \
    const svbool_t some##r = r < rows ? some : svpfalse_b();                                                            \
    svfloat32_t x##r = svmul_z(some##r, read_f32(some##r, data, r < rows ? r * row_stride + k : k, 1, dtype), scale);   \
    sum##r = svadd_x(some, sum##r, x##r);                                                                               \
    x##r = round ? round_to_bf16(some, x##r) : x##r;
#define HC_ADD_SUM(r)                     \
    if (r < rows) {                       \
        sums[r] += svaddv(all, sum##r);   \
    }
/* Interleave x and y lane by lane into the vectors low and high. */
#define HC_INTERLEAVE(low, high, x, y) const svfloat32_t low = svzip1(x, y), high = svzip2(x, y);

/* Pack a panel of 8 rows that are contiguous in k. `rows` rows exist in the matrix. Interleaving 8 vectors lane by lane
 * produces the layout of the panel, for any vector length. */
static inline void pack_interleaved(int64_t rows, int64_t depth, const void *data, int64_t row_stride, int dtype, float scale,
                                    int round, float *out, float *sums) {
    const svbool_t all = svptrue_b32();
    const int64_t lanes = (int64_t)svcntw();
    HC_EACH_ROW(HC_DECLARE_SUM)
    for (int64_t k = 0; k < depth; k += lanes, out += HC_ROWS * lanes) {
        const svbool_t some = svwhilelt_b32(k, depth);
        HC_EACH_ROW(HC_READ_ROW)
        HC_INTERLEAVE(a0, a1, x0, x4)
        HC_INTERLEAVE(b0, b1, x2, x6)
        HC_INTERLEAVE(c0, c1, x1, x5)
        HC_INTERLEAVE(d0, d1, x3, x7)
        HC_INTERLEAVE(even0, even1, a0, b0)
        HC_INTERLEAVE(even2, even3, a1, b1)
        HC_INTERLEAVE(odd0, odd1, c0, d0)
        HC_INTERLEAVE(odd2, odd3, c1, d1)
        const int64_t left = HC_ROWS * (depth - k);
        svst1_vnum(svwhilelt_b32((int64_t)0, left), out, 0, svzip1(even0, odd0));
        svst1_vnum(svwhilelt_b32(lanes, left), out, 1, svzip2(even0, odd0));
        svst1_vnum(svwhilelt_b32(2 * lanes, left), out, 2, svzip1(even1, odd1));
        svst1_vnum(svwhilelt_b32(3 * lanes, left), out, 3, svzip2(even1, odd1));
        svst1_vnum(svwhilelt_b32(4 * lanes, left), out, 4, svzip1(even2, odd2));
        svst1_vnum(svwhilelt_b32(5 * lanes, left), out, 5, svzip2(even2, odd2));
        svst1_vnum(svwhilelt_b32(6 * lanes, left), out, 6, svzip1(even3, odd3));
        svst1_vnum(svwhilelt_b32(7 * lanes, left), out, 7, svzip2(even3, odd3));
    }
    if (sums != NULL) {
        HC_EACH_ROW(HC_ADD_SUM)
    }
}

static inline void pack_rows(int64_t m, int64_t k, const hc_matrix *a, float scale, int round, float *out, float *sums) {
    if (a->column_stride != 1 || a->row_stride == 1) {
        pack(m, k, a->data, a->row_stride, a->column_stride, a->dtype, scale, round, HC_ROWS, out, sums);
        return;
    }
    const int64_t size = a->dtype == HC_F32 ? 4 : 2;
    for (int64_t row = 0; row < m; row += HC_ROWS) {
        pack_interleaved(m - row, k, (const char *)a->data + row * a->row_stride * size, a->row_stride, a->dtype, scale, round,
                         out + row * k, sums == NULL ? NULL : sums + row);
    }
}

#define HC_DECLARE(r) svfloat32_t c##r##0 = svdup_f32(0.0f), c##r##1 = c##r##0, c##r##2 = c##r##0;
#define HC_MULTIPLY(r)                                  \
    {                                                   \
        const svfloat32_t a##r = svdup_f32(a[r]);       \
        c##r##0 = svmla_x(all, c##r##0, b0, a##r);      \
        c##r##1 = svmla_x(all, c##r##1, b1, a##r);      \
        c##r##2 = svmla_x(all, c##r##2, b2, a##r);      \
    }
#define HC_STORE(r)                                          \
    if (r < m) {                                             \
        store(p0, c + r * ldc, c##r##0, bias0, add);         \
        store(p1, c + r * ldc + v, c##r##1, bias1, add);     \
        store(p2, c + r * ldc + 2 * v, c##r##2, bias2, add); \
    }

static inline void store(svbool_t some, float *c, svfloat32_t sum, svfloat32_t bias, int add) {
    sum = svadd_x(some, sum, bias);
    svst1(some, c, add ? svadd_x(some, sum, svld1(some, c)) : sum);
}

/* Compute and store the corner of c with m remaining rows and n remaining columns. */
static void tile(int64_t m, int64_t n, int64_t k, const float *a, const float *b, float *c, int64_t ldc, const float *bias,
                 int add) {
    const svbool_t all = svptrue_b32(), none = svpfalse_b();
    const int64_t v = (int64_t)svcntw();
    HC_EACH_ROW(HC_DECLARE)
    for (; k > 0; k--, a += HC_ROWS, b += HC_VECTORS * v) {
        const svfloat32_t b0 = svld1_vnum(all, b, 0), b1 = svld1_vnum(all, b, 1), b2 = svld1_vnum(all, b, 2);
        HC_EACH_ROW(HC_MULTIPLY)
    }
    const svbool_t p0 = svwhilelt_b32((int64_t)0, n), p1 = svwhilelt_b32(v, n), p2 = svwhilelt_b32(2 * v, n);
    const float *from = bias == NULL ? c : bias; /* not read if bias is NULL */
    const svfloat32_t bias0 = svld1(bias == NULL ? none : p0, from), bias1 = svld1_vnum(bias == NULL ? none : p1, from, 1),
                      bias2 = svld1_vnum(bias == NULL ? none : p2, from, 2);
    HC_EACH_ROW(HC_STORE)
}

/* Multiply panels. The inner loop runs over the panels of A, so that a panel of B stays in the L1 cache. */
static void block(int64_t m, int64_t n, int64_t k, const void *a_panels, const void *b_panels, void *c, int64_t ldc,
                  const void *bias, int add) {
    const int64_t columns = panel_columns();
    for (int64_t j = 0; j < n; j += columns) {
        for (int64_t i = 0; i < m; i += HC_ROWS) {
            tile(m - i, n - j, k, (const float *)a_panels + i * k, (const float *)b_panels + j * k, (float *)c + i * ldc + j, ldc,
                 bias == NULL ? NULL : (const float *)bias + j, add);
        }
    }
}

#endif
