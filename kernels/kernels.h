/* Kernels of one instruction set, as a struct of functions generated from kernel_table.h. */
#ifndef HC_KERNELS_H
#define HC_KERNELS_H

#include "activation/activation.h"
#include "attention/attention.h"
#include "attention/rotate.h"
#include "ceiling/ceiling.h"
#include "exchange/exchange.h"
#include "gemm/epilogue.h"
#include "gemm/few_rows.h"
#include "gemm/gemm_kernel.h"
#include "norm/norm.h"
#include "optimizer/optimizer.h"
#include "reduce/reduce.h"

#define HC_GEMM_KERNEL(dtype, isa, ISA) extern const hc_gemm_kernel hc_gemm_##dtype##_##isa;
#include "kernel_table.h"
#undef HC_GEMM_KERNEL

#define HC_SPLIT_KERNEL(dtype, isa) extern const hc_gemm_kernel hc_gemm_##dtype##_##isa;
#include "kernel_table.h"
#undef HC_SPLIT_KERNEL

typedef struct hc_kernels {
    int isa;
    const hc_gemm_kernel *gemm_f32, *gemm_bf16, *gemm_f64;
    const hc_gemm_kernel *gemm_f32_split; /* NULL, or for large fp32 products of a limited range (gemm/gemm_range.c) */
#define HC_VECTOR_KERNEL(op) hc_##op##_kernel *op;
#include "kernel_table.h"
#undef HC_VECTOR_KERNEL
} hc_kernels;

/* Return the kernels for a machine of level `isa`. Never NULL for a known level. */
const hc_kernels *hc_kernels_of(int isa);

#endif
