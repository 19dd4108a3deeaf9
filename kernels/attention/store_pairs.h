/* Store two rows of numbers as interleaved bf16, the order that units for dot products of pairs read: out[2 j] =
 * even[j], out[2 j + 1] = odd[j]. Round to nearest even. */
#ifndef HC_STORE_PAIRS_H
#define HC_STORE_PAIRS_H

#include "simd/simd.h"

/* On x86 only AVX512_BF16 and AMX kernels use pairs. Machines with AMX also have AVX512_BF16, so files that are built
 * for AVX-512 may use its conversion. The conversion treats denormals as zero, as the products do. */
#if defined(HC_TARGET_AVX512) && defined(HC_HAVE_AVX512BF16)
#define HC_PAIRS_TARGET __attribute__((target("avx512bf16")))

HC_INLINE HC_PAIRS_TARGET void hc_store_pairs(uint16_t *out, hc_vf even, hc_vf odd) {
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18,
                         2, 17, 1, 16, 0);
    const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh(odd, even); /* elements of even, then elements of odd */
    _mm512_storeu_si512(out, _mm512_permutexvar_epi16(order, halves));
}

#elif defined(HC_TARGET_SVE) || defined(HC_TARGET_SME)
#define HC_PAIRS_TARGET

/* Return the bits of the bf16 nearest to v in the upper half of each word. The lower half is undefined. */
HC_INLINE svuint32_t hc_round_upper_(hc_vf v) HC_STREAMING_OK {
    const svbool_t all = svptrue_b32();
    const svuint32_t bits = svreinterpret_u32(v);
    const svuint32_t odd = svand_x(all, svlsr_x(all, bits, 16), 1);
    const svuint32_t rounded = svadd_x(all, svadd_x(all, bits, 0x7fff), odd);
    return svsel(svcmpne(all, v, v), svorr_x(all, bits, 0x400000), rounded);
}

HC_INLINE void hc_store_pairs(uint16_t *out, hc_vf even, hc_vf odd) HC_STREAMING_OK {
    const svbool_t all = svptrue_b32();
    const svuint32_t low = svlsr_x(all, hc_round_upper_(even), 16);
    const svuint32_t high = svand_x(all, hc_round_upper_(odd), 0xffff0000u);
    svst1(all, (uint32_t *)(void *)out, svorr_x(all, low, high));
}

#else
#define HC_PAIRS_TARGET

/* Interleave in memory. No matrix kernel of these targets uses pairs at present. */
HC_INLINE void hc_store_pairs(uint16_t *out, hc_vf even, hc_vf odd) {
    uint16_t first[16], second[16];
    hc_store_bf16(first, even);
    hc_store_bf16(second, odd);
    for (int64_t lane = 0; lane < hc_lanes(); lane++) {
        out[2 * lane] = first[lane];
        out[2 * lane + 1] = second[lane];
    }
}

#endif

#endif
