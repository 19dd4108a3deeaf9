/* The contract between the ISA-free half of a matrix product (gemm_job.c, attention.c) and the kernels of an
 * instruction set.
 *
 * Operands are packed into panels. A panel of A holds mr rows and all of k; a panel of B holds nr columns and all of
 * k. k is padded with zeros to a multiple of kr, m and n with zeros to multiples of mr and nr. What a panel looks like
 * inside is the kernel's affair: only its own pack functions write it and only its own block function reads it. */
#ifndef HC_GEMM_KERNEL_H
#define HC_GEMM_KERNEL_H

#include <stdint.h>

#include "gemm/near_block.h"
#include "hcops.h"

/* Memory that will be packed next: runs of cache lines, of which a block asks for `share` while it multiplies, so that
 * packing does not wait for them. */
typedef struct hc_gemm_ahead {
    const char *next;        /* line to ask for */
    int64_t left;            /* lines of this run that follow, this one included */
    int64_t lines;           /* of a complete run */
    int64_t jump;            /* bytes from the line behind a run to the next run */
    int64_t remaining;       /* lines of all runs; the kernel takes off what it asked for */
    int64_t share;           /* lines to ask for in this block */
} hc_gemm_ahead;

/* A block, as for `block` below, with more freedom. */
typedef struct {
    int64_t m, n, k;
    const void *a;       /* panels, or rows of bf16 themselves */
    int64_t a_row_bytes; /* 0: panels; otherwise the bytes from row to row, m a multiple of rows_in_place and k of kr */
    const void *b_panels;
    void *c;
    int64_t ldc;
    int c_dtype; /* HC_F32, or HC_BF16 without `add`: each sum is rounded once */
    const float *bias;
    int add;
} hc_gemm_block;

typedef struct {
    const char *name; /* "gemm_<dtype>_<isa>" */
    int isa;
    int dtype; /* the compute type it serves: HC_F32, HC_BF16 (panels hold rounded values, as bf16 or as fp32), HC_F64 */
    /* Constant on one machine; functions because Arm's depend on the vector length. */
    int64_t (*mr)(void);
    int64_t (*nr)(void);
    int64_t kr;
    int64_t element_bytes; /* of a packed element: a panel of A has mr * round_up(k, kr) of them, a panel of B nr * ... */

    /* Packs rows 0..m of `a` (any strides; fp32 or bf16, fp64 for HC_F64) and depth 0..k into ceil(m / mr) consecutive
     * panels. row_sum: NULL, or m sums over k in fp32 (fp64 for HC_F64) to which the rows' sums are added. scale: each
     * element is multiplied by it first. out_panels is aligned to 64 bytes. */
    void (*pack_a)(int64_t m, int64_t k, const hc_matrix *a, float scale, void *out_panels, float *row_sum);

    /* Packs depth 0..k and columns 0..n of `b` into ceil(n / nr) consecutive panels. */
    void (*pack_b)(int64_t k, int64_t n, const hc_matrix *b, void *out_panels);

    /* c[i, j] = sum over p of A[i, p] B[p, j] for i < m, j < n (any m, n >= 1, k >= 1), from the panels above; with
     * `add` it is added to c. c is fp32 (fp64 for HC_F64), row stride ldc. bias: NULL, or n elements of c's type added
     * to every row. Writes nothing outside m x n. State of the CPU's matrix unit (AMX configuration, streaming mode)
     * is entered and left once per call. */
    void (*block)(int64_t m, int64_t n, int64_t k, const void *a_panels, const void *b_panels, void *c, int64_t ldc,
                  const void *bias, int add);

    /* 0: the layout of B's panels is private to the kernel. Otherwise element (p, j) of a panel of B is at ((p /
     * b_group) * nr + j) * b_group + p % b_group, so that other code can write it: attention stores its
     * probabilities there without packing (1: rows of nr elements; 2: pairs of bf16, the layout of dot-product and
     * matrix units). */
    int64_t b_group;

    /* NULL, or block with one more argument: what to ask for meanwhile. */
    void (*block_ahead)(int64_t m, int64_t n, int64_t k, const void *a_panels, const void *b_panels, void *c, int64_t ldc,
                        const void *bias, int add, hc_gemm_ahead *ahead);

    /* NULL, or block with more freedom. */
    void (*wide_block)(const hc_gemm_block *x);
    int64_t rows_in_place; /* > 0: wide_block reads rows of bf16 in place, this many at a time */
    int64_t most_depth;    /* > 0: do not cut k up to this depth; 0: use the rule in blocking.c */
    int64_t split_depth;   /* the depth of blocks of a k beyond most_depth, unless that is 0 */

    /* NULL, or: the kernel serves products of operands of a limited range only (gemm_range.c), and this finds the largest
     * magnitude in rows x columns of x, as the bits of an fp32 without its sign. */
    uint32_t (*largest)(int64_t rows, int64_t columns, const hc_matrix *x);
    /* With `largest`: pack_a and pack_b that return the largest magnitude, before the scale. */
    uint32_t (*pack_a_noting)(int64_t m, int64_t k, const hc_matrix *a, float scale, void *out_panels, float *row_sum);
    uint32_t (*pack_b_noting)(int64_t k, int64_t n, const hc_matrix *b, void *out_panels);

    /* NULL, or a block of which both operands are near: gemm/near_block.h. */
    hc_near_block_kernel *near_block;
    hc_near_tail_kernel *near_tail_a, *near_tail_b;
} hc_gemm_kernel;

#endif
