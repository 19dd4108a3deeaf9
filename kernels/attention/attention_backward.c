/* Attention backward, the part common to all instruction sets. It recomputes the probabilities from qkv and lse, block
 * by block.
 *
 * A block is S, a chunk of queries (rows) times a panel of keys (columns). The vector kernel turns S and dP = dO V^T
 * into P and dS = P (dP - delta). Both are then panels of B without packing, for dV^T += dO^T P and dK^T += Q^T dS.
 * Only dQ += dS K packs dS again, as A. The factor 1 / sqrt(K) of dQ and dK is applied when they are stored. */
#include <string.h>

#include "attention/attention_work.h"

/* A thread's scratch memory. Per head and chunk of queries: */
typedef struct {
    char *queries, *queries_transposed; /* Q and Q^T, packed as A */
    char *douts, *douts_transposed;     /* dO and dO^T, packed as A */
    int64_t rows_bytes, transposed_bytes; /* per chunk */
    float *delta;                         /* (T) */
    const float *lse;                     /* (T), provided by the caller */
    float *dq, *dq_segment;               /* (T, K): sum of the head, and of one segment */
    /* Per panel of keys: */
    char *keys_transposed, *values_transposed, *keys; /* K^T, V^T and K, packed as B */
    float *dk, *dv;                                   /* dK^T and dV^T, K rows */
    /* Per block: */
    char *p, *ds; /* P and dS as written by the vector kernel: panels of B, or rows to be packed */
    void *packed;
    /* Per part of the rows of a block: */
    float *scores, *dp;
    char *ds_rows; /* dS, packed as A */
    float *transposed;
} backward_memory;

static int64_t lay_out(const hc_attention *work, char *base, backward_memory *memory) {
    const hc_gemm_kernel *gemm = work->gemm;
    hc_attention_arena arena = {base, 0};
    memory->rows_bytes = hc_panels_a_bytes(gemm, work->chunk, work->k);
    memory->transposed_bytes = hc_panels_a_bytes(gemm, work->k, work->chunk);
    memory->queries = hc_arena_take(&arena, work->num_chunks * memory->rows_bytes);
    memory->queries_transposed = hc_arena_take(&arena, work->num_chunks * memory->transposed_bytes);
    memory->douts = hc_arena_take(&arena, work->num_chunks * memory->rows_bytes);
    memory->douts_transposed = hc_arena_take(&arena, work->num_chunks * memory->transposed_bytes);
    memory->delta = hc_arena_take(&arena, work->t * 4);
    memory->dq = hc_arena_take(&arena, work->t * work->padded_k * 4);
    memory->dq_segment = hc_arena_take(&arena, work->num_segments > 1 ? work->t * work->padded_k * 4 : 0);
    memory->keys_transposed = hc_arena_take(&arena, hc_panels_b_bytes(gemm, work->k, work->nr));
    memory->values_transposed = hc_arena_take(&arena, hc_panels_b_bytes(gemm, work->k, work->nr));
    memory->keys = hc_arena_take(&arena, hc_panels_b_bytes(gemm, work->nr, work->k));
    memory->dk = hc_arena_take(&arena, work->padded_k * work->width * 4);
    memory->dv = hc_arena_take(&arena, work->padded_k * work->width * 4);
    memory->p = hc_arena_take(&arena, hc_written_bytes(work));
    memory->ds = hc_arena_take(&arena, hc_written_bytes(work));
    memory->packed = hc_arena_take(&arena, work->packs ? hc_packed_bytes(work) : 0);
    memory->scores = hc_arena_take(&arena, work->part * work->width * 4);
    memory->dp = hc_arena_take(&arena, work->part * work->width * 4);
    memory->ds_rows = hc_arena_take(&arena, hc_panels_a_bytes(gemm, work->part, work->nr));
    memory->transposed = hc_arena_take(&arena, hc_transposed_bytes(work));
    return arena.used;
}

int64_t hc_attention_backward_bytes(const hc_attention *work) {
    backward_memory memory;
    return lay_out(work, NULL, &memory);
}

