/* Types of the kernels of adaLN and of gate + residual, which are compiled once per instruction set.
 *
 * Each works on a block of consecutive rows (tokens of one image, which share shift, scale and gate) of `columns` elements,
 * and visits the rows in a fixed order. Arrays have a type each, HC_F32 or HC_BF16. pass_caches: 1 where an output will not
 * be found in a cache anyway, so that stores should pass by them (used where rows are aligned to vectors). */
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
    float *out_mean, *out_rstd; /* of each row; out_mean NULL: the norm is RMSNorm */
    float offset; /* what is added to scale: 1, or 0 where scale is a weight */
} hc_adaln_forward_block;

typedef struct {
    int64_t rows, columns;
    const void *dout, *x, *scale, *dstream; /* dstream: NULL, or added to dx */
    void *out_dx;
    int dout_type, x_type, condition_type, dstream_type, dx_type, pass_caches;
    const float *mean, *rstd;       /* of each row; mean NULL: the norm was RMSNorm */
    float *out_dshift, *out_dscale; /* the sums over the rows */
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
    float *out_dgate; /* the sum over the rows */
} hc_gate_residual_backward_block;

typedef void hc_adaln_forward_kernel(const hc_adaln_forward_block *block);
typedef void hc_adaln_backward_kernel(const hc_adaln_backward_block *block);
typedef void hc_gate_residual_forward_kernel(const hc_gate_residual_forward_block *block);
typedef void hc_gate_residual_backward_kernel(const hc_gate_residual_backward_block *block);

/* out[i] = sum over `blocks` of sums[block * stride + i], the first block first. */
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
