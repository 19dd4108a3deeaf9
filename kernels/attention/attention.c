/* Attention: argument checks, the partition of the problem, and scratch memory. */
#include "array.h"
#include "attention/attention_work.h"

#include <math.h>
#include <string.h>

/* With fewer heads per thread than this, the segments of a head are distributed over threads. This reduces the idle
 * time at the end that uneven parts cause. */
#define HEADS_PER_THREAD 4

/* Limits for split products (three bf16 per fp32 number). Shorter and narrower products would mostly compute padding.
 * attention_range.c relies on the upper limit. */
#define MIN_TOKENS_IN_PARTS 64
#define MIN_WIDTH_IN_PARTS 40
#define MAX_IN_PARTS ((int64_t)1 << 30)

/* Panels of 32 columns per block of scores, and rows of S and dP per call. */
#define PANELS_IN_PARTS 2
#define PART_ROWS_IN_PARTS 64


/* Rows of a block of scores in causal attention. A smaller block computes fewer scores that the mask hides. */
#define CAUSAL_CHUNK_ROWS 64

static int is_type(int type) {
    return type == HC_F32 || type == HC_BF16;
}

static int sizes_are_invalid(const hc_attention_arguments *a) {
    const int64_t queries = hc_count(a->n, a->queries, a->h), keys = hc_count(a->n, a->keys, a->h);
    return queries < 0 || keys < 0 || a->k < 1 || hc_count(queries, a->k, 3) < 0 || hc_count(keys, a->k, 3) < 0 ||
           a->key_heads < 0 || (a->h > 0 && (a->key_heads < 1 || a->h % a->key_heads != 0)) || !is_type(a->compute) ||
           !(a->scale > 0.0f && a->scale < INFINITY) || a->queries_like < 0;
}

/* Derive the block sizes from the problem sizes and the kernels. */
static hc_attention plan(const hc_context *context, const hc_attention_arguments *a, int is_forward,
                         const hc_gemm_kernel *gemm) {
    hc_attention work = {.kernels = context->kernels, .team = context->team, .n = a->n, .t = a->queries, .keys = a->keys,
                         .h = a->h, .k = a->k, .share = a->h / a->key_heads, .causal = a->causal != 0, .scale = a->scale,
                         .query = a->query, .key = a->key, .value = a->value, .out = a->out, .dout = a->dout,
                         .dquery = a->out_dquery, .dkey = a->out_dkey, .dvalue = a->out_dvalue, .lse = a->out_lse,
                         .is_forward = is_forward};
    const int in_parts = gemm == context->kernels->gemm_f32_split;
    work.gemm = gemm;
    work.nr = in_parts ? PANELS_IN_PARTS * gemm->nr() : gemm->nr();
    work.lanes = in_parts ? gemm->nr() : context->kernels->attention_lanes();
    work.width = hc_round_up(work.nr, work.lanes);
    work.tail = in_parts && a->k % gemm->kr >= 1 && a->k % gemm->kr <= HC_NEAR_MOST_TAIL;
    work.padded_k = in_parts ? hc_round_up(a->k, 16) : a->k;
    /* Equal chunks of about `about` rows. T = 257 is then one chunk of 257 rows, not a chunk of 256 and a chunk of
     * 1. */
    const int64_t about = work.causal ? CAUSAL_CHUNK_ROWS : CHUNK_ROWS;
    work.rows = is_forward ? work.keys : work.t;
    const int64_t chunks = work.rows < about ? 1 : (work.rows + about / 2) / about;
    work.chunk = hc_blocks(work.rows, chunks);
    work.num_chunks = hc_blocks(work.rows, work.chunk);
    work.part = hc_round_up(in_parts ? PART_ROWS_IN_PARTS : gemm->element_bytes == 4 ? PART_ROWS : PART_ROWS_BF16, gemm->mr());
    work.prefetches_next = hc_max_i64(work.t, work.keys) <= LOOK_AHEAD_TOKENS;
    work.num_segments = hc_blocks(work.keys, SEGMENT_KEYS);
    work.packs = !in_parts && (work.width != work.nr || !((gemm->b_group == 1 && gemm->element_bytes == 4) ||
                                                          (gemm->b_group == 2 && gemm->element_bytes == 2)));
    work.panel = in_parts                                     ? HC_PANEL_PARTS
                 : work.packs || gemm->dtype == HC_F32 ? HC_PANEL_F32
                 : gemm->b_group == 1                         ? HC_PANEL_ROUNDED
                                                              : HC_PANEL_PAIRS;
    return work;
}

