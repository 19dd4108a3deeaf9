/* B of matrix products, packed once for several products. Internal. */
#ifndef HC_GEMM_PACKED_H
#define HC_GEMM_PACKED_H

#include <stdint.h>

#include "gemm/gemm_job.h"

/* Header of the memory of a packed B. It is followed by blocks of depth kc, each with all panels of n columns. */
typedef struct hc_packed_b {
    _Alignas(64) uint64_t tag; /* HC_PACKED_B_TAG */
    const hc_gemm_kernel *kernel;
    int64_t n, k, kc;
    uint32_t largest; /* largest magnitude, if the kernel has a limited range */
} hc_packed_b;

int64_t hc_packed_b_bytes(const hc_gemm_plan *plan, const hc_gemm_kernel *kernel);

/* Pack B of a planned job on the threads of its context. The caller holds the context's lock. */
void hc_packed_b_fill(hc_gemm_job *job, hc_packed_b *out);

/* Return 1 for a valid handle with the sizes of this product's B. */
int hc_is_packed_b(const hc_packed_b *packed, const hc_gemm_arguments *x);

/* Return 1 if the job can read the packed B. Return 0 if it was packed for another kernel or depth; the job then packs
 * B itself. */
int hc_packed_b_serves(const hc_packed_b *packed, const hc_gemm_job *job);

/* Return the packed panels from depth p and column j on. p is a multiple of kc, j of nr. */
const char *hc_packed_b_at(const hc_packed_b *packed, int64_t p, int64_t j);

#endif
