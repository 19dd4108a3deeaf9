/* Outer products of fp32 into every ZA tile: the peak fp32 rate of the SME unit. */
#ifndef __ARM_FEATURE_SME
#error "to be compiled with -march=armv9-a+sme"
#endif

#include <arm_sme.h>

#include "ceiling/ceiling.h"

/* ZA has four fp32 tiles at any vector length. A round writes each tile once, so the products of a round are
 * independent. */
#define TILES 4
#define FLOP_PER_SUM 2.0 /* a multiplication, an addition */

__arm_new("za") __arm_locally_streaming double hc_ceiling_f32_sme(int64_t rounds, const hc_ceiling_operands *operands,
                                                                  float *out_sink) {
    const svbool_t all = svptrue_b32();
    const svfloat32_t factor = svdup_f32(operands->multiplier);
    svzero_za();
    for (int64_t round = 0; round < rounds; round++) {
        svmopa_za32_f32_m(0, all, all, factor, factor);
        svmopa_za32_f32_m(1, all, all, factor, factor);
        svmopa_za32_f32_m(2, all, all, factor, factor);
        svmopa_za32_f32_m(3, all, all, factor, factor);
    }
    svfloat32_t sum = svread_hor_za32_f32_m(svdup_f32(0), all, 0, 0);
    sum = svadd_f32_x(all, sum, svread_hor_za32_f32_m(svdup_f32(0), all, 1, 0));
    sum = svadd_f32_x(all, sum, svread_hor_za32_f32_m(svdup_f32(0), all, 2, 0));
    sum = svadd_f32_x(all, sum, svread_hor_za32_f32_m(svdup_f32(0), all, 3, 0));
    *out_sink = svaddv_f32(all, sum);
    const double lanes = (double)svcntw();
    return TILES * FLOP_PER_SUM * lanes * lanes * (double)rounds;
}
