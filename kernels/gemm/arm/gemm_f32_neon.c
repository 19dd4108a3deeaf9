/* fp32 matrix products with NEON. */
#include "gemm/arm/panels_neon.h"

#define HC_KERNEL gemm_f32_neon
#define HC_KERNEL_ISA HC_ISA_NEON
#define HC_KERNEL_DTYPE HC_F32
#include "gemm/arm/kernel_of_panels.h"
