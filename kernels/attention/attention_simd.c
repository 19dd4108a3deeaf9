/* Vector kernels of attention: softmax of a block of scores, its gradient, and conversions between blocks and
 * tensors. */
#include <float.h>
#include <math.h>

#include "attention/attention.h"
#include "attention/store_pairs.h"
#include "simd/math.h"
#include "simd/simd.h"
#ifdef HC_TARGET_AVX512
#include "attention/parts_avx512.h"
#endif

#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f

HC_KERNEL_FUNCTION int64_t HC_NAME(attention_lanes)(void) HC_KERNEL_STREAMING {
    return hc_lanes();
}

/* Return log(x) for normal x > 0. With x = 2^e (1 + f), 1 + f in [sqrt(1/2), sqrt(2)), it is e log(2) + f - f^2 / 2 +
 * f^3 p(f). p is the polynomial of degree 7 that minimizes the maximum relative error of log(1 + f), 2^-27.3
 * (iteratively reweighted least squares, as in simd/math.h). nan and inf are returned unchanged. The function is
 * scalar, because it is called once per row of scores. */
HC_INLINE float logarithm(float x) HC_STREAMING_OK {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t shifted = bits - 0x3f3504f3u; /* bits of sqrt(1/2) */
    const float exponent = (float)((int32_t)shifted >> 23);
    const uint32_t mantissa_bits = (shifted & 0x7fffffu) + 0x3f3504f3u;
    float f;
    memcpy(&f, &mantissa_bits, sizeof f);
    f -= 1.0f;
    float p = -0x1.38b58p-4f;
    p = p * f + 0x1.055b6ap-3f;
    p = p * f - 0x1.0d8542p-3f;
    p = p * f + 0x1.22da1cp-3f;
    p = p * f - 0x1.547244p-3f;
    p = p * f + 0x1.99a008p-3f;
    p = p * f - 0x1.000226p-2f;
    p = p * f + 0x1.555554p-2f;
    const float square = f * f;
    const float small = p * f * square - 0.5f * square;
    const float result = f + (small + exponent * LN_2);
    return x < INFINITY ? result : x;
}

/* Store rows i and i + 1 of a column of vectors in the format `panel`. second: 0 for a last row without a partner. */
HC_INLINE HC_PAIRS_TARGET void store_two(int panel, int second, void *out, int64_t width, int64_t panel_bytes, int64_t i,
                                         int64_t j, hc_vf even, hc_vf odd) HC_STREAMING_OK {
#ifdef HC_TARGET_AVX512
    if (panel == HC_PANEL_PARTS) {
        const hc_parts even_parts = hc_split_in_parts(even), odd_parts = hc_split_in_parts(odd);
        hc_store_parts_b(out, panel_bytes, i, j, &even_parts, &odd_parts);
        return;
    }
#endif
    (void)panel_bytes;
    float *block = out;
    if (panel == HC_PANEL_PAIRS) {
        hc_store_pairs((uint16_t *)(void *)(block + i / 2 * width + j), even, odd);
        return;
    }
    if (panel == HC_PANEL_ROUNDED) {
        uint16_t *low = (uint16_t *)(void *)(block + i * width + j);
        hc_store_bf16(low, even);
        even = hc_load_bf16(low);
        if (second) {
            uint16_t *high = (uint16_t *)(void *)(block + (i + 1) * width + j);
            hc_store_bf16(high, odd);
            odd = hc_load_bf16(high);
        }
    }
    hc_store(block + i * width + j, even);
    if (second) {
        hc_store(block + (i + 1) * width + j, odd);
    }
}

HC_INLINE hc_vf largest_of_column(int64_t rows, int64_t width, const float *column) HC_STREAMING_OK {
    hc_vf m0 = hc_set(-INFINITY), m1 = m0, m2 = m0, m3 = m0; /* four independent chains hide the latency of a maximum */
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4) {
        const float *at = column + i * width;
        m0 = hc_max(m0, hc_load(at));
        m1 = hc_max(m1, hc_load(at + width));
        m2 = hc_max(m2, hc_load(at + 2 * width));
        m3 = hc_max(m3, hc_load(at + 3 * width));
    }
    for (; i < rows; i++) {
        m0 = hc_max(m0, hc_load(column + i * width));
    }
    return hc_max(hc_max(m0, m1), hc_max(m2, m3));
}

/* Write the exponentials of a column and return their sum. The maximum is subtracted before scaling, so that equal
 * scores of any magnitude produce equal results. */
