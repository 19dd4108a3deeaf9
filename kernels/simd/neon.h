/* Vector layer for Armv8 NEON (ASIMD): 4 fp32 lanes. */
#ifndef HC_SIMD_NEON_H
#define HC_SIMD_NEON_H

#if !defined(__aarch64__) || !defined(__ARM_NEON)
#error "HC_TARGET_NEON needs a 64-bit Arm compiler with NEON"
#endif

#include <arm_neon.h>

typedef float32x4_t hc_vf;
typedef float64x2_t hc_wide;
typedef uint32x4_t hc_mask;

HC_INLINE int64_t hc_lanes(void) { return 4; }

HC_INLINE hc_vf hc_load(const float *p) { return vld1q_f32(p); }
HC_INLINE hc_vf hc_load_n(const float *p, int64_t n) {
    float values[4] = {0.0f};
    for (int64_t i = 0; i < n; i++) {
        values[i] = p[i];
    }
    return vld1q_f32(values);
}
HC_INLINE void hc_store(float *p, hc_vf v) { vst1q_f32(p, v); }
HC_INLINE void hc_store_n(float *p, int64_t n, hc_vf v) {
    float values[4];
    vst1q_f32(values, v);
    for (int64_t i = 0; i < n; i++) {
        p[i] = values[i];
    }
}

/* Round v to bf16, in the high halves of the lanes. Adding just under half of the last place, plus the last bit, rounds
 * to nearest even. A nan could overflow, so it is kept and made quiet. */
HC_INLINE uint32x4_t hc_round_to_bf16_(hc_vf v) {
    const uint32x4_t bits = vreinterpretq_u32_f32(v);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t sum = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    return vbslq_u32(vceqq_f32(v, v), sum, vorrq_u32(bits, vdupq_n_u32(0x400000)));
}
HC_INLINE uint16x4_t hc_to_bf16_(hc_vf v) { return vshrn_n_u32(hc_round_to_bf16_(v), 16); }
HC_INLINE hc_vf hc_load_bf16(const uint16_t *p) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(p)), 16));
}
HC_INLINE hc_vf hc_load_bf16_n(const uint16_t *p, int64_t n) {
    uint16_t values[4] = {0};
    for (int64_t i = 0; i < n; i++) {
        values[i] = p[i];
    }
    return hc_load_bf16(values);
}
HC_INLINE void hc_store_bf16(uint16_t *p, hc_vf v) { vst1_u16(p, hc_to_bf16_(v)); }
HC_INLINE void hc_store_bf16_n(uint16_t *p, int64_t n, hc_vf v) {
    uint16_t values[4];
    hc_store_bf16(values, v);
    for (int64_t i = 0; i < n; i++) {
        p[i] = values[i];
    }
}

HC_INLINE hc_vf hc_as_bf16(hc_vf v) {
    return vreinterpretq_f32_u32(vandq_u32(hc_round_to_bf16_(v), vdupq_n_u32(0xffff0000u)));
}
HC_INLINE void hc_store_exact_bf16(uint16_t *p, hc_vf v) { vst1_u16(p, vshrn_n_u32(vreinterpretq_u32_f32(v), 16)); }
HC_INLINE hc_vf hc_load_bf16_even(const uint16_t *p) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_u16(vld1q_u16(p)), 16));
}
HC_INLINE hc_vf hc_load_bf16_odd(const uint16_t *p) {
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_u16(vld1q_u16(p)), vdupq_n_u32(0xffff0000u)));
}
HC_INLINE void hc_store_bf16_pair(uint16_t *p, hc_vf even, hc_vf odd) {
    const uint32x4_t pairs = vsriq_n_u32(hc_round_to_bf16_(odd), hc_round_to_bf16_(even), 16);
    vst1q_u16(p, vreinterpretq_u16_u32(pairs));
}
HC_INLINE void hc_stream_bf16_pair(uint16_t *p, hc_vf even, hc_vf odd) { hc_store_bf16_pair(p, even, odd); }

HC_INLINE hc_vf hc_evens(hc_vf a, hc_vf b) { return vuzp1q_f32(a, b); }
HC_INLINE hc_vf hc_odds(hc_vf a, hc_vf b) { return vuzp2q_f32(a, b); }
HC_INLINE hc_vf hc_zip_first(hc_vf even, hc_vf odd) { return vzip1q_f32(even, odd); }
HC_INLINE hc_vf hc_zip_second(hc_vf even, hc_vf odd) { return vzip2q_f32(even, odd); }

/* NEON has no non-temporal store of one vector, only of pairs and as a hint. */
HC_INLINE void hc_stream(float *p, hc_vf v) { hc_store(p, v); }
HC_INLINE void hc_stream_bf16(uint16_t *p, hc_vf v) { hc_store_bf16(p, v); }
HC_INLINE void hc_stream_end(void) {}
HC_INLINE void hc_prefetch(const void *p) { __builtin_prefetch(p); }
HC_INLINE void hc_prefetch_far(const void *p) { __builtin_prefetch(p, 0, 2); }
HC_INLINE void hc_prefetch_to_write(const void *p) { __builtin_prefetch(p, 1, 3); }