/* Set the scratch memory per thread in `work`. Return the bytes of scratch memory of all threads. */
static int64_t lay_out_scratch(const hc_context *context, hc_attention *work) {
    const int64_t threads = context->num_threads, heads = work->n * work->h, head_bytes = work->t * work->padded_k * 4;
    const int64_t bytes = work->is_forward ? hc_attention_forward_bytes(work) : hc_attention_backward_bytes(work);
    work->thread_bytes = hc_round_up(bytes, 4096);
    work->group = 0;
    if (!work->is_forward && work->num_segments > 1 && heads < HEADS_PER_THREAD * threads) {
        work->group = hc_min_i64(heads, hc_blocks(HEADS_PER_THREAD * threads, work->num_segments));
    }
    work->num_threads = context->num_threads;
    return threads * (work->thread_bytes + (int64_t)sizeof(hc_share)) + work->group * work->num_segments * head_bytes;
}

static void run_in(hc_context *context, char *scratch, hc_attention *work) {
    const int64_t units = work->n * work->h * (work->is_forward ? hc_blocks(work->t, work->nr) : 1);
    work->scratch = scratch;
    work->units = (hc_share *)(void *)(scratch + work->num_threads * work->thread_bytes);
    work->partial = work->group > 0 ? (float *)(void *)(work->units + work->num_threads) : NULL;
    for (int i = 0; i < work->num_threads; i++) {
        int64_t start, stop;
        hc_part(units, 1, i, work->num_threads, &start, &stop);
        hc_share_fill(&work->units[i], start, stop);
    }
    hc_team_run(context->team, 0, work->is_forward ? hc_attention_forward_job : hc_attention_backward_job, work);
}

/* Run with split products if they are faster. Then compute the heads that are out of their range with the other
 * kernel. */
static int run(hc_context *context, const hc_attention_arguments *a, int is_forward) {
    const int64_t heads = a->n * a->h;
    const hc_gemm_kernel *unsplit = a->compute == HC_F32 ? context->kernels->gemm_f32 : context->kernels->gemm_bf16;
    const hc_gemm_kernel *split = context->kernels->gemm_f32_split;
    const int64_t queries = is_forward && a->queries_like > 0 ? a->queries_like : a->queries;
    const int in_parts = a->compute == HC_F32 && split != NULL &&
                         hc_min_i64(queries, a->keys) >= MIN_TOKENS_IN_PARTS && a->k >= MIN_WIDTH_IN_PARTS &&
                         hc_max_i64(queries, a->keys) * a->k <= MAX_IN_PARTS;
    hc_attention work = plan(context, a, is_forward, unsplit), parts = {.group = 0};
    int64_t bytes = lay_out_scratch(context, &work);
    if (in_parts) {
        parts = plan(context, a, is_forward, split);
        bytes = hc_round_up(hc_max_i64(lay_out_scratch(context, &parts), bytes), 64);
    }
    hc_lock(context);
    char *scratch = hc_scratch(context, bytes + (in_parts ? heads + 1 : 0));
    if (scratch != NULL && in_parts) {
        parts.rejected = (uint8_t *)scratch + bytes;
        parts.any_rejected = parts.rejected + heads;
        memset(parts.rejected, 0, (size_t)(heads + 1));
        run_in(context, scratch, &parts);
        work.rejected = parts.rejected;
        work.takes_rejected = 1;
    }
    if (scratch != NULL && (!in_parts || *parts.any_rejected)) {
        run_in(context, scratch, &work);
    }
    hc_unlock(context);
    return scratch != NULL ? HC_OK : HC_OUT_OF_MEMORY;
}

static int is_heads(const hc_heads *heads) {
    return heads->data != NULL && is_type(heads->type);
}

int hc_attention_heads_forward(hc_context *context, const hc_attention_arguments *a) {
    if (!hc_is_context(context) || a == NULL || sizes_are_invalid(a) || (a->keys == 0 && a->queries > 0)) {
        return HC_BAD_ARGUMENT;
    }
    if (a->n * a->h * a->queries == 0) {
        return HC_OK;
    }
    if (!is_heads(&a->query) || !is_heads(&a->key) || !is_heads(&a->value) || !is_heads(&a->out) || a->out_lse == NULL) {
        return HC_BAD_ARGUMENT;
    }
    return run(context, a, 1);
}

