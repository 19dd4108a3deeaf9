/* Attention forward, the part common to all instruction sets: blocked online softmax (Dao et al., FlashAttention,
 * 2022) with transposed scores.
 *
 * A block is S^T, a chunk of keys (rows) times a panel of queries (columns). The softmax over keys is then a sum
 * over rows, without sums across a vector. Its result is a panel of B for O^T += V^T P^T without packing. Only O^T,
 * K rows per panel, is transposed at the end. */
#include <string.h>

#include "attention/attention_work.h"

/* A thread's scratch memory. */
typedef struct {
    char *keys;    /* K packed as A, per chunk */
    char *values;  /* V^T packed as A, per chunk */
    char *queries; /* a panel of Q^T, packed as B */
    float *scores;
    void *packed, *probabilities; /* probabilities: `scores` (in place) or `packed` */
    float *out; /* O^T, K rows */
    float *max, *sum, *factor, *lse;
    float *transposed;
    int64_t keys_bytes, values_bytes; /* per chunk */
} forward_memory;

static int64_t lay_out(const hc_attention *work, char *base, forward_memory *memory) {
    const int in_parts = work->panel == HC_PANEL_PARTS;
    hc_attention_arena arena = {base, 0};
    memory->keys_bytes = hc_panels_a_bytes(work->gemm, work->chunk, work->k);
    memory->values_bytes = hc_panels_a_bytes(work->gemm, work->k, work->chunk);
    memory->keys = hc_arena_take(&arena, work->num_chunks * memory->keys_bytes);
    memory->values = hc_arena_take(&arena, work->num_chunks * memory->values_bytes);
    memory->queries = hc_arena_take(&arena, hc_panels_b_bytes(work->gemm, work->k, work->nr));
    memory->scores = hc_arena_take(&arena, hc_scores_bytes(work));
    memory->packed = hc_arena_take(&arena, work->packs || in_parts ? hc_packed_bytes(work) : 0);
    memory->probabilities = in_parts ? memory->packed : memory->scores;
    memory->out = hc_arena_take(&arena, work->padded_k * work->width * 4);
    memory->max = hc_arena_take(&arena, work->width * 4);
    memory->sum = hc_arena_take(&arena, work->width * 4);
    memory->factor = hc_arena_take(&arena, work->width * 4);
    memory->lse = hc_arena_take(&arena, work->width * 4);
    memory->transposed = hc_arena_take(&arena, hc_transposed_bytes(work));
    return arena.used;
}

int64_t hc_attention_forward_bytes(const hc_attention *work) {
    forward_memory memory;
    return lay_out(work, NULL, &memory);
}

static void pack_head(const hc_attention *work, int64_t head, forward_memory *memory) {
    for (int64_t chunk = 0; chunk < work->num_chunks; chunk++) {
        const int64_t rows = hc_chunk_rows(work, chunk);
        const hc_matrix keys = hc_shared_rows_of(work, &work->key, head, chunk * work->chunk);
        const hc_matrix values = hc_transpose(hc_shared_rows_of(work, &work->value, head, chunk * work->chunk));
        hc_pack_a(work, head, rows, work->k, &keys, memory->keys + chunk * memory->keys_bytes, 1);
        hc_pack_a(work, head, work->k, rows, &values, memory->values + chunk * memory->values_bytes, 0);
    }
}

/* List the memory to prefetch: the output of a block of queries, and the same tokens of the thread's next head (-1: no
 * next head). */
static hc_attention_prefetch prefetch_of_queries(const hc_attention *work, int64_t head, int64_t next_head,
                                                 int64_t start, int64_t count) {
    hc_attention_prefetch prefetch = {.num_runs = 0};
    const int64_t keys = hc_min_i64(count, work->keys - start);
    const hc_heads *out = &work->out, *query = &work->query, *key = &work->key, *value = &work->value;
    hc_prefetch_add(work, &prefetch, hc_head_at(work, out, head, start), out->type, count, out->token_stride);
    if (next_head >= 0) {
        hc_prefetch_add(work, &prefetch, hc_head_at(work, query, next_head, start), query->type, count,
                        query->token_stride);
    }
    if (next_head >= 0 && keys > 0) {
        hc_prefetch_add(work, &prefetch, hc_shared_at(work, key, next_head, start), key->type, keys, key->token_stride);
        hc_prefetch_add(work, &prefetch, hc_shared_at(work, value, next_head, start), value->type, keys,
                        value->token_stride);
    }
    prefetch.lines_per_step = (double)prefetch.lines / (double)(2 * work->keys * count * work->k);
    return prefetch;
}

