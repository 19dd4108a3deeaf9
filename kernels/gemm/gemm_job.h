/* State of one matrix product: decisions of gemm.c, and memory in which threads store packed operands. Internal. */
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
    hc_epilogue_kernel *finish; /* NULL: C is complete once it is summed */
    hc_gemm_plan plan;
    int64_t whole_k;     /* k rounded up to kr */
    int64_t c_bytes;     /* of an element of a sum */
    int in_place;        /* 1: A is not packed */
    int rounds;          /* 1: the kernel rounds its sums to C's bf16 */
    int sums_apart;      /* 1: sums are kept in scratch, because C is bf16 or the epilogue reads what C overwrites */
    const struct hc_packed_b *packed; /* NULL: B is packed here */
    /* of cluster or thread 0; the next one's lie as many bytes further: */
    char *b_panels, *a_panels, *sums;
    int64_t b_stride, a_stride, sums_stride;
    struct hc_share *shares; /* of each thread of the plan, in tiles of rows */
    const void *bias;        /* in the type of the sums */
    uint32_t largest_a, largest_b; /* magnitudes of the operands so far, where the kernel is of a limited range */
} hc_gemm_job;

/* 1: something but the bias happens to C before it is stored. */
static inline int hc_finishes(const hc_epilogue *e) {
    return e->out_before != NULL || e->gelu || e->gelu_gradient_at != NULL || e->gate != NULL || e->residual != NULL;
}

/* The bias; one of bf16 as fp32, in `out_wide` of n elements. */
const void *hc_widen_bias(const hc_epilogue *epilogue, int64_t n, float *out_wide);

/* Compute the product on the threads of the context, with its lock held. Sets the plan and all later fields of the
 * job; earlier fields are given. */
int hc_gemm_run(hc_context *context, hc_gemm_job *job);

#endif
