/* The signature that every sum-of-squares kernel on fp32 shares, and their declarations. */
#ifndef HCOPS_SUMSQ_F32_H
#define HCOPS_SUMSQ_F32_H

#include <stdint.h>

/* Sum over i < count of x[i]^2 in float64. count >= 0; x may be NULL when count is 0. */
typedef double hc_sumsq_f32_kernel(const float *x, int64_t count);

hc_sumsq_f32_kernel hc_sumsq_f32_ref;

#endif
