/* Block of a product with panels in the nearest caches, in the layout of hc_gemm_f32_amx. */
#ifndef HC_NEAR_BLOCK_H
#define HC_NEAR_BLOCK_H

#include <stdint.h>

struct hc_gemm_ahead;

/* c[i, j] = sum over p < k of A[i, p] B[p, j] for i < m, j < n, added to c with `add`. Panels may be deeper than k and
 * start anywhere in their depth, at a multiple of kr. */
typedef struct {
    int64_t m, n, k;
    const void *a_panels, *b_panels;
    int64_t a_panel_bytes, b_panel_bytes; /* from a panel to the next */
    float *c;
    int64_t ldc;
    int add;
    int tail; /* 1: the last step of depth is as hc_near_tail_a and _b left it */
    struct hc_gemm_ahead *ahead; /* NULL, or memory to ask for meanwhile: its `share`, of which what is left over stays */
} hc_near_block;

typedef void hc_near_block_kernel(const hc_near_block *x);
hc_near_block_kernel hc_near_block_f32_amx;

/* A last step of up to 8 of depth is mostly padding, in each of six products. As [x1 x1 x2 x2] and [x1 x3 0 0] against
 * [y1 y2 y1 y2] and [y3 y1 0 0], each of 8, they are two products. In place, for all panels of a width of 32. */
#define HC_NEAR_MOST_TAIL 8
typedef void hc_near_tail_kernel(int64_t num_panels, int64_t k, void *panels);
hc_near_tail_kernel hc_near_tail_a_f32_amx, hc_near_tail_b_f32_amx;

#endif
