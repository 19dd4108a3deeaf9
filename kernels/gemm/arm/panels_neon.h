/* Products of fp32 panels by NEON multiply-adds, included by the fp32 and the bf16 kernel.
 *
 * A tile is 8 rows of A times 3 vectors of B. 24 accumulators, 3 vectors of B and 2 vectors of A use 29 of 32
 * registers. The multiply-adds select the elements of A by lane. Panels contain fp32. Packing rounds bf16 operands,
 * because bf16 products are an optional extension. */
#ifndef HC_PANELS_NEON_H
#define HC_PANELS_NEON_H

#if !defined(HC_TARGET_NEON) || !defined(__ARM_NEON)
#error "NEON kernels are built for 64-bit Arm with HC_TARGET_NEON (kernels/CMakeLists.txt)"
#endif

#include <arm_neon.h>
#include <string.h>

#include "gemm/gemm_kernel.h"

#define HC_ROWS 8
#define HC_VECTORS 3
#define HC_COLUMNS (4 * HC_VECTORS)

static int64_t panel_rows(void) {
    return HC_ROWS;
}

static int64_t panel_columns(void) {
    return HC_COLUMNS;
}

/* Round fp32 to bf16, to nearest even. A nan stays nan, with the quiet bit set. */
static inline float32x4_t round_to_bf16(float32x4_t x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t nearest = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    const uint32x4_t kept = vbslq_u32(vceqq_f32(x, x), nearest, quiet);
    return vreinterpretq_f32_u32(vandq_u32(kept, vdupq_n_u32(0xffff0000)));
}

/* Load `count` elements, at most 4, with a distance of `stride`, as fp32. Other lanes are zero. */
static inline float32x4_t read_f32(const void *data, int64_t index, int64_t stride, int64_t count, int dtype) {
    if (dtype == HC_F32) {
        const float *from = (const float *)data + index;
        if (stride == 1 && count >= 4) {
            return vld1q_f32(from);
        }
        float some[4] = {0};
        for (int64_t i = 0; i < count && i < 4; i++) {
            some[i] = from[i * stride];
        }
        return vld1q_f32(some);
    }
    const uint16_t *from = (const uint16_t *)data + index;
    if (stride == 1 && count >= 4) {
        return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from), 16));
    }
    uint16_t some[4] = {0};
    for (int64_t i = 0; i < count && i < 4; i++) {
        some[i] = from[i * stride];
    }
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(some), 16));
}

static inline void put(float *out, int64_t step, float32x4_t x, float scale, int round, int64_t count, float *sums) {
    x = vmulq_n_f32(x, scale);
    for (int64_t i = 0; sums != NULL && i < count && i < 4; i++) {
        sums[i] += x[i];
    }
    vst1q_f32(out + step, round ? round_to_bf16(x) : x);
}

/* Pack four rows of a panel, contiguous in k. `count` rows exist in the matrix. Squares of 4 x 4 are transposed in
 * registers. */
static inline void pack_four_rows(int64_t count, int64_t depth, const void *data, int64_t row_stride, int dtype, float scale,
                                  int round, int64_t width, float *out, float *sums) {
    for (int64_t k = 0; k < depth; k += 4) {
        const int64_t left = depth - k;
        float32x4_t row[4];
        for (int64_t r = 0; r < 4; r++) {
            row[r] = read_f32(data, r < count ? r * row_stride + k : 0, 1, r < count ? left : 0, dtype);
        }
        const float32x4_t low01 = vzip1q_f32(row[0], row[2]), low23 = vzip1q_f32(row[1], row[3]);
        const float32x4_t high01 = vzip2q_f32(row[0], row[2]), high23 = vzip2q_f32(row[1], row[3]);
        const float32x4_t column[4] = {vzip1q_f32(low01, low23), vzip2q_f32(low01, low23), vzip1q_f32(high01, high23),
                                       vzip2q_f32(high01, high23)};
        for (int64_t q = 0; q < 4 && q < left; q++) {
            put(out, (k + q) * width, column[q], scale, round, count, sums);
        }
    }
}

/* Pack `rows` rows into panels of `width` rows. A row of a panel of B is a column of the matrix, which is passed
 * transposed. */