HC_INLINE HC_PAIRS_TARGET hc_vf exponentials_of_column(int panel, int64_t rows, int64_t width, int64_t j, hc_vf scale,
                                                       hc_vf max, const float *scores, void *out_p,
                                                       int64_t panel_bytes) HC_STREAMING_OK {
    hc_vf even_sum = hc_zero(), odd_sum = hc_zero();
    int64_t i = 0;
    for (; i + 2 <= rows; i += 2) {
        const hc_vf even = hc_exp2(hc_mul(hc_sub(hc_load(scores + i * width + j), max), scale));
        const hc_vf odd = hc_exp2(hc_mul(hc_sub(hc_load(scores + (i + 1) * width + j), max), scale));
        even_sum = hc_add(even_sum, even);
        odd_sum = hc_add(odd_sum, odd);
        store_two(panel, 1, out_p, width, panel_bytes, i, j, even, odd);
    }
    if (i < rows) {
        const hc_vf even = hc_exp2(hc_mul(hc_sub(hc_load(scores + i * width + j), max), scale));
        even_sum = hc_add(even_sum, even);
        store_two(panel, 0, out_p, width, panel_bytes, i, j, even, hc_zero());
    }
    return hc_add(even_sum, odd_sum);
}

HC_INLINE HC_PAIRS_TARGET void softmax(int panel, int64_t rows, int64_t columns, int64_t width, float scale_value,
                                       int first, float *scores, void *out_p, int64_t panel_bytes, float *max,
                                       float *sum, float *out_factor) HC_STREAMING_OK {
    const hc_vf scale = hc_set(scale_value * LOG2_E);
    for (int64_t j = 0; j < columns; j += hc_lanes()) {
        /* Bounded below. If all scores are -inf, the exponentials are then 0, not exp(-inf - -inf). nan propagates. */
        hc_vf new_max = hc_max(hc_set(-FLT_MAX), largest_of_column(rows, width, scores + j));
        hc_vf factor = hc_zero(), before = hc_zero();
        if (!first) {
            const hc_vf old_max = hc_load(max + j);
            new_max = hc_max(old_max, new_max);
            factor = hc_exp2(hc_mul(hc_sub(old_max, new_max), scale));
            before = hc_mul(factor, hc_load(sum + j));
        }
        const hc_vf total = exponentials_of_column(panel, rows, width, j, scale, new_max, scores, out_p, panel_bytes);
        hc_store(max + j, new_max);
        hc_store(sum + j, hc_add(before, total));
        hc_store(out_factor + j, factor);
    }
}

/* One copy of the loop per panel type, so that no loop tests it. Only AVX-512 kernels receive HC_PANEL_PARTS. */
HC_KERNEL_FUNCTION HC_PAIRS_TARGET void HC_NAME(attention_softmax)(int64_t rows, int64_t columns, int64_t width,
                                                                   float scale, int first, int panel, float *scores,
                                                                   void *out_p, int64_t panel_bytes, float *max, float *sum,
                                                                   float *out_factor) HC_KERNEL_STREAMING {
    if (panel == HC_PANEL_F32) {
        softmax(HC_PANEL_F32, rows, columns, width, scale, first, scores, out_p, panel_bytes, max, sum, out_factor);
    } else if (panel == HC_PANEL_ROUNDED) {
        softmax(HC_PANEL_ROUNDED, rows, columns, width, scale, first, scores, out_p, panel_bytes, max, sum, out_factor);
    } else if (panel == HC_PANEL_PAIRS) {
        softmax(HC_PANEL_PAIRS, rows, columns, width, scale, first, scores, out_p, panel_bytes, max, sum, out_factor);
#ifdef HC_TARGET_AVX512
    } else {
        softmax(HC_PANEL_PARTS, rows, columns, width, scale, first, scores, out_p, panel_bytes, max, sum, out_factor);
#endif
    }
}

HC_KERNEL_FUNCTION void HC_NAME(attention_finish)(int64_t columns, float scale, const float *max, float *sum,
                                                  float *out_lse) HC_KERNEL_STREAMING {
    for (int64_t j = 0; j < columns; j++) {
        /* The largest score adds 1 to the sum. A sum near 0 means that all scores are -inf. Output and lse are then 0,
         * as in PyTorch's flash kernel. */
        const int none = sum[j] < 0.5f;
        out_lse[j] = none ? 0.0f : max[j] * scale + logarithm(sum[j]);
        sum[j] = none ? 0.0f : 1.0f / sum[j];
    }
}

HC_KERNEL_FUNCTION void HC_NAME(attention_rescale)(int64_t rows, int64_t columns, int64_t width, const float *factor,
                                                   float *block) HC_KERNEL_STREAMING {
    for (int64_t j = 0; j < columns; j += hc_lanes()) {
        const hc_vf f = hc_load(factor + j);
        for (int64_t i = 0; i < rows; i++) {
            hc_store(block + i * width + j, hc_mul(hc_load(block + i * width + j), f));
        }
    }
}

