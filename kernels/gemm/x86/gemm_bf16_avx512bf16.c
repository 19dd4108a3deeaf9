/* bf16 matrix product by VDPBF16PS, with 12 x 32 sums in registers, for CPUs with AVX512_BF16 and without a matrix unit
 * (Zen 4).
 *
 * VDPBF16PS treats denormal operands as zero and flushes denormal sums. inf and nan propagate. */
#if !defined(__AVX512BF16__) || !defined(__AVX512BW__) || !defined(__AVX512VL__)
#error "compile this file for AVX-512 with BW, VL and BF16"
#endif

#include <immintrin.h>

#include "gemm/gemm_kernel.h"
#include "gemm/x86/pack_bf16_avx512bf16.h"

#define MR 12 /* 12 x 2 sums, 2 vectors of B, and broadcast operands of A: 26 of 32 registers */
#define NR 32

/* Store a row of 32 sums to c. Masked columns are unchanged. */
static inline void put_row(float *c, __m512 sum0, __m512 sum1, __mmask16 mask0, __mmask16 mask1, const float *bias, int add) {
    if (bias) {
        sum0 = _mm512_add_ps(sum0, _mm512_maskz_loadu_ps(mask0, bias));
        sum1 = _mm512_add_ps(sum1, _mm512_maskz_loadu_ps(mask1, bias + 16));
    }
    if (add) {
        sum0 = _mm512_add_ps(sum0, _mm512_maskz_loadu_ps(mask0, c));
        sum1 = _mm512_add_ps(sum1, _mm512_maskz_loadu_ps(mask1, c + 16));
    }
    _mm512_mask_storeu_ps(c, mask0, sum0);
    _mm512_mask_storeu_ps(c + 16, mask1, sum1);
}

/* Compute c[0..m, 0..n) from one panel of A and one panel of B. */
static void multiply_panels(int64_t m, int64_t n, int64_t pairs, const int32_t *a, const char *b, float *c, int64_t ldc,
                            const float *bias, int add) {
    __m512 sum0[MR], sum1[MR];
#pragma GCC unroll 12
    for (int i = 0; i < MR; ++i) {
        sum0[i] = sum1[i] = _mm512_setzero_ps();
    }
    for (int64_t pair = 0; pair < pairs; ++pair) {
        const __m512bh b0 = (__m512bh)_mm512_load_si512(b), b1 = (__m512bh)_mm512_load_si512(b + 64);
#pragma GCC unroll 12
        for (int i = 0; i < MR; ++i) {
            const __m512bh row = (__m512bh)_mm512_set1_epi32(a[i]);
            sum0[i] = _mm512_dpbf16_ps(sum0[i], row, b0);
            sum1[i] = _mm512_dpbf16_ps(sum1[i], row, b1);
        }
        a += MR;
        b += NR * 4;
    }
    const uint32_t mask = n >= NR ? 0xffffffffu : (1u << n) - 1u;
#pragma GCC unroll 12
    for (int i = 0; i < MR; ++i) {
        if (i < m) {
            put_row(c + i * ldc, sum0[i], sum1[i], (__mmask16)mask, (__mmask16)(mask >> 16), bias, add);
        }
    }
}

static void block(int64_t m, int64_t n, int64_t k, const void *a_panels, const void *b_panels, void *c, int64_t ldc,
                  const void *bias, int add) {
    const int64_t pairs = (k + 1) / 2;
    for (int64_t j = 0; j < n; j += NR) {
        for (int64_t i = 0; i < m; i += MR) {
            multiply_panels(m - i, n - j < NR ? n - j : NR, pairs, (const int32_t *)a_panels + i * pairs,
                            (const char *)b_panels + j * pairs * 4, (float *)c + i * ldc + j, ldc,
                            bias ? (const float *)bias + j : NULL, add);
        }
    }
}

static void pack_b(int64_t k, int64_t n, const hc_matrix *b, void *out_panels) {
    hc_pack_bf16_b(k, n, b, 2, NR / 16, out_panels);
}

static int64_t mr(void) {
    return MR;
}

static int64_t nr(void) {
    return NR;
}

const hc_gemm_kernel hc_gemm_bf16_avx512bf16 = {
    .name = "gemm_bf16_avx512bf16", .isa = HC_ISA_AVX512BF16, .dtype = HC_BF16, .mr = mr, .nr = nr, .kr = 2, .element_bytes = 2,
    .pack_a = hc_pack_bf16_a_pairs, .pack_b = pack_b, .block = block, .b_group = 2,
};
