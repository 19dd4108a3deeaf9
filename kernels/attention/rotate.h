/* Types of the kernels for norm and rotation of heads, which are compiled once per instruction set.
 *
 * A kernel processes a block of consecutive rows (tokens of one image) of 3 * heads * width elements. It reads and
 * writes q and k, the first two thirds of a row. Pairs are the elements (2i, 2i + 1) of a head. There are `half` =
 * (width + 1) / 2 pairs; if the width is odd, the last pair has one element. Weights, and the sums of their gradients,
 * are stored as 2 * half numbers: the first elements of all pairs, then the second elements. */
#ifndef HC_ROTATE_H
#define HC_ROTATE_H

#include <stdint.h>

#include "each_isa.h"
#include "hcops.h"

typedef struct {
    int64_t rows, heads, width;
    float eps;
    int type;               /* of qkv, out and dout */
    const float *cos, *sin; /* width / 2 per row; NULL: no rotation */
    const float *weights;   /* weights of q, then of k; NULL: no norm */
    const void *qkv;        /* not read by backward without norm */
    void *out;              /* rotated heads, or the gradient of qkv */
    const void *dout;       /* backward only */
    float *out_dweights;    /* backward with norm: sums over rows and heads are added */
} hc_rotate_block;

typedef void hc_rotate_heads_forward_kernel(const hc_rotate_block *block);
typedef void hc_rotate_heads_backward_kernel(const hc_rotate_block *block);

#define HC_DECLARE(isa)                                                                                                    \
    hc_rotate_heads_forward_kernel hc_rotate_heads_forward_##isa;                                                          \
    hc_rotate_heads_backward_kernel hc_rotate_heads_backward_##isa;
HC_EACH_ISA(HC_DECLARE)
#undef HC_DECLARE

#endif
