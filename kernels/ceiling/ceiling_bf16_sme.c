/* Outer products of bf16 into every ZA tile: the peak bf16 rate of the SME unit. */
#ifndef __ARM_FEATURE_SME
#error "to be compiled with -march=armv9-a+sme"
#endif

#include <arm_sme.h>

#include "ceiling/ceiling.h"

/* ZA has four fp32 tiles at any vector length. A round writes each tile once, so the products of a round are
 * independent. */
#define TILES 4
#define FLOP_PER_PAIR 4.0 /* two multiplications, two additions */

__arm_new("za") __arm_locally_streaming double hc_ceiling_bf16_sme(int64_t rounds, const hc_ceiling_operands *operands,
                                                                   float *out_sink) {
    const svbool_t all = svptrue_b16();
    union {
        float number;
        uint32_t bits;
    } multiplier = {.number = operands->multiplier};
    const svbfloat16_t factor = svreinterpret_bf16_u16(svdup_u16((uint16_t)(multiplier.bits >> 16)));
    svzero_za();
    for (int64_t round = 0; round < rounds; round++) {
        svmopa_za32_bf16_m(0, all, all, factor, factor);
        svmopa_za32_bf16_m(1, all, all, factor, factor);
        svmopa_za32_bf16_m(2, all, all, factor, factor);
        svmopa_za32_bf16_m(3, all, all, factor, factor);
    }
    const svbool_t words = svptrue_b32();
    svfloat32_t sum = svread_hor_za32_f32_m(svdup_f32(0), words, 0, 0);
    sum = svadd_f32_x(words, sum, svread_hor_za32_f32_m(svdup_f32(0), words, 1, 0));
    sum = svadd_f32_x(words, sum, svread_hor_za32_f32_m(svdup_f32(0), words, 2, 0));
    sum = svadd_f32_x(words, sum, svread_hor_za32_f32_m(svdup_f32(0), words, 3, 0));
    *out_sink = svaddv_f32(words, sum);
    const double lanes = (double)svcntw();
    return TILES * FLOP_PER_PAIR * lanes * lanes * (double)rounds;
}
