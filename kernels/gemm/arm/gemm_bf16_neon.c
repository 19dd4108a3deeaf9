/* bf16 matrix products with NEON. Packing rounds operands to bf16. Products and sums are fp32. */
#include "gemm/arm/panels_neon.h"

#define HC_KERNEL gemm_bf16_neon
#define HC_KERNEL_ISA HC_ISA_NEON
#define HC_KERNEL_DTYPE HC_BF16
#include "gemm/arm/kernel_of_panels.h"
