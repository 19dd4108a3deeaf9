/* Independent multiply-adds on vectors in registers: the peak fp32 rate of a core. */
#include "ceiling/ceiling.h"
#include "simd/simd.h"

/* Number of independent chains. The units are busy if latency x units multiply-adds are in flight: 4 x 2 = 8 on Zen and
 * on Intel servers, 4 x 4 = 16 on large Arm cores, 9 x 2 = 18 on A64FX. 20 chains fill all of them and leave 12 of 32
 * registers. AVX2 has 16 registers: 12 chains and 2 operands. */
#if defined(HC_TARGET_AVX2) || defined(HC_TARGET_REF)
#define CHAINS 12
#define EACH_CHAIN(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#else
#define CHAINS 20
#define EACH_CHAIN(X) \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19)
#endif

/* Each chain computes x = x * multiplier + addend. The multiplication depends on the previous round, so the compiler
 * cannot move it out of the loop. The chains start with different values, so they cannot be merged. */
HC_KERNEL_FUNCTION double HC_NAME(multiply_add)(int64_t rounds, const hc_ceiling_operands *operands,
                                                float *out_sink) HC_KERNEL_STREAMING {
    const hc_vf multiplier = hc_set(operands->multiplier), addend = hc_set(operands->addend);
#define BEGIN(i) hc_vf chain_##i = hc_set((float)(i));
    EACH_CHAIN(BEGIN)
    for (int64_t round = 0; round < rounds; round++) {
#define STEP(i) chain_##i = hc_fma(chain_##i, multiplier, addend);
        EACH_CHAIN(STEP)
    }
    hc_vf sum = hc_zero();
#define GATHER(i) sum = hc_add(sum, chain_##i);
    EACH_CHAIN(GATHER)
    *out_sink = hc_sum(sum);
    return 2.0 * CHAINS * (double)hc_lanes() * (double)rounds;
}
