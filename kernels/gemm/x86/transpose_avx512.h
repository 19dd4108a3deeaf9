/* Transpose 32-bit elements of lines in memory, with AVX-512. */
#ifndef HC_TRANSPOSE_AVX512_H
#define HC_TRANSPOSE_AVX512_H

#include <immintrin.h>
#include <stdint.h>

/* Load 16 bytes of each of four lines. Inserting from memory needs no shuffle port, unlike the same exchange between
 * registers. */
static inline __m512i hc_gather_lanes(const char *at, int64_t stride) {
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)at));
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(at + stride)), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(at + 2 * stride)), 2);
    return _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(at + 3 * stride)), 3);
}

/* Transpose four 32-bit elements (fp32, or pairs of bf16) of 16 lines: out[i] contains element i of every line. Lane l
 * of vector t contains line 4 l + t. */
static inline void hc_transpose_pairs(const char *at, int64_t stride, __m512i out[4]) {
    const __m512i x0 = hc_gather_lanes(at, 4 * stride), x1 = hc_gather_lanes(at + stride, 4 * stride);
    const __m512i x2 = hc_gather_lanes(at + 2 * stride, 4 * stride), x3 = hc_gather_lanes(at + 3 * stride, 4 * stride);
    const __m512i low01 = _mm512_unpacklo_epi32(x0, x1), high01 = _mm512_unpackhi_epi32(x0, x1);
    const __m512i low23 = _mm512_unpacklo_epi32(x2, x3), high23 = _mm512_unpackhi_epi32(x2, x3);
    out[0] = _mm512_unpacklo_epi64(low01, low23);
    out[1] = _mm512_unpackhi_epi64(low01, low23);
    out[2] = _mm512_unpacklo_epi64(high01, high23);
    out[3] = _mm512_unpackhi_epi64(high01, high23);
}

#endif