HC_INLINE hc_vf hc_set(float value) { return vdupq_n_f32(value); }
HC_INLINE hc_vf hc_zero(void) { return vdupq_n_f32(0.0f); }
HC_INLINE hc_vf hc_add(hc_vf a, hc_vf b) { return vaddq_f32(a, b); }
HC_INLINE hc_vf hc_sub(hc_vf a, hc_vf b) { return vsubq_f32(a, b); }
HC_INLINE hc_vf hc_mul(hc_vf a, hc_vf b) { return vmulq_f32(a, b); }
HC_INLINE hc_vf hc_div(hc_vf a, hc_vf b) { return vdivq_f32(a, b); }
HC_INLINE hc_vf hc_sqrt(hc_vf a) { return vsqrtq_f32(a); }
HC_INLINE hc_vf hc_abs(hc_vf a) { return vabsq_f32(a); }
HC_INLINE hc_vf hc_negate(hc_vf a) { return vnegq_f32(a); }
HC_INLINE hc_vf hc_max(hc_vf a, hc_vf b) { return vmaxq_f32(a, b); }
HC_INLINE hc_vf hc_min(hc_vf a, hc_vf b) { return vminq_f32(a, b); }
HC_INLINE hc_vf hc_round(hc_vf a) { return vrndnq_f32(a); }
HC_INLINE hc_vf hc_fma(hc_vf a, hc_vf b, hc_vf c) { return vfmaq_f32(c, a, b); }
HC_INLINE hc_vf hc_fnma(hc_vf a, hc_vf b, hc_vf c) { return vfmsq_f32(c, a, b); }
HC_INLINE hc_vf hc_copy_sign(hc_vf a, hc_vf sign) { return vbslq_f32(vdupq_n_u32(0x80000000u), sign, a); }

HC_INLINE float hc_sum(hc_vf v) { return vaddvq_f32(v); }
HC_INLINE float hc_largest(hc_vf v) { return vmaxvq_f32(v); }

HC_INLINE hc_mask hc_first(int64_t n) {
    static const uint32_t lane[4] = {0, 1, 2, 3};
    return vcgtq_u32(vdupq_n_u32((uint32_t)n), vld1q_u32(lane));
}
HC_INLINE hc_mask hc_greater(hc_vf a, hc_vf b) { return vcgtq_f32(a, b); }
HC_INLINE hc_mask hc_is_nan(hc_vf a) { return vmvnq_u32(vceqq_f32(a, a)); }
HC_INLINE hc_vf hc_select(hc_mask mask, hc_vf yes, hc_vf no) { return vbslq_f32(mask, yes, no); }

HC_INLINE hc_vf hc_power_of_integer_(int32x4_t n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
}
HC_INLINE hc_vf hc_power_of_two(hc_vf n) { return hc_power_of_integer_(vcvtq_s32_f32(n)); }
/* Multiply by two factors that are normal numbers. The first product is exact, and the second is rounded. */
HC_INLINE hc_vf hc_scale(hc_vf v, hc_vf n) {
    const int32x4_t integer = vcvtq_s32_f32(n);
    const int32x4_t half = vshrq_n_s32(integer, 1);
    return hc_mul(hc_mul(v, hc_power_of_integer_(half)), hc_power_of_integer_(vsubq_s32(integer, half)));
}

#define HC_SCALE_TAKES_ALL 0
HC_INLINE hc_vf hc_within(hc_vf v, float limit) { return hc_min(hc_set(limit), hc_max(hc_set(-limit), v)); }
HC_INLINE hc_vf hc_floor_(hc_vf t) { return vrndmq_f32(t); }
HC_INLINE hc_vf hc_fraction(hc_vf t) { return hc_sub(t, hc_floor_(t)); }
HC_INLINE hc_vf hc_scale_floor(hc_vf v, hc_vf t) { return hc_scale(v, hc_floor_(t)); }

HC_INLINE hc_wide hc_wide_zero(void) { return vdupq_n_f64(0.0); }
HC_INLINE hc_wide hc_wide_first(hc_vf v) { return vcvt_f64_f32(vget_low_f32(v)); }
HC_INLINE hc_wide hc_wide_second(hc_vf v) { return vcvt_high_f64_f32(v); }
HC_INLINE hc_wide hc_wide_add(hc_wide a, hc_wide b) { return vaddq_f64(a, b); }
HC_INLINE hc_wide hc_wide_sub(hc_wide a, hc_wide b) { return vsubq_f64(a, b); }
HC_INLINE hc_wide hc_wide_fma(hc_wide a, hc_wide b, hc_wide c) { return vfmaq_f64(c, a, b); }
HC_INLINE double hc_wide_sum(hc_wide v) { return vaddvq_f64(v); }

#endif
