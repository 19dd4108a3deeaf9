/* bf16 matrix products with SVE. Packing rounds operands to bf16. Products and sums are fp32. */
#include "gemm/arm/panels_sve.h"

#define HC_KERNEL gemm_bf16_sve
#define HC_KERNEL_ISA HC_ISA_SVE
#define HC_KERNEL_DTYPE HC_BF16
#include "gemm/arm/kernel_of_panels.h"
