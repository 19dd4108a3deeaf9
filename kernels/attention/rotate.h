/* Types of the kernels that norm and rotate heads, which are compiled once per instruction set.
 *
 * Each works on a block of consecutive rows (tokens of one image) of 3 * heads * width elements, of which it visits q and k, the
 * first two thirds. Pairs are the elements (2i, 2i + 1) of a head; `half` = (width + 1) / 2 of them, the last without a second
 * where the width is odd. Weights, and the sums of their gradients, lie as 2 * half numbers: the first of all pairs, then the
 * second ones. */
#ifndef HC_ROTATE_H
#define HC_ROTATE_H

#include <stdint.h>

#include "each_isa.h"
#include "hcops.h"

typedef struct {
    int64_t rows, heads, width;
    float eps;
    int type;               /* of qkv, out and dout */
    const float *cos, *sin; /* of each row, width / 2; NULL: no rotation */
    const float *weights;   /* q's, then k's; NULL: no norm */
    const void *qkv;        /* backward without norm: not read */
    void *out;              /* the rotated, or the gradient to qkv */
    const void *dout;       /* backward only */
    float *out_dweights;    /* backward with norm: the sums over the rows and heads are added to it */
} hc_rotate_block;

typedef void hc_rotate_heads_forward_kernel(const hc_rotate_block *block);
typedef void hc_rotate_heads_backward_kernel(const hc_rotate_block *block);

#define HC_DECLARE(isa)                                                                                                    \
    hc_rotate_heads_forward_kernel hc_rotate_heads_forward_##isa;                                                          \
    hc_rotate_heads_backward_kernel hc_rotate_heads_backward_##isa;
HC_EACH_ISA(HC_DECLARE)
#undef HC_DECLARE

#endif
