/* Types of the kernels that measure what a machine can do at most. */
#ifndef HC_CEILING_H
#define HC_CEILING_H

#include <stdint.h>

#include "each_isa.h"
#include "hcops.h"

/* The two factors and the addends that every round uses; taken from memory, so that no compiler knows their values. */
typedef struct {
    float multiplier, addend;
} hc_ceiling_operands;

/* `rounds` rounds of multiply-adds in registers, none of which waits for another of the same round. Returns the number of
 * floating-point operations done; *out_sink depends on all of them. */
typedef double hc_multiply_add_kernel(int64_t rounds, const hc_ceiling_operands *operands, float *out_sink);

/* Copies with stores that bypass the caches, where the instruction set has such. No overlap. */
typedef void hc_copy_kernel(int64_t bytes, const void *source, void *out_target);

#define HC_DECLARE(isa) extern hc_multiply_add_kernel hc_multiply_add_##isa; extern hc_copy_kernel hc_copy_##isa;
HC_EACH_ISA(HC_DECLARE)
#undef HC_DECLARE

/* Units that only do products of one type: lines HC_CEILING_KERNEL of kernel_table.h. */
extern hc_multiply_add_kernel hc_ceiling_bf16_amx, hc_ceiling_bf16_avx512bf16, hc_ceiling_bf16_sme, hc_ceiling_f32_sme;

#endif
