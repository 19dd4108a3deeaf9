/* Vector layer for AVX-512 (F, BW, DQ, VL): 16 fp32 lanes. */
#ifndef HC_SIMD_AVX512_H
#define HC_SIMD_AVX512_H

#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) || !defined(__AVX512VL__)
#error "HC_TARGET_AVX512 needs -mavx512f -mavx512bw -mavx512dq -mavx512vl"
#endif

#include <immintrin.h>

typedef __m512 hc_vf;
typedef __m512d hc_wide;
typedef __mmask16 hc_mask;

HC_INLINE int64_t hc_lanes(void) { return 16; }
HC_INLINE __mmask16 hc_first_(int64_t n) { return (__mmask16)((1u << n) - 1u); }

HC_INLINE hc_vf hc_load(const float *p) { return _mm512_loadu_ps(p); }
HC_INLINE hc_vf hc_load_n(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(hc_first_(n), p); }
HC_INLINE void hc_store(float *p, hc_vf v) { _mm512_storeu_ps(p, v); }
HC_INLINE void hc_store_n(float *p, int64_t n, hc_vf v) { _mm512_mask_storeu_ps(p, hc_first_(n), v); }

HC_INLINE hc_vf hc_from_bf16_(__m256i bits) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
/* Round v to bf16, in the high halves of the lanes. vcvtneps2bf16 is not used, because it requires AVX512_BF16 and
 * flushes denormals. Adding just under half of the last place, plus the last bit, rounds to nearest even. A nan could
 * overflow, so it is kept and made quiet. */
HC_INLINE __m512i hc_round_to_bf16_(hc_vf v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    const __m512i sum = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_mask_add_epi32(sum, odd, bits, _mm512_set1_epi32(0x8000));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
}
HC_INLINE __m256i hc_to_bf16_(hc_vf v) {
    const __m512i high_halves = _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* unused */
                                                 31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return _mm512_castsi512_si256(_mm512_permutexvar_epi16(high_halves, hc_round_to_bf16_(v)));
}
HC_INLINE hc_vf hc_load_bf16(const uint16_t *p) { return hc_from_bf16_(_mm256_loadu_si256((const __m256i *)p)); }
HC_INLINE hc_vf hc_load_bf16_n(const uint16_t *p, int64_t n) {
    return hc_from_bf16_(_mm256_maskz_loadu_epi16(hc_first_(n), p));
}
HC_INLINE void hc_store_bf16(uint16_t *p, hc_vf v) { _mm256_storeu_si256((__m256i *)p, hc_to_bf16_(v)); }
HC_INLINE void hc_store_bf16_n(uint16_t *p, int64_t n, hc_vf v) {
    _mm256_mask_storeu_epi16(p, hc_first_(n), hc_to_bf16_(v));
}

HC_INLINE hc_vf hc_as_bf16(hc_vf v) {
    return _mm512_castsi512_ps(_mm512_and_si512(hc_round_to_bf16_(v), _mm512_set1_epi32((int)0xffff0000u)));
}
HC_INLINE void hc_store_exact_bf16(uint16_t *p, hc_vf v) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(v), 16)));
}
HC_INLINE hc_vf hc_load_bf16_even(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}
HC_INLINE hc_vf hc_load_bf16_odd(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32((int)0xffff0000u)));
}
HC_INLINE __m512i hc_pair_to_bf16_(hc_vf even, hc_vf odd) {
    const __m512i low = _mm512_srli_epi32(hc_round_to_bf16_(even), 16);
    return _mm512_mask_blend_epi16(0xaaaaaaaau, low, hc_round_to_bf16_(odd));
}
HC_INLINE void hc_store_bf16_pair(uint16_t *p, hc_vf even, hc_vf odd) { _mm512_storeu_si512(p, hc_pair_to_bf16_(even, odd)); }
HC_INLINE void hc_stream_bf16_pair(uint16_t *p, hc_vf even, hc_vf odd) {
    _mm512_stream_si512((__m512i *)p, hc_pair_to_bf16_(even, odd));
}

/* Indices from 16 on are lanes of the second vector. */
HC_INLINE hc_vf hc_evens(hc_vf a, hc_vf b) {
    const __m512i lanes = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_ps(a, lanes, b);
}
HC_INLINE hc_vf hc_odds(hc_vf a, hc_vf b) {
    const __m512i lanes = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return _mm512_permutex2var_ps(a, lanes, b);
}
HC_INLINE hc_vf hc_zip_first(hc_vf even, hc_vf odd) {
    const __m512i lanes = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    return _mm512_permutex2var_ps(even, lanes, odd);
}
HC_INLINE hc_vf hc_zip_second(hc_vf even, hc_vf odd) {
    const __m512i lanes = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    return _mm512_permutex2var_ps(even, lanes, odd);
}

