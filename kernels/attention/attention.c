/* Attention: arguments, how the problem is cut, and scratch memory. */
#include "array.h"
#include "attention/attention_work.h"

#include <math.h>
#include <string.h>

/* Where there are fewer heads than this for each thread, a head's segments are spread: less is lost at the end to
 * uneven parts. */
#define HEADS_PER_THREAD 4

/* Products in parts: shorter and narrower ones would mostly be padding. The most is what attention_range.c counts on. */
#define LEAST_TOKENS_IN_PARTS 64
#define LEAST_WIDTH_IN_PARTS 40
#define MOST_IN_PARTS ((int64_t)1 << 30)

/* Panels of 32 columns of a block of scores, and rows of S and dP at once. */
#define PANELS_IN_PARTS 2
#define PART_ROWS_IN_PARTS 64

static int is_type(int type) {
    return type == HC_F32 || type == HC_BF16;
}

static int sizes_are_bad(int64_t n, int64_t t, int64_t h, int64_t k, int compute) {
    const int64_t heads = hc_count(n, t, h);
    return heads < 0 || k < 1 || hc_count(heads, k, 3) < 0 || !is_type(compute);
}

/* What follows from sizes and kernels; the tensors are filled in by the caller. */
static hc_attention plan(const hc_context *context, int64_t n, int64_t t, int64_t h, int64_t k,
                         const hc_gemm_kernel *gemm) {
    hc_attention work = {.kernels = context->kernels, .team = context->team, .n = n, .t = t, .h = h, .k = k};
    const int in_parts = gemm == context->kernels->gemm_f32_split;
    work.gemm = gemm;
    work.nr = in_parts ? PANELS_IN_PARTS * gemm->nr() : gemm->nr();
    work.lanes = in_parts ? gemm->nr() : context->kernels->attention_lanes();
    work.width = hc_round_up(work.nr, work.lanes);
    work.tail = in_parts && k % gemm->kr >= 1 && k % gemm->kr <= HC_NEAR_MOST_TAIL;
    work.padded_k = in_parts ? hc_round_up(k, 16) : k;
    /* Equal chunks of about CHUNK_ROWS, so that T = 257 is one of 257 and not one of 256 and one of 1. */
    const int64_t chunks = t < CHUNK_ROWS ? 1 : (t + CHUNK_ROWS / 2) / CHUNK_ROWS;
    work.chunk = hc_blocks(t, chunks);
    work.num_chunks = hc_blocks(t, work.chunk);
    work.part = hc_round_up(in_parts ? PART_ROWS_IN_PARTS : gemm->element_bytes == 4 ? PART_ROWS : PART_ROWS_BF16, gemm->mr());
    work.looks_ahead = t <= LOOK_AHEAD_TOKENS;
    work.num_segments = hc_blocks(t, SEGMENT_KEYS);
    work.scale = (float)(1.0 / sqrt((double)k));
    work.packs = !in_parts && (work.width != work.nr || !((gemm->b_group == 1 && gemm->element_bytes == 4) ||
                                                          (gemm->b_group == 2 && gemm->element_bytes == 2)));
    work.panel = in_parts                                     ? HC_PANEL_PARTS
                 : work.packs || gemm->dtype == HC_F32 ? HC_PANEL_F32
                 : gemm->b_group == 1                         ? HC_PANEL_ROUNDED
                                                              : HC_PANEL_PAIRS;
    return work;
}

/* The tensors of both directions. */
static hc_attention with_tensors(hc_attention plan, const hc_attention *tensors) {
    plan.qkv = tensors->qkv;
    plan.qkv_type = tensors->qkv_type;
    plan.out = tensors->out;
    plan.out_type = tensors->out_type;
    plan.dout = tensors->dout;
    plan.dout_type = tensors->dout_type;
    plan.lse = tensors->lse;
    plan.result = tensors->result;
    plan.result_type = tensors->result_type;
    plan.out_lse = tensors->out_lse;
    return plan;
}

/* What the threads of a job need of scratch memory: sets it in `work`, returns the bytes of all. */
static int64_t lay_out_scratch(const hc_context *context, hc_attention *work) {
    const int64_t threads = context->num_threads, heads = work->n * work->h, head_bytes = work->t * work->padded_k * 4;
    const int is_forward = work->out_lse != NULL;
    const int64_t bytes = is_forward ? hc_attention_forward_bytes(work) : hc_attention_backward_bytes(work);
    work->thread_bytes = hc_round_up(bytes, 4096);
    work->group = 0;
    if (!is_forward && work->num_segments > 1 && heads < HEADS_PER_THREAD * threads) {
        work->group = hc_least(heads, hc_blocks(HEADS_PER_THREAD * threads, work->num_segments));
    }
    work->num_threads = context->num_threads;
    return threads * (work->thread_bytes + (int64_t)sizeof(hc_share)) + work->group * work->num_segments * head_bytes;
}