static inline void pack(int64_t rows, int64_t depth, const void *data, int64_t row_stride, int64_t depth_stride, int dtype,
                        float scale, int round, int64_t width, float *out, float *sums) {
    const char *bytes = data;
    const int64_t size = dtype == HC_F32 ? 4 : 2;
    for (int64_t panel = 0; panel < rows; panel += width, out += depth * width) {
        for (int64_t row = 0; row < width; row += 4) {
            const int64_t count = rows - panel - row;
            const void *from = count > 0 ? bytes + (panel + row) * row_stride * size : bytes;
            float *row_sums = sums == NULL || count <= 0 ? NULL : sums + panel + row;
            if (depth_stride == 1 && row_stride != 1) {
                pack_four_rows(count, depth, from, row_stride, dtype, scale, round, width, out + row, row_sums);
                continue;
            }
            for (int64_t k = 0; k < depth; k++) {
                const float32x4_t x = read_f32(from, k * depth_stride, row_stride, count, dtype);
                put(out + row, k * width, x, scale, round, count, row_sums);
            }
        }
    }
}

#define HC_EACH_ROW(DO) DO(0, upper, 0) DO(1, upper, 1) DO(2, upper, 2) DO(3, upper, 3) \
    DO(4, lower, 0) DO(5, lower, 1) DO(6, lower, 2) DO(7, lower, 3)
#define HC_DECLARE(r, half, lane) float32x4_t c##r##0 = vdupq_n_f32(0.0f), c##r##1 = c##r##0, c##r##2 = c##r##0;
#define HC_MULTIPLY(r, half, lane)                    \
    c##r##0 = vfmaq_laneq_f32(c##r##0, b0, half, lane); \
    c##r##1 = vfmaq_laneq_f32(c##r##1, b1, half, lane); \
    c##r##2 = vfmaq_laneq_f32(c##r##2, b2, half, lane);
#define HC_KEEP(r, half, lane) \
    sums[r][0] = c##r##0;      \
    sums[r][1] = c##r##1;      \
    sums[r][2] = c##r##2;

/* Compute the sums of a complete tile. They are separate variables, because the compiler would keep an array in
 * memory. */
static inline void tile(int64_t k, const float *a, const float *b, float32x4_t sums[HC_ROWS][HC_VECTORS]) {
    HC_EACH_ROW(HC_DECLARE)
    for (; k > 0; k--, a += HC_ROWS, b += HC_COLUMNS) {
        const float32x4_t b0 = vld1q_f32(b), b1 = vld1q_f32(b + 4), b2 = vld1q_f32(b + 8);
        const float32x4_t upper = vld1q_f32(a), lower = vld1q_f32(a + 4);
        HC_EACH_ROW(HC_MULTIPLY)
    }
    HC_EACH_ROW(HC_KEEP)
}

/* Compute and store the corner of c with m remaining rows and n remaining columns. */
static void corner(int64_t m, int64_t n, int64_t k, const float *a, const float *b, float *c, int64_t ldc, const float *bias,
                   int add) {
    float32x4_t sums[HC_ROWS][HC_VECTORS];
    tile(k, a, b, sums);
    for (int64_t r = 0; r < HC_ROWS && r < m; r++) {
        for (int64_t v = 0; v < HC_VECTORS && 4 * v < n; v++) {
            float *target = c + r * ldc + 4 * v;
            float32x4_t sum = sums[r][v];
            if (n - 4 * v >= 4) {
                sum = bias == NULL ? sum : vaddq_f32(sum, vld1q_f32(bias + 4 * v));
                vst1q_f32(target, add ? vaddq_f32(sum, vld1q_f32(target)) : sum);
                continue;
            }
            for (int64_t j = 0; j < n - 4 * v; j++) {
                const float value = sum[j] + (bias == NULL ? 0.0f : bias[4 * v + j]);
                target[j] = add ? target[j] + value : value;
            }
        }
    }
}

/* Multiply panels. The inner loop runs over the panels of A, so that a panel of B stays in the L1 cache. */
static void block(int64_t m, int64_t n, int64_t k, const void *a_panels, const void *b_panels, void *c, int64_t ldc,
                  const void *bias, int add) {
    for (int64_t j = 0; j < n; j += HC_COLUMNS) {
        for (int64_t i = 0; i < m; i += HC_ROWS) {
            corner(m - i, n - j, k, (const float *)a_panels + i * k, (const float *)b_panels + j * k, (float *)c + i * ldc + j,
                   ldc, bias == NULL ? NULL : (const float *)bias + j, add);
        }
    }
}

static inline void pack_rows(int64_t m, int64_t k, const hc_matrix *a, float scale, int round, float *out, float *sums) {
    pack(m, k, a->data, a->row_stride, a->column_stride, a->dtype, scale, round, HC_ROWS, out, sums);
}

#endif