static void pack_head(const hc_attention *work, int64_t head, backward_memory *memory) {
    const hc_heads *dout = &work->dout, *out = &work->out;
    memory->lse = work->lse + head * work->t;
    work->kernels->attention_delta(work->t, work->k, hc_head_at(work, dout, head, 0), dout->type,
                                   hc_head_at(work, out, head, 0), out->type, out->token_stride, memory->delta);
    hc_check_sums(work, head, memory->lse, memory->delta);
    for (int64_t chunk = 0; chunk < work->num_chunks; chunk++) {
        const int64_t rows = hc_chunk_rows(work, chunk), first = chunk * work->chunk;
        const hc_matrix queries = hc_rows_of(work, &work->query, head, first), douts = hc_rows_of(work, dout, head, first);
        const hc_matrix queries_transposed = hc_transpose(queries), douts_transposed = hc_transpose(douts);
        const int64_t at = chunk * memory->rows_bytes, transposed_at = chunk * memory->transposed_bytes;
        hc_pack_a(work, head, rows, work->k, &queries, memory->queries + at, 1);
        hc_pack_a(work, head, rows, work->k, &douts, memory->douts + at, 1);
        hc_pack_a(work, head, work->k, rows, &queries_transposed, memory->queries_transposed + transposed_at, 0);
        hc_pack_a(work, head, work->k, rows, &douts_transposed, memory->douts_transposed + transposed_at, 0);
    }
}

/* Add the products of rows start..start + rows of a block of split numbers to dK^T and dV^T, while P and dS are
 * cached. */
static void add_keys(const hc_attention *work, hc_attention_prefetch *prefetch, int64_t chunk, int64_t start,
                     int64_t rows, int64_t n, int add, backward_memory *memory) {
    const hc_gemm_kernel *gemm = work->gemm;
    const int64_t step_bytes = hc_panels_a_bytes(gemm, gemm->mr(), gemm->kr);
    const int64_t at = chunk * memory->transposed_bytes + start / gemm->kr * step_bytes;
    hc_near_block block = {
        .m = work->padded_k, .n = n, .k = rows, .a_panels = memory->douts_transposed + at,
        .b_panels = hc_finish_panel(work, rows, memory->p, NULL),
        .a_panel_bytes = hc_panels_a_bytes(gemm, gemm->mr(), hc_chunk_rows(work, chunk)),
        .b_panel_bytes = hc_panel_bytes(work, rows), .c = memory->dv, .ldc = work->width, .add = add || start > 0,
    };
    hc_multiply_part(work, prefetch, &block);
    block.a_panels = memory->queries_transposed + at;
    block.b_panels = hc_finish_panel(work, rows, memory->ds, NULL);
    block.c = memory->dk;
    hc_multiply_part(work, prefetch, &block);
}

/* Compute P and dS from S and dP for rows start..start + rows of a block of keys from first_key on. Add their product
 * to dQ. add: dk and dv contain sums of earlier chunks. add_dq: dq contains sums of earlier panels. */
static void do_rows(const hc_attention *work, hc_attention_prefetch *prefetch, int64_t chunk, int64_t start,
                    int64_t rows, int64_t first_key, int64_t num_keys, int add, int add_dq, float *dq,
                    backward_memory *memory) {
    const hc_gemm_kernel *gemm = work->gemm;
    const int64_t width = work->width, columns = hc_columns(work, num_keys), n = hc_min_i64(columns, work->nr);
    const int64_t first = chunk * work->chunk + start;
    const int64_t panels = chunk * memory->rows_bytes + start * hc_round_up(work->k, gemm->kr) * gemm->element_bytes;
    hc_multiply_heads(work, prefetch, rows, n, memory->queries + panels, memory->keys_transposed, memory->scores,
                      width);
    hc_multiply_heads(work, prefetch, rows, n, memory->douts + panels, memory->values_transposed, memory->dp, width);
    if (work->causal) {
        hc_hide_later_keys(work, rows, columns, first, first_key, memory->scores);
    }
    const int64_t at = hc_row_offset(work, start);
    const hc_attention_rows block = {
        .rows = rows, .columns = columns, .width = width, .scale = work->scale, .panel = work->panel,
        .lse = memory->lse + first, .delta = memory->delta + first, .scores = memory->scores, .dp = memory->dp,
        .out_p = memory->p + at, .out_ds = memory->ds + at,
        .panel_bytes = hc_panel_bytes(work, rows), .keys = num_keys, .out_ds_rows = memory->ds_rows,
    };
    work->kernels->attention_gradient(&block);
    if (work->panel != HC_PANEL_PARTS) {
        const hc_matrix ds = {work->panel == HC_PANEL_PAIRS ? block.dp : block.out_ds, width, 1, HC_F32};
        gemm->pack_a(rows, num_keys, &ds, 1.0f, memory->ds_rows, NULL);
    }
    hc_multiply(work, prefetch, rows, work->padded_k, num_keys, memory->ds_rows, memory->keys,
                dq + first * work->padded_k, work->padded_k, add_dq);
    if (work->panel == HC_PANEL_PARTS) {
        add_keys(work, prefetch, chunk, start, rows, n, add, memory);
    }
}

