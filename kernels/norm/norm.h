/* Types of the kernels of adaLN and of gate + residual, which are compiled once per instruction set.
 *
 * A kernel processes a block of consecutive rows (tokens of one image, with common shift, scale and gate) of `columns`
 * elements, and visits the rows in a fixed order. Each array has its own type, HC_F32 or HC_BF16. pass_caches: 1 to
 * store outputs with non-temporal stores, because they would be evicted from the caches anyway. It takes effect only if
 * rows are aligned to vectors. */
#ifndef HC_NORM_H
#define HC_NORM_H

#include <stdint.h>

#include "each_isa.h"
#include "hcops.h"

typedef struct {
    int64_t rows, columns;
    float eps;
    const void *x, *shift, *scale;
    void *out;
    int x_type, condition_type, out_type, pass_caches;
    float *out_mean, *out_rstd; /* per row; out_mean NULL: RMSNorm */
    float offset; /* added to scale: 1, or 0 if scale is a weight */
} hc_adaln_forward_block;

typedef struct {
    int64_t rows, columns;
    const void *dout, *x, *scale, *dstream; /* dstream: NULL, or added to dx */
    void *out_dx;
    int dout_type, x_type, condition_type, dstream_type, dx_type, pass_caches;
    const float *mean, *rstd;       /* per row; mean NULL: RMSNorm */
    float *out_dshift, *out_dscale; /* sums over the rows */
    float offset;
} hc_adaln_backward_block;

typedef struct {
    int64_t rows, columns;
    const void *x, *gate, *y;
    void *out;
    int x_type, gate_type, y_type, out_type, pass_caches;
} hc_gate_residual_forward_block;

typedef struct {
    int64_t rows, columns;
    const void *dout, *gate, *y;
    void *out_dy;
    int dout_type, gate_type, y_type, dy_type, pass_caches;
    float *out_dgate; /* sum over the rows */
} hc_gate_residual_backward_block;

typedef void hc_adaln_forward_kernel(const hc_adaln_forward_block *block);
typedef void hc_adaln_backward_kernel(const hc_adaln_backward_block *block);
typedef void hc_gate_residual_forward_kernel(const hc_gate_residual_forward_block *block);
typedef void hc_gate_residual_backward_kernel(const hc_gate_residual_backward_block *block);

/* Compute out[i] = sum over `blocks` of sums[block * stride + i], in the order of the blocks. */
typedef void hc_add_blocks_kernel(int64_t blocks, int64_t stride, int64_t count, const float *sums, void *out, int out_type);

#define HC_DECLARE(isa)                                                                                                    \
    hc_adaln_forward_kernel hc_adaln_forward_##isa;                                                                        \
    hc_adaln_backward_kernel hc_adaln_backward_##isa;                                                                      \
    hc_gate_residual_forward_kernel hc_gate_residual_forward_##isa;                                                        \
    hc_gate_residual_backward_kernel hc_gate_residual_backward_##isa;                                                      \
    hc_add_blocks_kernel hc_add_blocks_##isa;
HC_EACH_ISA(HC_DECLARE)
#undef HC_DECLARE

#endif