HC_INLINE void hc_stream(float *p, hc_vf v) { _mm512_stream_ps(p, v); }
HC_INLINE void hc_stream_bf16(uint16_t *p, hc_vf v) { _mm256_stream_si256((__m256i *)p, hc_to_bf16_(v)); }
HC_INLINE void hc_stream_end(void) { _mm_sfence(); }
HC_INLINE void hc_prefetch(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
HC_INLINE void hc_prefetch_far(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }
HC_INLINE void hc_prefetch_to_write(const void *p) { __builtin_prefetch(p, 1, 3); }

HC_INLINE hc_vf hc_set(float value) { return _mm512_set1_ps(value); }
HC_INLINE hc_vf hc_zero(void) { return _mm512_setzero_ps(); }
HC_INLINE hc_vf hc_add(hc_vf a, hc_vf b) { return _mm512_add_ps(a, b); }
HC_INLINE hc_vf hc_sub(hc_vf a, hc_vf b) { return _mm512_sub_ps(a, b); }
HC_INLINE hc_vf hc_mul(hc_vf a, hc_vf b) { return _mm512_mul_ps(a, b); }
HC_INLINE hc_vf hc_div(hc_vf a, hc_vf b) { return _mm512_div_ps(a, b); }
HC_INLINE hc_vf hc_reciprocal_coarse(hc_vf a) { return _mm512_rcp14_ps(a); }
HC_INLINE hc_vf hc_sqrt(hc_vf a) { return _mm512_sqrt_ps(a); }
HC_INLINE hc_vf hc_abs(hc_vf a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
HC_INLINE hc_vf hc_negate(hc_vf a) { return _mm512_xor_ps(_mm512_set1_ps(-0.0f), a); }
HC_INLINE hc_vf hc_max(hc_vf a, hc_vf b) { return _mm512_max_ps(a, b); }
HC_INLINE hc_vf hc_min(hc_vf a, hc_vf b) { return _mm512_min_ps(a, b); }
HC_INLINE hc_vf hc_round(hc_vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
HC_INLINE hc_vf hc_fma(hc_vf a, hc_vf b, hc_vf c) { return _mm512_fmadd_ps(a, b, c); }
HC_INLINE hc_vf hc_fnma(hc_vf a, hc_vf b, hc_vf c) { return _mm512_fnmadd_ps(a, b, c); }
HC_INLINE hc_vf hc_copy_sign(hc_vf a, hc_vf sign) {
    /* 0xca: the bits of the first operand select the second (1) or the third (0). */
    const __m512i sign_bit = _mm512_set1_epi32(INT32_MIN);
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(sign_bit, _mm512_castps_si512(sign), _mm512_castps_si512(a), 0xca));
}

/* Reduce by adding halves: lanes i and i + 8, then i + 4, i + 2, i + 1. */
HC_INLINE float hc_sum(hc_vf v) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
HC_INLINE float hc_largest(hc_vf v) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

HC_INLINE hc_mask hc_first(int64_t n) { return hc_first_(n); }
HC_INLINE hc_mask hc_greater(hc_vf a, hc_vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
HC_INLINE hc_mask hc_is_nan(hc_vf a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
HC_INLINE hc_vf hc_select(hc_mask mask, hc_vf yes, hc_vf no) { return _mm512_mask_blend_ps(mask, no, yes); }

HC_INLINE hc_vf hc_power_of_two(hc_vf n) { return _mm512_scalef_ps(_mm512_set1_ps(1.0f), n); }
HC_INLINE hc_vf hc_scale(hc_vf v, hc_vf n) { return _mm512_scalef_ps(v, n); }

#define HC_SCALE_TAKES_ALL 1
/* Return the smaller magnitude with the sign of v. */
HC_INLINE hc_vf hc_within(hc_vf v, float limit) { return _mm512_range_ps(v, _mm512_set1_ps(limit), 2); }
HC_INLINE hc_vf hc_fraction(hc_vf t) { return _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
HC_INLINE hc_vf hc_scale_floor(hc_vf v, hc_vf t) { return _mm512_scalef_ps(v, t); }

HC_INLINE hc_wide hc_wide_zero(void) { return _mm512_setzero_pd(); }
HC_INLINE hc_wide hc_wide_first(hc_vf v) { return _mm512_cvtps_pd(_mm512_castps512_ps256(v)); }
HC_INLINE hc_wide hc_wide_second(hc_vf v) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)); }
HC_INLINE hc_wide hc_wide_add(hc_wide a, hc_wide b) { return _mm512_add_pd(a, b); }
HC_INLINE hc_wide hc_wide_sub(hc_wide a, hc_wide b) { return _mm512_sub_pd(a, b); }
HC_INLINE hc_wide hc_wide_fma(hc_wide a, hc_wide b, hc_wide c) { return _mm512_fmadd_pd(a, b, c); }
HC_INLINE double hc_wide_sum(hc_wide v) {
    const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd(v, 1));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

#endif