/* Compute one block. add: dk and dv contain sums of earlier chunks. */
static void do_block(const hc_attention *work, hc_attention_prefetch *prefetch, int64_t chunk, int64_t first_key,
                     int64_t num_keys, int add, int add_dq, float *dq, backward_memory *memory) {
    const int64_t rows = hc_chunk_rows(work, chunk), n = hc_min_i64(hc_columns(work, num_keys), work->nr);
    for (int64_t start = 0; start < rows; start += work->part) {
        do_rows(work, prefetch, chunk, start, hc_min_i64(work->part, rows - start), first_key, num_keys, add, add_dq,
                dq, memory);
    }
    if (work->panel == HC_PANEL_PARTS) {
        return; /* do_rows has added to dK and dV */
    }
    const int64_t at = chunk * memory->transposed_bytes;
    const void *p = hc_finish_panel(work, rows, memory->p, memory->packed);
    hc_multiply(work, prefetch, work->k, n, rows, memory->douts_transposed + at, p, memory->dv, work->width, add);
    const void *ds = hc_finish_panel(work, rows, memory->ds, memory->packed);
    hc_multiply(work, prefetch, work->k, n, rows, memory->queries_transposed + at, ds, memory->dk, work->width, add);
}

/* List the memory to prefetch: the results of the tokens of this panel, and the same tokens of the thread's next head
 * (-1: no next head). */
static hc_attention_prefetch prefetch_of_keys(const hc_attention *work, int64_t head, int64_t next_head, int64_t first,
                                              int64_t count) {
    hc_attention_prefetch prefetch = {.num_runs = 0};
    const int64_t queries = hc_min_i64(count, work->t - first); /* queries at the positions of these keys */
    const hc_heads *of_queries[] = {&work->dquery, &work->query, &work->dout, &work->out};
    const hc_heads *of_keys[] = {&work->dkey, &work->dvalue};
    for (int i = 0; i < (next_head >= 0 ? 4 : 1) && queries > 0; i++) {
        const hc_heads *rows = of_queries[i];
        hc_prefetch_add(work, &prefetch, hc_head_at(work, rows, i == 0 ? head : next_head, first), rows->type, queries,
                        rows->token_stride);
    }
    for (int i = 0; i < 2; i++) {
        hc_prefetch_add(work, &prefetch, hc_head_at(work, of_keys[i], head, first), of_keys[i]->type, count,
                        of_keys[i]->token_stride);
    }
    if (next_head >= 0) {
        hc_prefetch_add(work, &prefetch, hc_shared_at(work, &work->key, next_head, first), work->key.type, count,
                        work->key.token_stride);
        hc_prefetch_add(work, &prefetch, hc_shared_at(work, &work->value, next_head, first), work->value.type, count,
                        work->value.token_stride);
    }
    /* Three of the five products are computed in many small calls and prefetch at this rate. The last two prefetch the
     * lines that are left. */
    prefetch.lines_per_step = (double)prefetch.lines / (double)(3 * work->t * count * work->k);
    return prefetch;
}

/* Compute dK and dV of the keys of a segment, and write the contribution of the segment to dQ to dq. */
static void do_segment(const hc_attention *work, int64_t head, int64_t next_head, int64_t segment, float *dq,
                       backward_memory *memory) {
    const int64_t start = segment * SEGMENT_KEYS, stop = hc_min_i64(start + SEGMENT_KEYS, work->keys);
    if (work->causal) { /* the first panel of keys does not contribute to every query */
        memset(dq, 0, (size_t)(work->t * work->padded_k * 4));
    }
    for (int64_t first = start; first < stop; first += work->nr) {
        const int64_t count = hc_min_i64(work->nr, stop - first);
        const hc_matrix keys = hc_shared_rows_of(work, &work->key, head, first);
        const hc_matrix keys_transposed = hc_transpose(keys);
        const hc_matrix values_transposed = hc_transpose(hc_shared_rows_of(work, &work->value, head, first));
        hc_attention_prefetch prefetch = prefetch_of_keys(work, head, next_head, first, count);
        hc_pack_b(work, head, work->k, count, &keys_transposed, memory->keys_transposed, 1);
        hc_pack_b(work, head, work->k, count, &values_transposed, memory->values_transposed, 1);
        work->gemm->pack_b(count, work->k, &keys, memory->keys);
        const int64_t first_chunk = work->causal ? first / work->chunk : 0; /* earlier chunks see none of these keys */
        for (int64_t chunk = first_chunk; chunk < work->num_chunks; chunk++) {
            do_block(work, &prefetch, chunk, first, count, chunk > first_chunk, work->causal || first > start, dq,
                     memory);
        }
        if (first_chunk >= work->num_chunks) {
            memset(memory->dk, 0, (size_t)(work->padded_k * work->width * 4));
            memset(memory->dv, 0, (size_t)(work->padded_k * work->width * 4));
        }
        hc_store_transposed(work, count, work->scale, memory->dk, memory->transposed, hc_rows_of(work, &work->dkey, head, first));
        hc_store_transposed(work, count, 1.0f, memory->dv, memory->transposed, hc_rows_of(work, &work->dvalue, head, first));
    }
}

