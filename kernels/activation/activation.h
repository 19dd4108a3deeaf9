/* Types of the elementwise, SwiGLU and softmax kernels, which are compiled once per instruction set, and the errors of
 * the functions.
 *
 * The table lists the largest errors of simd/math.h on AVX-512 against float64. The test covers every fp32 number with
 * 2^-14 <= |x| < 256, and every 101st of the other numbers. The other instruction sets differ by at most two units in
 * the last place (ulp). Errors are in ulp of the exact result. If cancellation makes a result small, the table gives
 * the absolute error instead.
 *
 *   exp             0.90 ulp everywhere, including denormal results
 *   2^x             1.6 ulp everywhere, including denormal results
 *   tanh            2.4 ulp everywhere, 1.5 for |x| >= 0.5
 *   sigmoid         2.5 ulp for x > -88.7; 0 below (absolute 3e-39)
 *   silu            2.4 ulp for x > -88.7; -0 below (absolute 2.7e-37)
 *   silu'           2.4e-7 absolute; 5.5 ulp for x < -2 and for x > -1 (it is 0 at -1.28)
 *   gelu            2.5 ulp for x >= -1; 4.2e-8 absolute for x < -1 (6.6 ulp to -2, 12 to -3, 32 to -5, 154 to -10); -0 for
 *                   x < -10.1
 *   gelu'           2.6e-7 absolute; 3.6 ulp for x >= -0.5
 *   gelu by erf     6.2 ulp for x >= -3; 1.8e-9 absolute for x < -3 (PyTorch: 1.2e-6), below 2e-40 from -13.5 on, -inf too
 *   its gradient    2.2e-7 absolute
 *
 * Epilogues of products with a bf16 result use coarse versions of gelu and gelu' (simd/math.h).
 *
 * Below -1, gelu is computed as x exp(2 u), and the rounding of u dominates the error. PyTorch's 0.5 x (1 + tanh u) has
 * absolute errors up to 1.5e-7 in that range, and returns -0 below -5.1. inf and nan produce the same results as in
 * PyTorch. Denormal x are not flushed to zero. */
#ifndef HC_ACTIVATION_H
#define HC_ACTIVATION_H

#include <stdint.h>

#include "each_isa.h"
#include "hcops.h"

/* Each array has its own type, HC_F32 or HC_BF16. pass_caches: 1 to store with non-temporal stores, because the output
 * would be evicted from the caches anyway. It takes effect only if the output is aligned to its elements. */
typedef void hc_map_kernel(int function, int64_t count, const void *x, int x_type, void *out, int out_type, int pass_caches);

typedef void hc_map_backward_kernel(int function, int64_t count, const void *dout, int dout_type, const void *x, int x_type,
                                    void *out_dx, int dx_type, int pass_caches);

/* Compute out = alpha x + beta y. If y is NULL, out = alpha x. */
typedef void hc_scale_add_kernel(int64_t count, float alpha, const void *x, int x_type, float beta, const void *y, int y_type,
                                 void *out, int out_type, int pass_caches);

/* Compute out = factor (x - y). */
typedef void hc_scaled_difference_kernel(int64_t count, float factor, const void *x, int x_type, const void *y, int y_type,
                                         void *out, int out_type, int pass_caches);

/* Compute out = silu(gate) * value. x contains rows of 2 * `columns` elements, gates before values. out contains rows
 * of `columns` elements. The backward kernel computes the gradient of x. */
typedef void hc_swiglu_forward_kernel(int64_t rows, int64_t columns, const void *x, int x_type, void *out, int out_type,
                                      int pass_caches);

typedef void hc_swiglu_backward_kernel(int64_t rows, int64_t columns, const void *dout, int dout_type, const void *x,
                                       int x_type, void *out_dx, int dx_type, int pass_caches);

typedef void hc_softmax_forward_kernel(int64_t rows, int64_t columns, const void *x, int x_type, void *out, int out_type);

typedef void hc_softmax_backward_kernel(int64_t rows, int64_t columns, const void *dout, int dout_type, const void *y,
                                        int y_type, void *out_dx, int dx_type);

#define HC_DECLARE(isa)                                                                                                    \
    hc_map_kernel hc_map_##isa;                                                                                            \
    hc_map_backward_kernel hc_map_backward_##isa;                                                                          \
    hc_scale_add_kernel hc_scale_add_##isa;                                                                                \
    hc_scaled_difference_kernel hc_scaled_difference_##isa;                                                                \
    hc_swiglu_forward_kernel hc_swiglu_forward_##isa;                                                                      \
    hc_swiglu_backward_kernel hc_swiglu_backward_##isa;                                                                    \
    hc_softmax_forward_kernel hc_softmax_forward_##isa;                                                                    \
    hc_softmax_backward_kernel hc_softmax_backward_##isa;
HC_EACH_ISA(HC_DECLARE)
#undef HC_DECLARE

#endif
