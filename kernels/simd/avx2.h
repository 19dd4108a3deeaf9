/* Vector layer for AVX2 with FMA: 8 fp32 lanes. */
#ifndef HC_SIMD_AVX2_H
#define HC_SIMD_AVX2_H

#if !defined(__AVX2__) || !defined(__FMA__)
#error "HC_TARGET_AVX2 needs -mavx2 -mfma"
#endif

#include <immintrin.h>

typedef __m256 hc_vf;
typedef __m256d hc_wide;
typedef __m256 hc_mask;

HC_INLINE int64_t hc_lanes(void) { return 8; }
HC_INLINE __m256i hc_first_(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

HC_INLINE hc_vf hc_load(const float *p) { return _mm256_loadu_ps(p); }
HC_INLINE hc_vf hc_load_n(const float *p, int64_t n) { return _mm256_maskload_ps(p, hc_first_(n)); }
HC_INLINE void hc_store(float *p, hc_vf v) { _mm256_storeu_ps(p, v); }
HC_INLINE void hc_store_n(float *p, int64_t n, hc_vf v) { _mm256_maskstore_ps(p, hc_first_(n), v); }

HC_INLINE hc_vf hc_from_bf16_(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
/* Round v to bf16, in the high halves of the lanes. Adding just under half of the last place, plus the last bit, rounds
 * to nearest even. A nan could overflow, so it is kept and made quiet. */
HC_INLINE __m256i hc_round_to_bf16_(hc_vf v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(sum, _mm256_or_si256(bits, _mm256_set1_epi32(0x400000)), nan);
}
HC_INLINE __m128i hc_to_bf16_(hc_vf v) {
    const __m256i words = _mm256_srli_epi32(hc_round_to_bf16_(v), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
HC_INLINE hc_vf hc_load_bf16(const uint16_t *p) { return hc_from_bf16_(_mm_loadu_si128((const __m128i *)p)); }
HC_INLINE hc_vf hc_load_bf16_n(const uint16_t *p, int64_t n) {
    uint16_t values[8] = {0};
    for (int64_t i = 0; i < n; i++) {
        values[i] = p[i];
    }
    return hc_load_bf16(values);
}
HC_INLINE void hc_store_bf16(uint16_t *p, hc_vf v) { _mm_storeu_si128((__m128i *)p, hc_to_bf16_(v)); }
HC_INLINE void hc_store_bf16_n(uint16_t *p, int64_t n, hc_vf v) {
    uint16_t values[8];
    hc_store_bf16(values, v);
    for (int64_t i = 0; i < n; i++) {
        p[i] = values[i];
    }
}

HC_INLINE hc_vf hc_as_bf16(hc_vf v) {
    return _mm256_castsi256_ps(_mm256_and_si256(hc_round_to_bf16_(v), _mm256_set1_epi32((int)0xffff0000u)));
}
HC_INLINE void hc_store_exact_bf16(uint16_t *p, hc_vf v) { hc_store_bf16(p, v); }
HC_INLINE hc_vf hc_load_bf16_even(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)p), 16));
}
HC_INLINE hc_vf hc_load_bf16_odd(const uint16_t *p) {
    const __m256i high_halves = _mm256_set1_epi32((int)0xffff0000u);
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256((const __m256i *)p), high_halves));
}
HC_INLINE __m256i hc_pair_to_bf16_(hc_vf even, hc_vf odd) {
    return _mm256_blend_epi16(_mm256_srli_epi32(hc_round_to_bf16_(even), 16), hc_round_to_bf16_(odd), 0xaa);
}
HC_INLINE void hc_store_bf16_pair(uint16_t *p, hc_vf even, hc_vf odd) {
    _mm256_storeu_si256((__m256i *)p, hc_pair_to_bf16_(even, odd));
}
HC_INLINE void hc_stream_bf16_pair(uint16_t *p, hc_vf even, hc_vf odd) {
    _mm256_stream_si256((__m256i *)p, hc_pair_to_bf16_(even, odd));
}

/* AVX2 shuffles work within halves of 4 lanes. A permutation afterwards orders their quarters, or selects halves. */
HC_INLINE hc_vf hc_in_order_(hc_vf v) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), _MM_SHUFFLE(3, 1, 2, 0)));
}
HC_INLINE hc_vf hc_evens(hc_vf a, hc_vf b) { return hc_in_order_(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(2, 0, 2, 0))); }
HC_INLINE hc_vf hc_odds(hc_vf a, hc_vf b) { return hc_in_order_(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(3, 1, 3, 1))); }
HC_INLINE hc_vf hc_zip_first(hc_vf even, hc_vf odd) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd), 0x20);
}
HC_INLINE hc_vf hc_zip_second(hc_vf even, hc_vf odd) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd), 0x31);
}

