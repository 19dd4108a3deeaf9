/* Vector operations of gemm_pack.h for AVX2: 8 lanes of fp32. */
#ifndef HC_GEMM_LANES_AVX2_H
#define HC_GEMM_LANES_AVX2_H

#include <immintrin.h>
#include <string.h>

#include "hcops.h"

#if !defined(__AVX2__) || !defined(__FMA__)
#error "this file needs -mavx2 -mfma"
#endif

#define PACK_LANES 8
typedef float pack_element;
typedef __m256 pack_vector;
#define LANES_INLINE static inline __attribute__((always_inline))

LANES_INLINE __m256 pack_zero(void) { return _mm256_setzero_ps(); }
LANES_INLINE __m256 pack_add(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
LANES_INLINE __m256 pack_scale(__m256 v, float scale) { return _mm256_mul_ps(v, _mm256_set1_ps(scale)); }

LANES_INLINE float pack_total(__m256 v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* Return a mask of the first `count` lanes. */
LANES_INLINE __m256i pack_first(int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

LANES_INLINE __m256 pack_widen(__m128i bits) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16)); }

/* Load the first `count` elements. Other lanes are zero. */
LANES_INLINE __m256 pack_load(const char *from, int dtype, int64_t count) {
    if (dtype == HC_F32)
        return count >= 8 ? _mm256_loadu_ps((const float *)(const void *)from)
                          : _mm256_maskload_ps((const float *)(const void *)from, pack_first(count));
    if (count >= 8) return pack_widen(_mm_loadu_si128((const __m128i *)(const void *)from));
    uint16_t some[8] = {0};
    memcpy(some, from, (size_t)count * sizeof(uint16_t));
    return pack_widen(_mm_loadu_si128((const __m128i *)(const void *)some));
}

LANES_INLINE void pack_store(float *to, int64_t count, __m256 v) {
    if (count >= 8)
        _mm256_storeu_ps(to, v);
    else
        _mm256_maskstore_ps(to, pack_first(count), v);
}

/* Round to bf16, to nearest even, and widen to fp32. A nan stays nan. */
LANES_INLINE __m256 pack_round_bf16(__m256 v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256 is_nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    const __m256 chosen = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), is_nan);
    return _mm256_and_ps(chosen, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000)));
}

/* Transpose 8 x 8 in three rounds: pairs of elements, pairs of pairs, halves of the registers. */
LANES_INLINE void pack_transpose(__m256 *square) {
    __m256 pairs[8], fours[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        pairs[2 * i] = _mm256_unpacklo_ps(square[2 * i], square[2 * i + 1]);
        pairs[2 * i + 1] = _mm256_unpackhi_ps(square[2 * i], square[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        fours[4 * i] = _mm256_shuffle_ps(pairs[4 * i], pairs[4 * i + 2], 0x44);
        fours[4 * i + 1] = _mm256_shuffle_ps(pairs[4 * i], pairs[4 * i + 2], 0xee);
        fours[4 * i + 2] = _mm256_shuffle_ps(pairs[4 * i + 1], pairs[4 * i + 3], 0x44);
        fours[4 * i + 3] = _mm256_shuffle_ps(pairs[4 * i + 1], pairs[4 * i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        square[i] = _mm256_permute2f128_ps(fours[i], fours[4 + i], 0x20);
        square[4 + i] = _mm256_permute2f128_ps(fours[i], fours[4 + i], 0x31);
    }
}

#endif
