/* Products of pairs of bf16 in registers: what VDPBF16PS does at most on a core. */
#include <immintrin.h>

#include "ceiling/ceiling.h"

#ifndef __AVX512BF16__
#error "to be compiled with -mavx512bf16"
#endif

/* Latency 6 on both Zen 4 (one a cycle) and Zen 5 (two a cycle): 12 under way; 16 leave half of the registers. */
#define CHAINS 16
#define EACH_CHAIN(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define PAIRS 16
#define FLOP_PER_PAIR 4.0 /* two products, two additions */

double hc_ceiling_bf16_avx512bf16(int64_t rounds, const hc_ceiling_operands *operands, float *out_sink) {
    const __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(operands->multiplier), _mm512_set1_ps(operands->multiplier));
    const __m512bh b = _mm512_cvtne2ps_pbh(_mm512_set1_ps(operands->addend), _mm512_set1_ps(operands->addend));
#define BEGIN(i) __m512 chain_##i = _mm512_set1_ps((float)(i));
    EACH_CHAIN(BEGIN)
    for (int64_t round = 0; round < rounds; round++) {
#define STEP(i) chain_##i = _mm512_dpbf16_ps(chain_##i, a, b);
        EACH_CHAIN(STEP)
    }
    __m512 sum = _mm512_setzero_ps();
#define GATHER(i) sum = _mm512_add_ps(sum, chain_##i);
    EACH_CHAIN(GATHER)
    *out_sink = _mm512_reduce_add_ps(sum);
    return CHAINS * PAIRS * FLOP_PER_PAIR * (double)rounds;
}