static void do_queries(const hc_attention *work, int64_t head, int64_t next_head, int64_t start, int64_t count,
                       forward_memory *memory) {
    const int64_t width = work->width, columns = hc_columns(work, count), n = hc_min_i64(columns, work->nr);
    const hc_matrix queries = hc_transpose(hc_rows_of(work, &work->query, head, start));
    hc_attention_prefetch prefetch = prefetch_of_queries(work, head, next_head, start, count);
    hc_pack_b(work, head, work->k, count, &queries, memory->queries, 1);
    const int64_t chunks = work->causal ? hc_min_i64(work->num_chunks, hc_blocks(start + count, work->chunk))
                                        : work->num_chunks;
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        const int64_t rows = hc_chunk_rows(work, chunk);
        hc_multiply_heads(work, &prefetch, rows, n, memory->keys + chunk * memory->keys_bytes, memory->queries,
                          memory->scores, width);
        if (work->causal) {
            hc_hide_later_keys(work, rows, columns, start, chunk * work->chunk, memory->scores);
        }
        work->kernels->attention_softmax(rows, columns, width, work->scale, chunk == 0, work->panel, memory->scores,
                                         memory->probabilities, hc_panel_bytes(work, rows), memory->max, memory->sum,
                                         memory->factor);
        const void *probabilities = hc_finish_panel(work, rows, memory->probabilities, memory->packed);
        if (chunk > 0) {
            work->kernels->attention_rescale(work->k, columns, width, memory->factor, memory->out);
        }
        hc_multiply(work, &prefetch, work->padded_k, n, rows, memory->values + chunk * memory->values_bytes,
                    probabilities, memory->out, width, chunk > 0);
    }
    work->kernels->attention_finish(columns, work->scale, memory->max, memory->sum, memory->lse);
    work->kernels->attention_rescale(work->k, columns, width, memory->sum, memory->out);
    for (int64_t i = 0; i < count; i++) {
        work->lse[head * work->t + start + i] = memory->lse[i];
    }
    hc_store_transposed(work, count, 1.0f, memory->out, memory->transposed,
                        hc_rows_of(work, &work->out, head, start));
}

/* Compute panels of queries first..stop. Prefetch the next head only if it ends before part_stop. */
static void do_panels(const hc_attention *work, int64_t first, int64_t stop, int64_t part_stop, int64_t *packed_head,
                      forward_memory *memory) {
    const int64_t panels = hc_blocks(work->t, work->nr);
    for (int64_t unit = first; unit < stop; unit++) {
        const int64_t head = unit / panels, start = unit % panels * work->nr;
        if (!hc_takes_head(work, head)) {
            continue;
        }
        if (head != *packed_head) {
            pack_head(work, head, memory);
            *packed_head = head;
        }
        const int64_t next_head = work->prefetches_next && (head + 1) * panels < part_stop ? head + 1 : -1;
        do_queries(work, head, next_head, start, hc_min_i64(work->nr, work->t - start), memory);
    }
}

void hc_attention_forward_job(void *arguments, int thread, int num_threads) {
    const hc_attention *work = arguments;
    const int64_t panels = hc_blocks(work->t, work->nr);
    forward_memory memory;
    lay_out(work, work->scratch + thread * work->thread_bytes, &memory);
    memset(memory.scores, 0, (size_t)hc_scores_bytes(work)); /* the kernels also read the padding columns */
    int64_t packed_head = -1, first, taken;
    (void)num_threads; /* the running threads compute all shares, starting with their own */
    for (int i = 0; i < work->num_threads; i++) {
        hc_share *units = &work->units[(thread + i) % work->num_threads];
        while ((taken = hc_share_take(units, panels, HEADS_AT_ONCE * panels, &first)) > 0) {
            do_panels(work, first, first + taken, units->stop, &packed_head, &memory);
        }
    }
}
