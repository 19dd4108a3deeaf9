/* Types of the kernels that measure the peak performance of a machine. */
#ifndef HC_CEILING_H
#define HC_CEILING_H

#include <stdint.h>

#include "each_isa.h"
#include "hcops.h"

/* Factors and addends of every round. They are read from memory, so that the compiler cannot fold their values. */
typedef struct {
    float multiplier, addend;
} hc_ceiling_operands;

/* Run `rounds` rounds of multiply-adds in registers, which are independent within a round. Return the number of
 * floating-point operations. *out_sink depends on all of them. */
typedef double hc_multiply_add_kernel(int64_t rounds, const hc_ceiling_operands *operands, float *out_sink);

/* Copy `bytes` with non-temporal stores, if the instruction set has them. No overlap. */
typedef void hc_copy_kernel(int64_t bytes, const void *source, void *out_target);

#define HC_DECLARE(isa) extern hc_multiply_add_kernel hc_multiply_add_##isa; extern hc_copy_kernel hc_copy_##isa;
HC_EACH_ISA(HC_DECLARE)
#undef HC_DECLARE

/* Units that compute products of one type only: the HC_CEILING_KERNEL lines of kernel_table.h. */
extern hc_multiply_add_kernel hc_ceiling_bf16_amx, hc_ceiling_bf16_avx512bf16, hc_ceiling_bf16_sme, hc_ceiling_f32_sme,
    hc_ceiling_bf16_svebf16;

#endif
