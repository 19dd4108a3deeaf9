/* Select the heads that a bf16 matrix unit may multiply as split products (gemm/x86/pack_f32_amx.h). The vector unit
 * computes the other heads. The pack functions measure the range. The decision is made per head, so that it does not
 * depend on the number of threads, and a head out of range does not affect other heads. */
#include "attention/attention_work.h"

/* Range of the largest magnitude of a packed block (up to a chunk of q, k, v or dout of a head): 0, or 2^-45 to 2^30.
 * With T K below 2^30 no sum overflows fp32: |S|, |dP| < 2^60 K, |dS| < 2^62 K, and |dQ|, |dK| < 2^92 T K. Products of
 * the largest numbers are at least 2^-90. The lost parts and sums, below 2^-126, are smaller than the rounding error of
 * fp32. lse and delta, which are not multiplied, must be far from infinite. */
#define MIN_EXPONENT (-45)
#define MAX_EXPONENT 30
#define MAX_OF_SUMS ((uint32_t)(127 + 100) << 23)

/* Mark a head as out of range. Threads that share a head may each check a different part of it; one mark suffices. The
 * results of the head are overwritten later. */
static void reject_head(const hc_attention *work, int64_t head) {
    __atomic_store_n(work->rejected + head, 1, __ATOMIC_RELAXED);
    __atomic_store_n(work->any_rejected, 1, __ATOMIC_RELAXED);
}

static void check_range(const hc_attention *work, int64_t head, uint32_t largest) {
    const int exponent = (int)(largest >> 23) - 127;
    if (largest != 0 && (exponent < MIN_EXPONENT || exponent >= MAX_EXPONENT)) {
        reject_head(work, head);
    }
}

void hc_pack_a(const hc_attention *work, int64_t head, int64_t m, int64_t k, const hc_matrix *a, void *out_panels,
               int is_along_k) {
    if (work->gemm->pack_a_max != NULL) {
        check_range(work, head, work->gemm->pack_a_max(m, k, a, 1.0f, out_panels, NULL));
    } else {
        work->gemm->pack_a(m, k, a, 1.0f, out_panels, NULL);
    }
    if (is_along_k && work->tail) {
        work->gemm->near_tail_a(hc_blocks(m, work->gemm->mr()), k, out_panels);
    }
}

void hc_pack_b(const hc_attention *work, int64_t head, int64_t k, int64_t n, const hc_matrix *b, void *out_panels,
               int is_along_k) {
    if (work->gemm->pack_b_max != NULL) {
        check_range(work, head, work->gemm->pack_b_max(k, n, b, out_panels));
    } else {
        work->gemm->pack_b(k, n, b, out_panels);
    }
    if (is_along_k && work->tail) {
        work->gemm->near_tail_b(hc_blocks(n, work->gemm->nr()), k, out_panels);
    }
}

void hc_check_sums(const hc_attention *work, int64_t head, const float *lse, const float *delta) {
    const hc_matrix all_lse = {(void *)(uintptr_t)lse, work->t, 1, HC_F32};
    const hc_matrix all_delta = {(void *)(uintptr_t)delta, work->t, 1, HC_F32};
    if (work->gemm->largest != NULL && (work->gemm->largest(1, work->t, &all_lse) > MAX_OF_SUMS ||
                                        work->gemm->largest(1, work->t, &all_delta) > MAX_OF_SUMS)) {
        reject_head(work, head);
    }
}
