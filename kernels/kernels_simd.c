/* Table of the vector kernels of one instruction set, for dispatch.c. */
#include "kernels.h"
#include "simd/simd.h"

extern const hc_kernels HC_NAME(vector_kernels);
const hc_kernels HC_NAME(vector_kernels) = {
#define HC_VECTOR_KERNEL(op) .op = HC_NAME(op),
#include "kernel_table.h"
#undef HC_VECTOR_KERNEL
};
