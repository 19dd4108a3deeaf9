/* Attention: arguments, how the problem is cut, and scratch memory. */
#include "attention/attention_work.h"

#include <math.h>

/* Where there are fewer heads than this for each thread, a head's segments are spread: less is lost at the end to
 * uneven parts. */
#define HEADS_PER_THREAD 4

static int is_type(int type) {
    return type == HC_F32 || type == HC_BF16;
}

static int sizes_are_bad(int64_t n, int64_t t, int64_t h, int64_t k, int compute) {
    return n < 0 || t < 0 || h < 0 || k < 1 || !is_type(compute);
}

/* What follows from sizes and kernels; the tensors are filled in by the caller. */
static hc_attention plan(const hc_context *context, int64_t n, int64_t t, int64_t h, int64_t k, int compute) {
    hc_attention work = {.kernels = context->kernels, .team = context->team, .n = n, .t = t, .h = h, .k = k};
    const hc_gemm_kernel *gemm = compute == HC_F32 ? context->kernels->gemm_f32 : context->kernels->gemm_bf16;
    work.gemm = gemm;
    work.nr = gemm->nr();
    work.lanes = context->kernels->attention_lanes();
    work.width = hc_round_up(work.nr, work.lanes);
    /* Equal chunks of about CHUNK_ROWS, so that T = 257 is one of 257 and not one of 256 and one of 1. */
    const int64_t chunks = t < CHUNK_ROWS ? 1 : (t + CHUNK_ROWS / 2) / CHUNK_ROWS;
    work.chunk = hc_blocks(t, chunks);
    work.num_chunks = hc_blocks(t, work.chunk);
    work.part = hc_round_up(gemm->element_bytes == 4 ? PART_ROWS : PART_ROWS_BF16, gemm->mr());
    work.looks_ahead = t <= LOOK_AHEAD_TOKENS;
    work.num_segments = hc_blocks(t, SEGMENT_KEYS);
    work.scale = (float)(1.0 / sqrt((double)k));
    work.packs = work.width != work.nr || !((gemm->b_group == 1 && gemm->element_bytes == 4) ||
                                            (gemm->b_group == 2 && gemm->element_bytes == 2));
    work.panel = work.packs || compute == HC_F32 ? HC_PANEL_F32 : gemm->b_group == 1 ? HC_PANEL_ROUNDED : HC_PANEL_PAIRS;
    return work;
}

int hc_attention_forward(hc_context *context, int64_t n, int64_t t, int64_t h, int64_t k, const void *qkv, int qkv_type,
                         void *out, int out_type, float *out_lse, int compute) {
    if (context == NULL || sizes_are_bad(n, t, h, k, compute) || !is_type(qkv_type) || !is_type(out_type)) {
        return HC_BAD_ARGUMENT;
    }
    if (n * t * h == 0) {
        return HC_OK;
    }
    if (qkv == NULL || out == NULL || out_lse == NULL) {
        return HC_BAD_ARGUMENT;
    }
    hc_attention work = plan(context, n, t, h, k, compute);
    work.qkv = qkv;
    work.qkv_type = qkv_type;
    work.result = out;
    work.result_type = out_type;
    work.out_lse = out_lse;
    work.thread_bytes = hc_round_up(hc_attention_forward_bytes(&work), 4096);
    hc_lock(context);
    work.scratch = hc_scratch(context, context->num_threads * work.thread_bytes);
    if (work.scratch != NULL) {
        hc_team_run(context->team, 0, hc_attention_forward_job, &work);
    }
    hc_unlock(context);
    return work.scratch != NULL ? HC_OK : HC_OUT_OF_MEMORY;
}

int hc_attention_backward(hc_context *context, int64_t n, int64_t t, int64_t h, int64_t k, const void *dout, int dout_type,
                          const void *qkv, int qkv_type, const void *out, int out_type, const float *lse, void *out_dqkv,
                          int dqkv_type, int compute) {
    if (context == NULL || sizes_are_bad(n, t, h, k, compute) || !is_type(dout_type) || !is_type(qkv_type) ||
        !is_type(out_type) || !is_type(dqkv_type)) {
        return HC_BAD_ARGUMENT;
    }
    if (n * t * h == 0) {
        return HC_OK;
    }
    if (dout == NULL || qkv == NULL || out == NULL || lse == NULL || out_dqkv == NULL) {
        return HC_BAD_ARGUMENT;
    }
    hc_attention work = plan(context, n, t, h, k, compute);
    work.dout = dout;
    work.dout_type = dout_type;
    work.qkv = qkv;
    work.qkv_type = qkv_type;
    work.out = out;
    work.out_type = out_type;
    work.lse = lse;
    work.result = out_dqkv;
    work.result_type = dqkv_type;
    work.thread_bytes = hc_round_up(hc_attention_backward_bytes(&work), 4096);
    const int64_t shares = context->num_threads * work.thread_bytes;
    const int spread = work.num_segments > 1 && n * h < HEADS_PER_THREAD * (int64_t)context->num_threads;
    hc_lock(context);
    work.scratch = hc_scratch(context, shares + (spread ? n * h * work.num_segments * t * k * 4 : 0));
    if (work.scratch != NULL) {
        work.partial = spread ? (float *)(void *)(work.scratch + shares) : NULL;
        hc_team_run(context->team, 0, hc_attention_backward_job, &work);
    }
    hc_unlock(context);
    return work.scratch != NULL ? HC_OK : HC_OUT_OF_MEMORY;
}