static void add_to(int64_t count, const float *x, float *sum) {
    for (int64_t i = 0; i < count; i++) {
        sum[i] += x[i];
    }
}

static void do_head(const hc_attention *work, int64_t head, int64_t next_head, backward_memory *memory) {
    if (!hc_takes_head(work, head)) {
        return;
    }
    pack_head(work, head, memory);
    for (int64_t segment = 0; segment < work->num_segments; segment++) {
        do_segment(work, head, next_head, segment, segment == 0 ? memory->dq : memory->dq_segment, memory);
        if (segment > 0) {
            add_to(work->t * work->padded_k, memory->dq_segment, memory->dq);
        }
    }
    work->kernels->attention_store(work->t, work->k, work->scale, memory->dq, work->padded_k,
                                   hc_head_at(work, &work->dquery, head, 0), work->dquery.type, work->dquery.token_stride);
}

/* Compute the segments of heads first..last on several threads. Their dQ are collected in work->partial, and added in
 * the order of do_head. */
static void do_segments(const hc_attention *work, int64_t first, int64_t last, int thread, int num_threads,
                        backward_memory *memory) {
    const int64_t segments = work->num_segments;
    int64_t start, stop, packed_head = -1;
    hc_part((last - first) * segments, 1, thread, num_threads, &start, &stop);
    for (int64_t unit = start; unit < stop; unit++) {
        const int64_t head = first + unit / segments;
        if (!hc_takes_head(work, head)) {
            continue;
        }
        if (head != packed_head) {
            packed_head = head;
            pack_head(work, head, memory);
        }
        do_segment(work, head, -1, unit % segments, work->partial + unit * work->t * work->padded_k, memory);
    }
}

static void sum_segments(const hc_attention *work, int64_t first, int64_t last, int thread, int num_threads) {
    const int64_t segments = work->num_segments, head_size = work->t * work->padded_k;
    int64_t start, stop;
    hc_part((last - first) * work->t, 1, thread, num_threads, &start, &stop);
    for (int64_t row = start; row < stop; row++) {
        const int64_t head = first + row / work->t, token = row % work->t;
        if (!hc_takes_head(work, head)) {
            continue;
        }
        float *sum = work->partial + (head - first) * segments * head_size + token * work->padded_k;
        for (int64_t segment = 1; segment < segments; segment++) {
            add_to(work->k, sum + segment * head_size, sum);
        }
        work->kernels->attention_store(1, work->k, work->scale, sum, work->padded_k, hc_head_at(work, &work->dquery, head, token),
                                       work->dquery.type, work->dquery.token_stride);
    }
}

void hc_attention_backward_job(void *arguments, int thread, int num_threads) {
    const hc_attention *work = arguments;
    backward_memory memory;
    lay_out(work, work->scratch + thread * work->thread_bytes, &memory);
    memset(memory.scores, 0, (size_t)(work->part * work->width * 4));
    memset(memory.dp, 0, (size_t)(work->part * work->width * 4));
    for (int64_t first = 0; work->partial != NULL && first < work->n * work->h; first += work->group) {
        const int64_t last = hc_min_i64(first + work->group, work->n * work->h);
        do_segments(work, first, last, thread, num_threads, &memory);
        hc_team_barrier(work->team);
        sum_segments(work, first, last, thread, num_threads);
        hc_team_barrier(work->team); /* before the next group writes to `partial` */
    }
    if (work->partial != NULL) {
        return;
    }
    for (int i = 0; i < work->num_threads; i++) { /* start with the share of this thread */
        hc_share *heads = &work->units[(thread + i) % work->num_threads];
        int64_t first, taken;
        while ((taken = hc_share_take(heads, 1, HEADS_AT_ONCE, &first)) > 0) {
            for (int64_t head = first; head < first + taken; head++) {
                do_head(work, head, work->prefetches_next && head + 1 < heads->stop ? head + 1 : -1, &memory);
            }
        }
    }
}
