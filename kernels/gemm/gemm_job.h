/* State of one matrix product: the decisions of gemm.c, and the memory of packed operands. Internal. */
#ifndef HC_GEMM_JOB_H
#define HC_GEMM_JOB_H

#include <stddef.h>
#include <stdint.h>

#include "context.h"
#include "gemm/blocking.h"
#include "gemm/epilogue.h"
#include "gemm/matrix.h"

typedef struct {
    const hc_context *context;
    const hc_gemm_arguments *arguments;
    const hc_gemm_kernel *kernel;
    hc_epilogue_kernel *finish; /* NULL: C is complete after summation */
    hc_gemm_plan plan;
    int64_t padded_k;    /* k rounded up to kr */
    int64_t c_bytes;     /* bytes per sum */
    int in_place;        /* 1: A is not packed */
    int rounds;          /* 1: the kernel rounds its sums to bf16 of C */
    int by_columns;      /* 1: threads process all their rows per chunk of columns, which stays in the L2 cache */
    int sums_in_scratch; /* 1: sums are in scratch memory: C is bf16, or the epilogue reads memory that C overwrites */
    const struct hc_packed_b *packed; /* NULL: the job packs B */
    /* memory of the first cluster or thread, and the distances of the next, in bytes: */
    char *b_panels, *a_panels, *sums;
    int64_t b_stride, a_stride, sums_stride;
    struct hc_share *shares; /* per thread of the plan, in blocks of rows (by_columns: of each chunk) */
    const void *bias;        /* in the type of the sums */
    uint32_t largest_a, largest_b; /* largest magnitudes so far, if the kernel has a limited range */
} hc_gemm_job;

/* Return 1 if the epilogue has terms other than the bias. */
static inline int hc_finishes(const hc_epilogue *e) {
    return e->out_before != NULL || e->gelu || e->gelu_gradient_at != NULL || e->gate != NULL || e->residual != NULL;
}

/* Return the bias. A bf16 bias is widened to fp32 in `out_wide` (n). */
const void *hc_widen_bias(const hc_epilogue *epilogue, int64_t n, float *out_wide);

/* Compute the product on the threads of the context, with its lock held. Set the plan and all later fields of the job.
 * The caller sets the earlier fields. */
int hc_gemm_run(hc_context *context, hc_gemm_job *job);

#endif
