/* Declarations shared by the forward and the backward pass of attention: the problem, views of the tensors, and the
 * layout of a thread's scratch memory. */
#ifndef HC_ATTENTION_WORK_H
#define HC_ATTENTION_WORK_H

#include <stddef.h>

#include "attention/attention.h"
#include "context.h"
#include "minmax.h"
#include "team/shares.h"

/* Rows of keys (forward) or of queries (backward) per block, for a panel of nr columns. 256 x 48 fp32 scores are 48 KB.
 * The scores and the operands fit the L2 cache. T = 256, the length of DiT, is one chunk. */
#define CHUNK_ROWS 256

/* Rows of S and dP per call. 48 x 48 fp32 are 9 KB each, so that the operands also fit a 32 KB L1 cache. Matrix units
 * need more rows, because each product enters and leaves their mode. */
#define PART_ROWS 48
#define PART_ROWS_BF16 256

/* Limit for prefetching the next head. Its q, k, v, out and dout, and the packed copies of this head, must nearly
 * fit a 1 MB L2 cache: 512 tokens of 64 fp32 are 128 KB per array. For longer heads only the rows to be written are
 * prefetched. */
#define LOOK_AHEAD_TOKENS 512

/* Keys per segment of dQ, which is summed separately. Segments are added in order, so that several threads may share
 * a head with the same result. */
#define SEGMENT_KEYS 512

/* Largest number of heads that a thread takes from a share at once. */
#define HEADS_AT_ONCE 8

typedef struct {
    const hc_kernels *kernels;
    const hc_gemm_kernel *gemm; /* for the compute type */
    hc_team *team;
    int64_t n, h, k;
    int64_t t, keys; /* queries and keys per head */
    int64_t share;   /* query heads per key head */
    int causal;      /* 1: query i attends to keys 0 to i */
    /* columns of a block of scores: one panel of B, or several panels if the block is packed or split */
    int64_t nr;
    int64_t width;      /* nr, padded to complete vectors: the row stride of a block */
    int64_t lanes;      /* lanes of a vector, or of the two vectors of a row of a split panel */
    int64_t rows;       /* rows of all blocks of scores: keys (forward) or queries (backward) */
    int64_t chunk;      /* rows per block */
    int64_t num_chunks;
    int64_t part;       /* rows of a block per call in the backward pass */
    int64_t num_segments;
    int prefetches_next; /* prefetch the next head during the current head */
    int64_t padded_k;   /* K, rounded up to complete tiles if split: rows of O^T, dK^T and dV^T, columns of dQ */
    int tail;           /* 1: the remainder of a depth of K is packed according to hc_near_tail_kernel */
    float scale;        /* 1 / sqrt(K) */
    int panel;          /* hc_panel: format that the vector kernels write */
    int packs;          /* 1: the matrix kernel packs these rows; 0: it reads them as its panel */
    hc_heads query, key, value, out, dout, dquery, dkey, dvalue; /* written: out, or dquery, dkey and dvalue */
    float *lse;                                                  /* written by the forward pass */
    int is_forward;
    char *scratch; /* thread_bytes per thread, then the memory shared by the threads */
    int64_t thread_bytes;
    hc_share *units; /* per thread: panels of queries (forward) or heads (backward) to compute */
    int num_threads;
    float *partial; /* dQ per head and segment if threads share heads, else NULL */
    int64_t group;  /* heads per round in `partial` */
    /* rejected: 1 per head out of range of the split kernels, or NULL; any_rejected: 1 if any head is */
    uint8_t *rejected;
    uint8_t *any_rejected;
    int takes_rejected; /* 1: compute only the heads marked in `rejected` */
} hc_attention;

/* Allocator of consecutive aligned blocks in a thread's scratch memory. With base NULL it only counts bytes. */
typedef struct {
    char *base;
    int64_t used;
} hc_attention_arena;

static inline int64_t hc_blocks(int64_t count, int64_t block) {
    return (count + block - 1) / block;
}

static inline int64_t hc_round_up(int64_t count, int64_t multiple) {
    return hc_blocks(count, multiple) * multiple;
}

static inline int64_t hc_type_bytes(int type) {
    return type == HC_F32 ? 4 : 2;
}

/* Return the next block. Blocks start three cache lines after a multiple of 4 KB, each with a larger offset than the
 * previous block. Equal rows of two blocks then map to different sets of the L1 cache. */
static inline void *hc_arena_take(hc_attention_arena *arena, int64_t bytes) {
    void *block = arena->base == NULL ? NULL : arena->base + arena->used;
    arena->used += hc_round_up(bytes, 4096) + 3 * 64;
    return block;
}

static inline int64_t hc_panels_a_bytes(const hc_gemm_kernel *gemm, int64_t m, int64_t k) {
    return hc_round_up(m, gemm->mr()) * hc_round_up(k, gemm->kr) * gemm->element_bytes;
}

static inline int64_t hc_panels_b_bytes(const hc_gemm_kernel *gemm, int64_t k, int64_t n) {
    return hc_round_up(n, gemm->nr()) * hc_round_up(k, gemm->kr) * gemm->element_bytes;
}

/* Return the columns of a block for `count` keys or queries, rounded up to complete vectors, so that vector kernels
 * need no remainder loop. */
static inline int64_t hc_columns(const hc_attention *work, int64_t count) {
    return hc_round_up(count, work->lanes);
}

/* Return 0 if this job does not compute the head, or if the head is already marked as out of range. */
static inline int hc_takes_head(const hc_attention *work, int64_t head) {
    return work->rejected == NULL || __atomic_load_n(work->rejected + head, __ATOMIC_RELAXED) == work->takes_rejected;
}