HC_INLINE void hc_stream(float *p, hc_vf v) { _mm256_stream_ps(p, v); }
HC_INLINE void hc_stream_bf16(uint16_t *p, hc_vf v) { _mm_stream_si128((__m128i *)p, hc_to_bf16_(v)); }
HC_INLINE void hc_stream_end(void) { _mm_sfence(); }
HC_INLINE void hc_prefetch(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
HC_INLINE void hc_prefetch_far(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }
HC_INLINE void hc_prefetch_to_write(const void *p) { __builtin_prefetch(p, 1, 3); }

HC_INLINE hc_vf hc_set(float value) { return _mm256_set1_ps(value); }
HC_INLINE hc_vf hc_zero(void) { return _mm256_setzero_ps(); }
HC_INLINE hc_vf hc_add(hc_vf a, hc_vf b) { return _mm256_add_ps(a, b); }
HC_INLINE hc_vf hc_sub(hc_vf a, hc_vf b) { return _mm256_sub_ps(a, b); }
HC_INLINE hc_vf hc_mul(hc_vf a, hc_vf b) { return _mm256_mul_ps(a, b); }
HC_INLINE hc_vf hc_div(hc_vf a, hc_vf b) { return _mm256_div_ps(a, b); }
HC_INLINE hc_vf hc_sqrt(hc_vf a) { return _mm256_sqrt_ps(a); }
HC_INLINE hc_vf hc_abs(hc_vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
HC_INLINE hc_vf hc_negate(hc_vf a) { return _mm256_xor_ps(_mm256_set1_ps(-0.0f), a); }
HC_INLINE hc_vf hc_max(hc_vf a, hc_vf b) { return _mm256_max_ps(a, b); }
HC_INLINE hc_vf hc_min(hc_vf a, hc_vf b) { return _mm256_min_ps(a, b); }
HC_INLINE hc_vf hc_round(hc_vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
HC_INLINE hc_vf hc_fma(hc_vf a, hc_vf b, hc_vf c) { return _mm256_fmadd_ps(a, b, c); }
HC_INLINE hc_vf hc_fnma(hc_vf a, hc_vf b, hc_vf c) { return _mm256_fnmadd_ps(a, b, c); }
HC_INLINE hc_vf hc_copy_sign(hc_vf a, hc_vf sign) {
    return _mm256_or_ps(hc_abs(a), _mm256_and_ps(_mm256_set1_ps(-0.0f), sign));
}

/* Reduce by adding halves: lanes i and i + 4, then i + 2, i + 1. */
HC_INLINE float hc_sum(hc_vf v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
HC_INLINE float hc_largest(hc_vf v) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

HC_INLINE hc_mask hc_first(int64_t n) { return _mm256_castsi256_ps(hc_first_(n)); }
HC_INLINE hc_mask hc_greater(hc_vf a, hc_vf b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
HC_INLINE hc_mask hc_is_nan(hc_vf a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
HC_INLINE hc_vf hc_select(hc_mask mask, hc_vf yes, hc_vf no) { return _mm256_blendv_ps(no, yes, mask); }

HC_INLINE hc_vf hc_power_of_integer_(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
HC_INLINE hc_vf hc_power_of_two(hc_vf n) { return hc_power_of_integer_(_mm256_cvtps_epi32(n)); }
/* Multiply by two factors that are normal numbers. The first product is exact, and the second is rounded. */
HC_INLINE hc_vf hc_scale(hc_vf v, hc_vf n) {
    const __m256i integer = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(integer, 1);
    return hc_mul(hc_mul(v, hc_power_of_integer_(half)), hc_power_of_integer_(_mm256_sub_epi32(integer, half)));
}

#define HC_SCALE_TAKES_ALL 0
HC_INLINE hc_vf hc_within(hc_vf v, float limit) { return hc_min(hc_set(limit), hc_max(hc_set(-limit), v)); }
HC_INLINE hc_vf hc_floor_(hc_vf t) { return _mm256_floor_ps(t); }
HC_INLINE hc_vf hc_fraction(hc_vf t) { return hc_sub(t, hc_floor_(t)); }
HC_INLINE hc_vf hc_scale_floor(hc_vf v, hc_vf t) { return hc_scale(v, hc_floor_(t)); }

HC_INLINE hc_wide hc_wide_zero(void) { return _mm256_setzero_pd(); }
HC_INLINE hc_wide hc_wide_first(hc_vf v) { return _mm256_cvtps_pd(_mm256_castps256_ps128(v)); }
HC_INLINE hc_wide hc_wide_second(hc_vf v) { return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)); }
HC_INLINE hc_wide hc_wide_add(hc_wide a, hc_wide b) { return _mm256_add_pd(a, b); }
HC_INLINE hc_wide hc_wide_sub(hc_wide a, hc_wide b) { return _mm256_sub_pd(a, b); }
HC_INLINE hc_wide hc_wide_fma(hc_wide a, hc_wide b, hc_wide c) { return _mm256_fmadd_pd(a, b, c); }
HC_INLINE double hc_wide_sum(hc_wide v) {
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

#endif
