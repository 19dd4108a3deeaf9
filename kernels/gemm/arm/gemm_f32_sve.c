/* fp32 matrix products with SVE, for any vector length. */
#include "gemm/arm/panels_sve.h"

#define HC_KERNEL gemm_f32_sve
#define HC_KERNEL_ISA HC_ISA_SVE
#define HC_KERNEL_DTYPE HC_F32
#include "gemm/arm/kernel_of_panels.h"
