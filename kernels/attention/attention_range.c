/* Which heads may be multiplied in parts, by a matrix unit of bf16 (gemm/x86/pack_f32_amx.h), and which are left to the vector
 * unit: found while they are packed. It is decided head by head, so that it depends on no thread and an odd head costs no
 * other. */
#include "attention/attention_work.h"

/* The largest magnitude of what is packed at once (up to a chunk of a head's q, k, v or dout) is 0 or from 2^-45 to 2^30. With
 * T K below 2^30 no sum then leaves fp32: |S|, |dP| < 2^60 K, |dS| < 2^62 K, and |dQ|, |dK| < 2^92 T K. Products of the
 * largest numbers are 2^-90 at least: what is lost of them, parts and sums below 2^-126, is less than fp32 rounds away. lse
 * and delta, which need no product, must be far from infinite. */
#define MIN_EXPONENT (-45)
#define MAX_EXPONENT 30
#define MAX_OF_SUMS ((uint32_t)(127 + 100) << 23)

/* Threads that share a head may each see another part of it: one is enough. Its results are written again later. */
static void leave_head(const hc_attention *work, int64_t head) {
    __atomic_store_n(work->left + head, 1, __ATOMIC_RELAXED);
    __atomic_store_n(work->num_left, 1, __ATOMIC_RELAXED);
}

static void note(const hc_attention *work, int64_t head, uint32_t largest) {
    const int exponent = (int)(largest >> 23) - 127;
    if (largest != 0 && (exponent < MIN_EXPONENT || exponent >= MAX_EXPONENT)) {
        leave_head(work, head);
    }
}

void hc_pack_a(const hc_attention *work, int64_t head, int64_t m, int64_t k, const hc_matrix *a, void *out_panels,
               int is_along_k) {
    if (work->gemm->pack_a_noting != NULL) {
        note(work, head, work->gemm->pack_a_noting(m, k, a, 1.0f, out_panels, NULL));
    } else {
        work->gemm->pack_a(m, k, a, 1.0f, out_panels, NULL);
    }
    if (is_along_k && work->tail) {
        work->gemm->near_tail_a(hc_blocks(m, work->gemm->mr()), k, out_panels);
    }
}

void hc_pack_b(const hc_attention *work, int64_t head, int64_t k, int64_t n, const hc_matrix *b, void *out_panels,
               int is_along_k) {
    if (work->gemm->pack_b_noting != NULL) {
        note(work, head, work->gemm->pack_b_noting(k, n, b, out_panels));
    } else {
        work->gemm->pack_b(k, n, b, out_panels);
    }
    if (is_along_k && work->tail) {
        work->gemm->near_tail_b(hc_blocks(n, work->gemm->nr()), k, out_panels);
    }
}

void hc_note_sums(const hc_attention *work, int64_t head, const float *lse, const float *delta) {
    const hc_matrix all_lse = {(void *)(uintptr_t)lse, work->t, 1, HC_F32};
    const hc_matrix all_delta = {(void *)(uintptr_t)delta, work->t, 1, HC_F32};
    if (work->gemm->largest != NULL && (work->gemm->largest(1, work->t, &all_lse) > MAX_OF_SUMS ||
                                        work->gemm->largest(1, work->t, &all_delta) > MAX_OF_SUMS)) {
        leave_head(work, head);
    }
}
