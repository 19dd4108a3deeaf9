/* Interface between the part of a matrix product common to all instruction sets (gemm_job.c, attention.c) and the
 * kernels of an instruction set.
 *
 * Operands are packed into panels. A panel of A contains mr rows and all of k. A panel of B contains nr columns and all
 * of k. k is padded with zeros to a multiple of kr, m and n to multiples of mr and nr. The layout within a panel is
 * private to the kernel. Only its pack functions write it, and only its block function reads it. */
#ifndef HC_GEMM_KERNEL_H
#define HC_GEMM_KERNEL_H

#include <stdint.h>

#include "gemm/near_block.h"
#include "hcops.h"

/* Memory that will be packed next, as runs of cache lines. A block prefetches `share` lines during the product, so that
 * packing does not wait for them. */
typedef struct hc_gemm_prefetch {
    const char *next;        /* next line to prefetch */
    int64_t left;            /* remaining lines of this run */
    int64_t lines;           /* lines per complete run */
    int64_t jump;            /* bytes from the end of a run to the next run */
    int64_t remaining;       /* remaining lines of all runs; the kernel subtracts */
    int64_t share;           /* lines to prefetch during this block */
} hc_gemm_prefetch;

/* Prefetch up to `lines` lines of the share to the L2 cache. More at a time would occupy the line fill buffers that the
 * product needs. */
static inline void hc_gemm_prefetch_lines(hc_gemm_prefetch *prefetch, int64_t lines) {
    for (int64_t i = 0; i < lines && prefetch->share > 0; i++) {
        __builtin_prefetch(prefetch->next, 0, 2);
        prefetch->next += 64;
        prefetch->share--;
        prefetch->remaining--;
        if (--prefetch->left == 0) {
            prefetch->left = prefetch->lines;
            prefetch->next += prefetch->jump;
        }
    }
}

/* A block, as for `block` below, with additional options. */
typedef struct {
    int64_t m, n, k;
    const void *a;       /* panels, or unpacked rows of bf16 */
    int64_t a_row_bytes; /* 0: panels; otherwise the row stride in bytes, with m a multiple of rows_in_place, k of kr */
    const void *b_panels;
    void *c;
    int64_t ldc;
    int c_dtype; /* HC_F32, or HC_BF16 without `add`; each sum is rounded once */
    const float *bias;
    int add;
    hc_gemm_prefetch *prefetch; /* NULL, or memory to prefetch: up to `share` lines */
} hc_gemm_block;

typedef struct {
    const char *name; /* "gemm_<dtype>_<isa>" */
    int isa;
    int dtype; /* compute type: HC_F32, HC_BF16 (panels of rounded values, as bf16 or as fp32), HC_F64 */
    /* Constant on one machine. These are functions, because they depend on the vector length on Arm. */
    int64_t (*mr)(void);
    int64_t (*nr)(void);
    int64_t kr;
    int64_t element_bytes; /* bytes per packed element; a panel has mr (A) or nr (B) times round_up(k, kr) elements */

    /* Pack rows 0..m of `a` (any strides; fp32 or bf16, fp64 for HC_F64) and depth 0..k into ceil(m / mr) consecutive
     * panels. Each element is first multiplied by `scale`. row_sum is NULL, or m sums in fp32 (fp64 for HC_F64), to
     * which the sums of the rows over k are added. out_panels is aligned to 64 bytes. */
    void (*pack_a)(int64_t m, int64_t k, const hc_matrix *a, float scale, void *out_panels, float *row_sum);

    /* Pack depth 0..k and columns 0..n of `b` into ceil(n / nr) consecutive panels. */
    void (*pack_b)(int64_t k, int64_t n, const hc_matrix *b, void *out_panels);

    /* Compute c[i, j] = sum over p of A[i, p] B[p, j] for i < m, j < n (any m, n >= 1, k >= 1) from packed panels. With
     * `add`, add the result to c. c is fp32 (fp64 for HC_F64) with row stride ldc. bias is NULL, or n elements of the
     * type of c, added to every row. Nothing outside m x n is written. The state of the matrix unit (AMX configuration,
     * streaming mode) is entered and left once per call. */
    void (*block)(int64_t m, int64_t n, int64_t k, const void *a_panels, const void *b_panels, void *c, int64_t ldc,
                  const void *bias, int add);

    /* 0: the layout of panels of B is private to the kernel. Otherwise element (p, j) of a panel of B is at ((p /
     * b_group) * nr + j) * b_group + p % b_group, so that other code can write it. Attention stores its probabilities
     * there without packing. 1: rows of nr elements. 2: pairs of bf16, the layout of dot-product and matrix units. */
    int64_t b_group;

    /* NULL, or `block` that also prefetches `share` lines of `prefetch` during the product. */
    void (*block_prefetch)(int64_t m, int64_t n, int64_t k, const void *a_panels, const void *b_panels, void *c,
                           int64_t ldc, const void *bias, int add, hc_gemm_prefetch *prefetch);

    /* NULL, or `block` with additional options. */
    void (*wide_block)(const hc_gemm_block *x);
    int64_t rows_in_place; /* > 0: wide_block reads unpacked rows of bf16, this many at a time */
    int64_t most_depth;    /* > 0: k is not split up to this depth; 0: use the rule in blocking.c */
    int64_t split_depth;   /* depth of blocks if k exceeds most_depth > 0 */

    /* NULL, or, for a kernel with a limited range of operands (gemm_range.c), a function that returns the largest
     * magnitude in rows x columns of x, as fp32 bits without the sign. */
    uint32_t (*largest)(int64_t rows, int64_t columns, const hc_matrix *x);
    /* If `largest` is set: pack_a and pack_b that return the largest magnitude before scaling. */
    uint32_t (*pack_a_max)(int64_t m, int64_t k, const hc_matrix *a, float scale, void *out_panels, float *row_sum);
    uint32_t (*pack_b_max)(int64_t k, int64_t n, const hc_matrix *b, void *out_panels);

    /* NULL, or a block function for operands in the nearest caches: gemm/near_block.h. */
    hc_near_block_kernel *near_block;
    hc_near_tail_kernel *near_tail_a, *near_tail_b;
} hc_gemm_kernel;

#endif
