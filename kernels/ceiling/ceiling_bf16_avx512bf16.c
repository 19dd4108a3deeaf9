/* Products of pairs of bf16 in registers: the peak rate of VDPBF16PS on a core. */
#include <immintrin.h>

#include "ceiling/ceiling.h"

#ifndef __AVX512BF16__
#error "to be compiled with -mavx512bf16"
#endif

/* The latency is 6 cycles on Zen 4 (one instruction per cycle) and Zen 5 (two per cycle), so 12 must be in flight. 16
 * chains leave half of the registers free. */
#define CHAINS 16
#define EACH_CHAIN(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define PAIRS 16
#define FLOP_PER_PAIR 4.0 /* two multiplications, two additions */

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
