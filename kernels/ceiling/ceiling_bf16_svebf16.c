/* Products of 2 x 4 bf16 in registers: the peak rate of BFMMLA on a core. */
#if !defined(HC_TARGET_SVEBF16) || !defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#error "to be compiled with -march=armv8.2-a+sve+bf16"
#endif

#include <arm_sve.h>

#include "ceiling/ceiling.h"

/* As many chains as the matrix product has sums. They fill four units with a latency of up to six cycles. */
#define CHAINS 24
#define EACH_CHAIN(X)                                                                                                 \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19) X(20) \
    X(21) X(22) X(23)
#define FLOP_PER_LANE 8.0 /* four multiplications, four additions */

double hc_ceiling_bf16_svebf16(int64_t rounds, const hc_ceiling_operands *operands, float *out_sink) {
    const svbool_t all = svptrue_b32();
    const svfloat32_t x = svdup_f32(operands->multiplier), y = svdup_f32(operands->addend);
    const svbfloat16_t a = svcvtnt_bf16_x(svcvt_bf16_x(all, x), all, x), b = svcvtnt_bf16_x(svcvt_bf16_x(all, y), all, y);
#define BEGIN(i) svfloat32_t chain_##i = svdup_f32((float)(i));
    EACH_CHAIN(BEGIN)
    for (int64_t round = 0; round < rounds; round++) {
#define STEP(i) chain_##i = svbfmmla(chain_##i, a, b);
        EACH_CHAIN(STEP)
    }
    svfloat32_t sum = svdup_f32(0.0f);
#define GATHER(i) sum = svadd_x(all, sum, chain_##i);
    EACH_CHAIN(GATHER)
    *out_sink = svaddv(all, sum);
    return CHAINS * FLOP_PER_LANE * (double)svcntw() * (double)rounds;
}
