/* Block of a product with panels in the nearest caches, in the layout of hc_gemm_f32_amx. */
#ifndef HC_NEAR_BLOCK_H
#define HC_NEAR_BLOCK_H

#include <stdint.h>

struct hc_gemm_prefetch;

/* Compute c[i, j] = sum over p < k of A[i, p] B[p, j] for i < m, j < n. With `add`, add the result to c. Panels may be
 * deeper than k. The pointers may refer to any depth that is a multiple of kr. */
typedef struct {
    int64_t m, n, k;
    const void *a_panels, *b_panels;
    int64_t a_panel_bytes, b_panel_bytes; /* distance of panels */
    float *c;
    int64_t ldc;
    int add;
    int tail; /* 1: the last step of k is packed by hc_near_tail_a and _b */
    struct hc_gemm_prefetch *prefetch; /* NULL, or memory to prefetch: up to `share` lines, which it reduces */
} hc_near_block;

typedef void hc_near_block_kernel(const hc_near_block *x);
hc_near_block_kernel hc_near_block_f32_amx;

/* Re-pack the last step of panels of 32 rows or columns in place. A last step of up to 8 of k is mostly padding, in
 * each of six products. As [x1 x1 x2 x2] and [x1 x3 0 0] times [y1 y2 y1 y2] and [y3 y1 0 0], with 8 of k each, it
 * needs only two products. */
#define HC_NEAR_MOST_TAIL 8
typedef void hc_near_tail_kernel(int64_t num_panels, int64_t k, void *panels);
hc_near_tail_kernel hc_near_tail_a_f32_amx, hc_near_tail_b_f32_amx;

#endif