int hc_attention_heads_backward(hc_context *context, const hc_attention_arguments *a) {
    if (!hc_is_context(context) || a == NULL || sizes_are_invalid(a) || (a->keys == 0) != (a->queries == 0)) {
        return HC_BAD_ARGUMENT;
    }
    if (a->n * a->h * a->queries == 0) {
        return HC_OK;
    }
    if (!is_heads(&a->query) || !is_heads(&a->key) || !is_heads(&a->value) || !is_heads(&a->out) || !is_heads(&a->dout) ||
        !is_heads(&a->out_dquery) || !is_heads(&a->out_dkey) || !is_heads(&a->out_dvalue) || a->out_lse == NULL ||
        a->dout.token_stride != a->out.token_stride) {
        return HC_BAD_ARGUMENT;
    }
    return run(context, a, 0);
}

/* Return the heads of part 0 (q), 1 (k) or 2 (v) of qkv (N, T, 3, H, K). */
static hc_heads part_of(const void *qkv, int type, int64_t t, int64_t h, int64_t k, int part) {
    const int64_t offset = part * h * k * hc_type_bytes(type);
    return (hc_heads){qkv == NULL ? NULL : (char *)(uintptr_t)qkv + offset, type, 3 * t * h * k, k, 3 * h * k};
}

/* Return the heads of an array (N, T, H, K). */
static hc_heads plain(const void *data, int type, int64_t t, int64_t h, int64_t k) {
    return (hc_heads){(void *)(uintptr_t)data, type, t * h * k, k, h * k};
}

static hc_attention_arguments packed(int64_t n, int64_t t, int64_t h, int64_t k, const void *qkv, int qkv_type, const void *out,
                                     int out_type, const float *lse, int compute) {
    return (hc_attention_arguments){
        .n = n, .queries = t, .keys = t, .h = h, .key_heads = h, .k = k, .scale = (float)(1.0 / sqrt(k < 1 ? 1.0 : (double)k)),
        .compute = compute, .query = part_of(qkv, qkv_type, t, h, k, 0), .key = part_of(qkv, qkv_type, t, h, k, 1),
        .value = part_of(qkv, qkv_type, t, h, k, 2), .out = plain(out, out_type, t, h, k), .out_lse = (float *)(uintptr_t)lse,
    };
}

int hc_attention_forward(hc_context *context, int64_t n, int64_t t, int64_t h, int64_t k, const void *qkv, int qkv_type,
                         void *out, int out_type, float *out_lse, int compute) {
    if (hc_count(n, t, h) < 0 || k < 1 || hc_count(n * t * h, k, 3) < 0 || !is_type(qkv_type) || !is_type(out_type)) {
        return HC_BAD_ARGUMENT;
    }
    const hc_attention_arguments a = packed(n, t, h, k, qkv, qkv_type, out, out_type, out_lse, compute);
    return hc_attention_heads_forward(context, &a);
}

int hc_attention_backward(hc_context *context, int64_t n, int64_t t, int64_t h, int64_t k, const void *dout, int dout_type,
                          const void *qkv, int qkv_type, const void *out, int out_type, const float *lse, void *out_dqkv,
                          int dqkv_type, int compute) {
    if (hc_count(n, t, h) < 0 || k < 1 || hc_count(n * t * h, k, 3) < 0 || !is_type(dout_type) || !is_type(qkv_type) ||
        !is_type(out_type) || !is_type(dqkv_type)) {
        return HC_BAD_ARGUMENT;
    }
    hc_attention_arguments a = packed(n, t, h, k, qkv, qkv_type, out, out_type, lse, compute);
    a.dout = plain(dout, dout_type, t, h, k);
    a.out_dquery = part_of(out_dqkv, dqkv_type, t, h, k, 0);
    a.out_dkey = part_of(out_dqkv, dqkv_type, t, h, k, 1);
    a.out_dvalue = part_of(out_dqkv, dqkv_type, t, h, k, 2);
    return hc_attention_heads_backward(context, &a);
}
