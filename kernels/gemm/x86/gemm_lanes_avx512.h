/* Vector operations of gemm_pack.h for AVX-512: 16 lanes of fp32. */
#ifndef HC_GEMM_LANES_AVX512_H
#define HC_GEMM_LANES_AVX512_H

#include <immintrin.h>

#include "hcops.h"

#ifndef __AVX512F__
#error "this file needs -mavx512f -mavx512bw -mavx512dq -mavx512vl"
#endif

#define PACK_LANES 16
typedef float pack_element;
typedef __m512 pack_vector;
#define LANES_INLINE static inline __attribute__((always_inline))

LANES_INLINE __m512 pack_zero(void) { return _mm512_setzero_ps(); }
LANES_INLINE __m512 pack_add(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
LANES_INLINE __m512 pack_scale(__m512 v, float scale) { return _mm512_mul_ps(v, _mm512_set1_ps(scale)); }
LANES_INLINE float pack_total(__m512 v) { return _mm512_reduce_add_ps(v); }

/* Load the first `count` elements. Other lanes are zero. */
LANES_INLINE __m512 pack_load(const char *from, int dtype, int64_t count) {
    const __mmask16 mask = count >= 16 ? 0xffff : (__mmask16)((1u << count) - 1);
    if (dtype == HC_F32) return count >= 16 ? _mm512_loadu_ps(from) : _mm512_maskz_loadu_ps(mask, from);
    const __m256i half = count >= 16 ? _mm256_loadu_si256((const __m256i *)from) : _mm256_maskz_loadu_epi16(mask, from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

LANES_INLINE void pack_store(float *to, int64_t count, __m512 v) {
    if (count >= 16)
        _mm512_storeu_ps(to, v);
    else
        _mm512_mask_storeu_ps(to, (__mmask16)((1u << count) - 1), v);
}

/* Round to bf16, to nearest even, and widen to fp32. A nan stays nan. */
LANES_INLINE __m512 pack_round_bf16(__m512 v) {
    const __m512i bits = _mm512_castps_si512(v), one = _mm512_set1_epi32(1);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i chosen = _mm512_mask_mov_epi32(rounded, is_nan, quiet);
    return _mm512_castsi512_ps(_mm512_and_si512(chosen, _mm512_set1_epi32((int)0xffff0000)));
}

/* Transpose 16 x 16 in four rounds: pairs of elements, pairs of pairs, then quarters of the registers twice. */
LANES_INLINE void pack_transpose(__m512 *square) {
    __m512 pairs[16], fours[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        pairs[2 * i] = _mm512_unpacklo_ps(square[2 * i], square[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_ps(square[2 * i], square[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        fours[4 * i] = _mm512_shuffle_ps(pairs[4 * i], pairs[4 * i + 2], 0x44);
        fours[4 * i + 1] = _mm512_shuffle_ps(pairs[4 * i], pairs[4 * i + 2], 0xee);
        fours[4 * i + 2] = _mm512_shuffle_ps(pairs[4 * i + 1], pairs[4 * i + 3], 0x44);
        fours[4 * i + 3] = _mm512_shuffle_ps(pairs[4 * i + 1], pairs[4 * i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512 low = _mm512_shuffle_f32x4(fours[i], fours[4 + i], 0x88);
        const __m512 low_odd = _mm512_shuffle_f32x4(fours[i], fours[4 + i], 0xdd);
        const __m512 high = _mm512_shuffle_f32x4(fours[8 + i], fours[12 + i], 0x88);
        const __m512 high_odd = _mm512_shuffle_f32x4(fours[8 + i], fours[12 + i], 0xdd);
        square[i] = _mm512_shuffle_f32x4(low, high, 0x88);
        square[4 + i] = _mm512_shuffle_f32x4(low_odd, high_odd, 0x88);
        square[8 + i] = _mm512_shuffle_f32x4(low, high, 0xdd);
        square[12 + i] = _mm512_shuffle_f32x4(low_odd, high_odd, 0xdd);
    }
}

#endif