/* Return the rows of a chunk. The last chunk may be shorter. */
static inline int64_t hc_chunk_rows(const hc_attention *work, int64_t chunk) {
    return hc_min_i64(work->chunk, work->rows - chunk * work->chunk);
}

/* Return the address of token `row` of a head (0 to N * H - 1). */
static inline char *hc_head_at(const hc_attention *work, const hc_heads *heads, int64_t head, int64_t row) {
    const int64_t element = head / work->h * heads->image_stride + head % work->h * heads->head_stride + row * heads->token_stride;
    return (char *)heads->data + element * hc_type_bytes(heads->type);
}

/* Return the address of token `row` of the key or value head that belongs to a query head. */
static inline char *hc_shared_at(const hc_attention *work, const hc_heads *heads, int64_t head, int64_t row) {
    const int64_t of_keys = head % work->h / work->share;
    const int64_t element = head / work->h * heads->image_stride + of_keys * heads->head_stride + row * heads->token_stride;
    return (char *)heads->data + element * hc_type_bytes(heads->type);
}

/* Return the view (rows, K) of a head from token `row` on, of queries or of shared keys and values, or the transpose of
 * a view. */
static inline hc_matrix hc_rows_of(const hc_attention *work, const hc_heads *heads, int64_t head, int64_t row) {
    return (hc_matrix){hc_head_at(work, heads, head, row), heads->token_stride, 1, heads->type};
}

static inline hc_matrix hc_shared_rows_of(const hc_attention *work, const hc_heads *heads, int64_t head, int64_t row) {
    return (hc_matrix){hc_shared_at(work, heads, head, row), heads->token_stride, 1, heads->type};
}

static inline hc_matrix hc_transpose(hc_matrix matrix) {
    return (hc_matrix){matrix.data, matrix.column_stride, matrix.row_stride, matrix.dtype};
}

/* Memory to prefetch while a block is multiplied: rows that will be packed or written next. Rows of a head are a few
 * cache lines on separate pages, which hardware prefetchers do not predict. */
typedef struct {
    hc_gemm_prefetch runs[8];
    int num_runs, current;
    int64_t lines;      /* in all runs */
    double lines_per_step; /* lines to prefetch per multiply-add */
    double due;          /* lines due but not yet prefetched */
} hc_attention_prefetch;

/* Add rows of K elements of `type` with a distance of `stride` elements. */
void hc_prefetch_add(const hc_attention *work, hc_attention_prefetch *prefetch, const void *first_row, int type,
                     int64_t rows, int64_t stride);

/* Call the block function of the matrix kernel. Lines of `prefetch` are prefetched during the product. */
void hc_multiply(const hc_attention *work, hc_attention_prefetch *prefetch, int64_t m, int64_t n, int64_t k,
                 const void *a_panels, const void *b_panels, float *c, int64_t ldc, int add);

/* Multiply panels of depth K that hc_pack_a and hc_pack_b packed with is_along_k. */
void hc_multiply_heads(const hc_attention *work, hc_attention_prefetch *prefetch, int64_t m, int64_t n,
                       const void *a_panels, const void *b_panels, float *c, int64_t ldc);

/* Multiply a part of the depth of deeper panels. Requires a kernel with near_block. */
void hc_multiply_part(const hc_attention *work, hc_attention_prefetch *prefetch, const hc_near_block *block);

/* Call the pack functions of the matrix kernel for q, k, v or dout of a head. is_along_k: 1 for panels of depth K, as
 * hc_multiply_heads reads them. For split products, these functions mark heads out of range (attention_range.c).
 * hc_check_sums checks lse and delta (T). */
void hc_pack_a(const hc_attention *work, int64_t head, int64_t m, int64_t k, const hc_matrix *a, void *out_panels,
               int is_along_k);
void hc_pack_b(const hc_attention *work, int64_t head, int64_t k, int64_t n, const hc_matrix *b, void *out_panels,
               int is_along_k);
void hc_check_sums(const hc_attention *work, int64_t head, const float *lse, const float *delta);

/* Return the bytes of a block of scores, which may become a panel of B, and of the buffers `packed` of hc_finish_panel
 * and `buffer` of hc_store_transposed. */
int64_t hc_scores_bytes(const hc_attention *work);
int64_t hc_packed_bytes(const hc_attention *work);
int64_t hc_transposed_bytes(const hc_attention *work);

/* Return the bytes of a panel of B of depth `rows`, the bytes of the panels of a block that a vector kernel writes, and
 * the offset of a row in them. */
int64_t hc_panel_bytes(const hc_attention *work, int64_t rows);
int64_t hc_written_bytes(const hc_attention *work);
int64_t hc_row_offset(const hc_attention *work, int64_t row);

/* Return the panels of B of depth `rows` of a block that a vector kernel wrote: `block` itself, or its packed copy in
 * `packed`. */
const void *hc_finish_panel(const hc_attention *work, int64_t rows, void *block, void *packed);

/* Store out[i, j] = factor * block[j, i] for i < rows, j < K. block has K rows. `out` starts at a token of a head. */
void hc_store_transposed(const hc_attention *work, int64_t rows, float factor, float *block, float *buffer, hc_matrix out);

/* Set the scores of masked keys to -inf (causal attention). Queries from first_query on are columns (forward) or rows
 * (backward). Keys from first_key on are rows (forward) or columns (backward). */
void hc_hide_later_keys(const hc_attention *work, int64_t rows, int64_t columns, int64_t first_query, int64_t first_key,
                        float *scores);

/* Return the bytes of a thread's scratch memory, and compute the work of a thread. */
int64_t hc_attention_forward_bytes(const hc_attention *work);
void hc_attention_forward_job(void *arguments, int thread, int num_threads);
int64_t hc_attention_backward_bytes(const hc_attention *work);
void hc_attention_backward_job(void *arguments, int thread, int num_threads);

#endif