HC_KERNEL_FUNCTION void HC_NAME(attention_delta)(int64_t rows, int64_t columns, const void *x, int x_type, const void *y,
                                                 int y_type, int64_t stride, float *out) HC_KERNEL_STREAMING {
    const int64_t lanes = hc_lanes();
    for (int64_t i = 0; i < rows; i++) {
        hc_vf sum = hc_zero();
        int64_t j = 0;
        for (; j + lanes <= columns; j += lanes) {
            sum = hc_fma(hc_load_as(x, i * stride + j, x_type), hc_load_as(y, i * stride + j, y_type), sum);
        }
        if (j < columns) {
            sum = hc_fma(hc_load_as_n(x, i * stride + j, columns - j, x_type),
                         hc_load_as_n(y, i * stride + j, columns - j, y_type), sum);
        }
        out[i] = hc_sum(sum);
    }
}

/* Return e^x for x <= 0 (and rounding errors above), with the precision of the panel type. The bound keeps an lse of
 * different scores in the range of hc_exp2_coarse. The forward pass uses hc_exp2 for all panels, because lse is
 * fp32. */
HC_INLINE hc_vf exponential(int panel, hc_vf x) HC_STREAMING_OK {
    const hc_vf binary = hc_mul(x, hc_set(LOG2_E));
    return panel == HC_PANEL_F32 ? hc_exp2(binary) : hc_exp2_coarse(hc_min(hc_set(126.0f), binary));
}

/* Compute rows i and i + 1. second: 0 for a last row without a partner, which is then computed twice. */
HC_INLINE HC_PAIRS_TARGET void gradient_of_two(int panel, int second, int64_t i,
                                               const hc_attention_rows *block) HC_STREAMING_OK {
    const int64_t next = second ? 1 : 0, width = block->width;
    const hc_vf scale = hc_set(block->scale);
    const hc_vf even_lse = hc_set(-block->lse[i]), odd_lse = hc_set(-block->lse[i + next]);
    const hc_vf even_delta = hc_set(block->delta[i]), odd_delta = hc_set(block->delta[i + next]);
    for (int64_t j = 0; j < block->columns; j += hc_lanes()) {
        const int64_t even_at = i * width + j, odd_at = even_at + next * width;
        const hc_vf even_p = exponential(panel, hc_fma(hc_load(block->scores + even_at), scale, even_lse));
        const hc_vf odd_p = exponential(panel, hc_fma(hc_load(block->scores + odd_at), scale, odd_lse));
        const hc_vf even_ds = hc_mul(even_p, hc_sub(hc_load(block->dp + even_at), even_delta));
        const hc_vf odd_ds = hc_mul(odd_p, hc_sub(hc_load(block->dp + odd_at), odd_delta));
        if (panel == HC_PANEL_PAIRS) {
            hc_store(block->dp + even_at, even_ds);
            hc_store(block->dp + odd_at, odd_ds);
        }
        store_two(panel, second, block->out_p, width, 0, i, j, even_p, second ? odd_p : hc_zero());
        store_two(panel, second, block->out_ds, width, 0, i, j, even_ds, second ? odd_ds : hc_zero());
    }
}

HC_INLINE HC_PAIRS_TARGET void gradient(int panel, const hc_attention_rows *block) HC_STREAMING_OK {
    int64_t i = 0;
    for (; i + 2 <= block->rows; i += 2) {
        gradient_of_two(panel, 1, i, block);
    }
    if (i < block->rows) {
        gradient_of_two(panel, 0, i, block);
    }
}

HC_KERNEL_FUNCTION HC_PAIRS_TARGET void HC_NAME(attention_gradient)(const hc_attention_rows *block) HC_KERNEL_STREAMING {
    const hc_attention_rows all = *block; /* a copy, so that stores cannot alias its fields */
    if (all.panel == HC_PANEL_F32) {
        gradient(HC_PANEL_F32, &all);
    } else if (all.panel == HC_PANEL_ROUNDED) {
        gradient(HC_PANEL_ROUNDED, &all);
    } else if (all.panel == HC_PANEL_PAIRS) {
        gradient(HC_PANEL_PAIRS, &all);
#ifdef HC_TARGET_AVX512
    } else {
        hc_gradient_in_parts(&all);
#endif
    }
}

HC_KERNEL_FUNCTION void HC_NAME(attention_store)(int64_t rows, int64_t columns, float factor, const float *source,
                                                 int64_t source_stride, void *out, int out_type,
                                                 int64_t out_stride) HC_KERNEL_STREAMING {
    const int64_t lanes = hc_lanes();
    const hc_vf f = hc_set(factor);
    for (int64_t i = 0; i < rows; i++) {
        const float *row = source + i * source_stride;
        int64_t j = 0;
        for (; j + lanes <= columns; j += lanes) {
            hc_store_as(out, i * out_stride + j, out_type, hc_mul(hc_load(row + j), f));
        }
        if (j < columns) {
            hc_store_as_n(out, i * out_stride + j, columns - j, out_type, hc_mul(hc_load_n(row + j, columns - j), f));
        }
    }
}