static void run_in(hc_context *context, char *scratch, hc_attention *work) {
    const int64_t units = work->n * work->h * (work->out_lse != NULL ? hc_blocks(work->t, work->nr) : 1);
    work->scratch = scratch;
    work->units = (hc_share *)(void *)(scratch + work->num_threads * work->thread_bytes);
    work->partial = work->group > 0 ? (float *)(void *)(work->units + work->num_threads) : NULL;
    for (int i = 0; i < work->num_threads; i++) {
        int64_t start, stop;
        hc_part(units, 1, i, work->num_threads, &start, &stop);
        hc_share_fill(&work->units[i], start, stop);
    }
    hc_team_run(context->team, 0, work->out_lse != NULL ? hc_attention_forward_job : hc_attention_backward_job, work);
}

/* In parts where that gains, and then with the other kernel what was left. */
static int run(hc_context *context, const hc_attention *sizes, int compute) {
    const int64_t n = sizes->n, t = sizes->t, h = sizes->h, k = sizes->k;
    const hc_gemm_kernel *whole = compute == HC_F32 ? context->kernels->gemm_f32 : context->kernels->gemm_bf16;
    const hc_gemm_kernel *split = context->kernels->gemm_f32_split;
    const int in_parts = compute == HC_F32 && split != NULL && t >= LEAST_TOKENS_IN_PARTS && k >= LEAST_WIDTH_IN_PARTS &&
                         t * k <= MOST_IN_PARTS;
    hc_attention work = with_tensors(plan(context, n, t, h, k, whole), sizes), parts = {.group = 0};
    int64_t bytes = lay_out_scratch(context, &work);
    if (in_parts) {
        parts = with_tensors(plan(context, n, t, h, k, split), sizes);
        const int64_t parts_bytes = lay_out_scratch(context, &parts);
        bytes = hc_round_up(parts_bytes > bytes ? parts_bytes : bytes, 64);
    }
    hc_lock(context);
    char *scratch = hc_scratch(context, bytes + (in_parts ? n * h + 1 : 0));
    if (scratch != NULL && in_parts) {
        parts.left = (uint8_t *)scratch + bytes;
        parts.num_left = parts.left + n * h;
        memset(parts.left, 0, (size_t)(n * h + 1));
        run_in(context, scratch, &parts);
        work.left = parts.left;
        work.takes_left = 1;
    }
    if (scratch != NULL && (!in_parts || *parts.num_left)) {
        run_in(context, scratch, &work);
    }
    hc_unlock(context);
    return scratch != NULL ? HC_OK : HC_OUT_OF_MEMORY;
}

int hc_attention_forward(hc_context *context, int64_t n, int64_t t, int64_t h, int64_t k, const void *qkv, int qkv_type,
                         void *out, int out_type, float *out_lse, int compute) {
    if (!hc_is_context(context) || sizes_are_bad(n, t, h, k, compute) || !is_type(qkv_type) || !is_type(out_type)) {
        return HC_BAD_ARGUMENT;
    }
    if (n * t * h == 0) {
        return HC_OK;
    }
    if (qkv == NULL || out == NULL || out_lse == NULL) {
        return HC_BAD_ARGUMENT;
    }
    const hc_attention sizes = {.n = n, .t = t, .h = h, .k = k, .qkv = qkv, .qkv_type = qkv_type,
                                .result = out, .result_type = out_type, .out_lse = out_lse};
    return run(context, &sizes, compute);
}

int hc_attention_backward(hc_context *context, int64_t n, int64_t t, int64_t h, int64_t k, const void *dout, int dout_type,
                          const void *qkv, int qkv_type, const void *out, int out_type, const float *lse, void *out_dqkv,
                          int dqkv_type, int compute) {
    if (!hc_is_context(context) || sizes_are_bad(n, t, h, k, compute) || !is_type(dout_type) || !is_type(qkv_type) ||
        !is_type(out_type) || !is_type(dqkv_type)) {
        return HC_BAD_ARGUMENT;
    }
    if (n * t * h == 0) {
        return HC_OK;
    }
    if (dout == NULL || qkv == NULL || out == NULL || lse == NULL || out_dqkv == NULL) {
        return HC_BAD_ARGUMENT;
    }
    const hc_attention sizes = {.n = n, .t = t, .h = h, .k = k, .qkv = qkv, .qkv_type = qkv_type, .out = out,
                                .out_type = out_type, .dout = dout, .dout_type = dout_type, .lse = lse,
                                .result = out_dqkv, .result_type = dqkv_type};
    return run(context, &sizes, compute);
}
