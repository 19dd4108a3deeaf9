/* Vector layer in portable C: vectors of one number. */
#ifndef HC_SIMD_REF_H
#define HC_SIMD_REF_H

#include <math.h>

typedef float hc_vf;
typedef double hc_wide;
typedef int hc_mask;

HC_INLINE int64_t hc_lanes(void) { return 1; }

HC_INLINE hc_vf hc_load(const float *p) { return *p; }
HC_INLINE hc_vf hc_load_n(const float *p, int64_t n) { return n > 0 ? *p : 0.0f; }
HC_INLINE void hc_store(float *p, hc_vf v) { *p = v; }
HC_INLINE void hc_store_n(float *p, int64_t n, hc_vf v) {
    if (n > 0) {
        *p = v;
    }
}

HC_INLINE hc_vf hc_load_bf16(const uint16_t *p) {
    const uint32_t bits = (uint32_t)*p << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
HC_INLINE hc_vf hc_load_bf16_n(const uint16_t *p, int64_t n) { return n > 0 ? hc_load_bf16(p) : 0.0f; }
HC_INLINE void hc_store_bf16(uint16_t *p, hc_vf v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    /* Adding just under half of the last place, plus the last bit, rounds to nearest even. A nan could overflow, so it
     * is kept. */
    *p = (uint16_t)(v != v ? (bits >> 16 | 0x40u) : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
HC_INLINE void hc_store_bf16_n(uint16_t *p, int64_t n, hc_vf v) {
    if (n > 0) {
        hc_store_bf16(p, v);
    }
}

HC_INLINE hc_vf hc_as_bf16(hc_vf v) {
    uint16_t bits;
    hc_store_bf16(&bits, v);
    return hc_load_bf16(&bits);
}
HC_INLINE void hc_store_exact_bf16(uint16_t *p, hc_vf v) { hc_store_bf16(p, v); }
HC_INLINE hc_vf hc_load_bf16_even(const uint16_t *p) { return hc_load_bf16(p); }
HC_INLINE hc_vf hc_load_bf16_odd(const uint16_t *p) { return hc_load_bf16(p + 1); }
HC_INLINE void hc_store_bf16_pair(uint16_t *p, hc_vf even, hc_vf odd) {
    hc_store_bf16(p, even);
    hc_store_bf16(p + 1, odd);
}
HC_INLINE void hc_stream_bf16_pair(uint16_t *p, hc_vf even, hc_vf odd) { hc_store_bf16_pair(p, even, odd); }

HC_INLINE hc_vf hc_evens(hc_vf a, hc_vf b) {
    (void)b;
    return a;
}
HC_INLINE hc_vf hc_odds(hc_vf a, hc_vf b) {
    (void)a;
    return b;
}
HC_INLINE hc_vf hc_zip_first(hc_vf even, hc_vf odd) {
    (void)odd;
    return even;
}
HC_INLINE hc_vf hc_zip_second(hc_vf even, hc_vf odd) {
    (void)even;
    return odd;
}

HC_INLINE void hc_stream(float *p, hc_vf v) { *p = v; }
HC_INLINE void hc_stream_bf16(uint16_t *p, hc_vf v) { hc_store_bf16(p, v); }
HC_INLINE void hc_stream_end(void) {}
HC_INLINE void hc_prefetch(const void *p) { (void)p; }
HC_INLINE void hc_prefetch_far(const void *p) { (void)p; }
HC_INLINE void hc_prefetch_to_write(const void *p) { (void)p; }

HC_INLINE hc_vf hc_set(float value) { return value; }
HC_INLINE hc_vf hc_zero(void) { return 0.0f; }
HC_INLINE hc_vf hc_add(hc_vf a, hc_vf b) { return a + b; }
HC_INLINE hc_vf hc_sub(hc_vf a, hc_vf b) { return a - b; }
HC_INLINE hc_vf hc_mul(hc_vf a, hc_vf b) { return a * b; }
HC_INLINE hc_vf hc_div(hc_vf a, hc_vf b) { return a / b; }
HC_INLINE hc_vf hc_sqrt(hc_vf a) { return sqrtf(a); }
HC_INLINE hc_vf hc_abs(hc_vf a) { return fabsf(a); }
HC_INLINE hc_vf hc_negate(hc_vf a) { return -a; }
HC_INLINE hc_vf hc_max(hc_vf a, hc_vf b) { return a > b ? a : b; }
HC_INLINE hc_vf hc_min(hc_vf a, hc_vf b) { return a < b ? a : b; }
HC_INLINE hc_vf hc_round(hc_vf a) { return rintf(a); }
/* fmaf is slow on CPUs without an FMA instruction. The product is exact in fp64, so only the sum is rounded twice. */
HC_INLINE hc_vf hc_fma(hc_vf a, hc_vf b, hc_vf c) { return (float)((double)a * (double)b + (double)c); }
HC_INLINE hc_vf hc_fnma(hc_vf a, hc_vf b, hc_vf c) { return (float)((double)c - (double)a * (double)b); }
HC_INLINE hc_vf hc_copy_sign(hc_vf a, hc_vf sign) { return copysignf(a, sign); }

HC_INLINE float hc_sum(hc_vf v) { return v; }
HC_INLINE float hc_largest(hc_vf v) { return v; }

HC_INLINE hc_mask hc_first(int64_t n) { return n > 0; }
HC_INLINE hc_mask hc_greater(hc_vf a, hc_vf b) { return a > b; }
HC_INLINE hc_mask hc_is_nan(hc_vf a) { return a != a; }
HC_INLINE hc_vf hc_select(hc_mask mask, hc_vf yes, hc_vf no) { return mask ? yes : no; }

HC_INLINE hc_vf hc_power_of_two(hc_vf n) {
    /* A nan has no integer value, so any power serves: the factor that it multiplies is nan. */
    const uint32_t bits = (uint32_t)((n == n ? (int32_t)n : 0) + 127) << 23;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
HC_INLINE hc_vf hc_scale(hc_vf v, hc_vf n) {
    const float half = rintf(0.5f * n);
    return v * hc_power_of_two(half) * hc_power_of_two(n - half);
}

#define HC_SCALE_TAKES_ALL 0
HC_INLINE hc_vf hc_within(hc_vf v, float limit) { return hc_min(hc_set(limit), hc_max(hc_set(-limit), v)); }
HC_INLINE hc_vf hc_floor_(hc_vf t) { return floorf(t); }
HC_INLINE hc_vf hc_fraction(hc_vf t) { return hc_sub(t, hc_floor_(t)); }
HC_INLINE hc_vf hc_scale_floor(hc_vf v, hc_vf t) { return hc_scale(v, hc_floor_(t)); }

HC_INLINE hc_wide hc_wide_zero(void) { return 0.0; }
HC_INLINE hc_wide hc_wide_first(hc_vf v) { return (double)v; }
HC_INLINE hc_wide hc_wide_second(hc_vf v) {
    (void)v;
    return 0.0;
}
HC_INLINE hc_wide hc_wide_add(hc_wide a, hc_wide b) { return a + b; }
HC_INLINE hc_wide hc_wide_sub(hc_wide a, hc_wide b) { return a - b; }
HC_INLINE hc_wide hc_wide_fma(hc_wide a, hc_wide b, hc_wide c) { return a * b + c; }
HC_INLINE double hc_wide_sum(hc_wide v) { return v; }

#endif
