/* Second operand of products, packed once for many products. Internal. */
#ifndef HC_GEMM_PACKED_H
#define HC_GEMM_PACKED_H

#include <stdint.h>

#include "gemm/gemm_job.h"

/* How the memory of a packed B begins. Behind it: block by block of depth kc, in each all panels of all n columns. */
typedef struct hc_packed_b {
    _Alignas(64) uint64_t tag; /* HC_PACKED_B_TAG */
    const hc_gemm_kernel *kernel;
    int64_t n, k, kc;
    uint32_t largest; /* magnitude, where the kernel is of a limited range */
} hc_packed_b;

int64_t hc_packed_b_bytes(const hc_gemm_plan *plan, const hc_gemm_kernel *kernel);

/* Pack B of a planned job on the threads of its context. The caller holds the context's lock. */
void hc_packed_b_fill(hc_gemm_job *job, hc_packed_b *out);

/* 1: it may belong to a product with this B. */
int hc_is_packed_b(const hc_packed_b *packed, const hc_gemm_arguments *x);

/* 1: the job reads it; 0: it was packed for another kernel or depth, and the job packs for itself. */
int hc_packed_b_serves(const hc_packed_b *packed, const hc_gemm_job *job);

/* Its panels from depth p and column j on, a block of kc and a panel of nr. */
const char *hc_packed_b_at(const hc_packed_b *packed, int64_t p, int64_t j);

#endif
