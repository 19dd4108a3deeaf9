/* What the two directions of attention share: the problem, its views of the tensors, and the layout of a thread's
 * scratch memory. */
#ifndef HC_ATTENTION_WORK_H
#define HC_ATTENTION_WORK_H

#include <stddef.h>

#include "attention/attention.h"
#include "context.h"
#include "team/shares.h"

/* Rows of keys (forward) or of queries (backward) that go with a panel of nr columns at once. 256 x 48 fp32 scores are
 * 48 KB: they and the operands stay in the L2 cache, and T = 256, DiT's length, is one chunk. */
#define CHUNK_ROWS 256

/* Rows of S and dP at once. 48 x 48 fp32 are 9 KB each, so that the operands also fit a 32 KB L1 cache. Matrix units
 * are entered and left with each product, and need more rows. */
#define PART_ROWS 48
#define PART_ROWS_BF16 256

/* Limit for prefetching the next head. Its q, k, v, out and dout, and the packed copies of this head, must nearly
 * fit a 1 MB L2 cache: 512 tokens of 64 fp32 are 128 KB per array. For longer heads only the rows to be written are
 * prefetched. */
#define LOOK_AHEAD_TOKENS 512

/* Keys per segment of dQ, which is summed separately. Segments are added in order, so that several threads may share
 * a head with the same result. */
#define SEGMENT_KEYS 512

/* The most heads that a thread takes at once of those that are dealt out. */
#define HEADS_AT_ONCE 8

typedef struct {
    const hc_kernels *kernels;
    const hc_gemm_kernel *gemm; /* of the compute type */
    hc_team *team;
    int64_t n, h, k;
    int64_t t, keys; /* queries and keys of a head */
    int64_t share;   /* heads of queries to a head of keys */
    int causal;      /* query i sees keys 0 to i */
    /* columns of a block of scores: of one panel of B, or of several where it is packed or in parts */
    int64_t nr;
    int64_t width;      /* nr, padded to complete vectors: the distance of the rows of a block */
    int64_t lanes;      /* of a vector; of two where they make a row of a panel in parts */
    int64_t rows;       /* of all blocks of scores: keys (forward) or queries (backward), */
    int64_t chunk;      /* of a block, and how many such blocks there are */
    int64_t num_chunks;
    int64_t part;       /* rows of a block that the backward pass takes at once */
    int64_t num_segments;
    int looks_ahead;    /* prefetch the next head during the current head */
    int64_t padded_k;   /* K, or in parts K rounded up to complete tiles: rows of O^T, dK^T and dV^T, columns of dQ */
    int tail;           /* 1: the end of a depth of K is packed according to hc_near_tail_kernel */
    float scale;        /* 1 / sqrt(K) */
    int panel;          /* hc_panel: what the vector kernels write */
    int packs;          /* 1: their rows go through the matrix kernel's pack function; 0: they are its panel */
    hc_heads query, key, value, out, dout, dquery, dkey, dvalue; /* forward writes out, backward the last three */
    float *lse;                                                  /* forward writes it */
    int is_forward;
    char *scratch; /* thread_bytes per thread, then what the threads share */
    int64_t thread_bytes;
    hc_share *units; /* of each of num_threads: the panels of queries (forward) or heads (backward) to be done */
    int num_threads;
    float *partial; /* dQ per head and segment where segments are spread over threads, else NULL */
    int64_t group;  /* heads that are in `partial` at once */
    /* 1 for each head that the kernels of parts leave to the others, and whether there is one; NULL: all */
    uint8_t *left;
    uint8_t *num_left;
    int takes_left; /* 1: these heads are to be done, and no other */
} hc_attention;

/* Takes consecutive aligned blocks from a thread's share; with base NULL it only counts. */
typedef struct {
    char *base;
    int64_t used;
} hc_attention_arena;

static inline int64_t hc_least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t hc_blocks(int64_t count, int64_t block) {
    return (count + block - 1) / block;
}

static inline int64_t hc_round_up(int64_t count, int64_t multiple) {
    return hc_blocks(count, multiple) * multiple;
}

static inline int64_t hc_type_bytes(int type) {
    return type == HC_F32 ? 4 : 2;
}

/* Blocks start three cache lines after a multiple of 4 KB, each further than the one before, so that equal rows of two
 * blocks do not meet in one set of the L1 cache. */
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

/* Columns of a block for `count` keys or queries, in complete vectors, so that the vector kernels need no tails. */
static inline int64_t hc_columns(const hc_attention *work, int64_t count) {
    return hc_round_up(count, work->lanes);
}

/* 0: the head is not for this job, or known to be out of its range. */
static inline int hc_takes_head(const hc_attention *work, int64_t head) {
    return work->left == NULL || __atomic_load_n(work->left + head, __ATOMIC_RELAXED) == work->takes_left;
}

/* Rows of a chunk: the last one may be shorter. */
static inline int64_t hc_chunk_rows(const hc_attention *work, int64_t chunk) {
    return hc_least(work->chunk, work->rows - chunk * work->chunk);
}

/* Token `row` of a head (0 to N * H). */
static inline char *hc_head_at(const hc_attention *work, const hc_heads *heads, int64_t head, int64_t row) {
    const int64_t element = head / work->h * heads->image_stride + head % work->h * heads->head_stride + row * heads->token_stride;
    return (char *)heads->data + element * hc_type_bytes(heads->type);
}

/* The same of the keys or values that a head of queries has. */
static inline char *hc_shared_at(const hc_attention *work, const hc_heads *heads, int64_t head, int64_t row) {
    const int64_t of_keys = head % work->h / work->share;
    const int64_t element = head / work->h * heads->image_stride + of_keys * heads->head_stride + row * heads->token_stride;
    return (char *)heads->data + element * hc_type_bytes(heads->type);
}

/* The views (rows, K) of a head from token `row` on, and the transpose of one. */
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
    hc_gemm_ahead runs[8];
    int num_runs, current;
    int64_t lines;      /* of all runs */
    double lines_a_step; /* to ask for per multiply-add */
    double due;          /* what should have been asked for, and was not */
} hc_attention_ahead;

/* Adds rows of K elements of `type`, `stride` elements apart. */
void hc_ahead_add(const hc_attention *work, hc_attention_ahead *ahead, const void *first_row, int type, int64_t rows,
                  int64_t stride);

/* The matrix kernel's block, asking for memory meanwhile. */
void hc_multiply(const hc_attention *work, hc_attention_ahead *ahead, int64_t m, int64_t n, int64_t k, const void *a_panels,
                 const void *b_panels, float *c, int64_t ldc, int add);

/* A product of depth K of panels that hc_pack_a and hc_pack_b packed with that depth. */
void hc_multiply_heads(const hc_attention *work, hc_attention_ahead *ahead, int64_t m, int64_t n, const void *a_panels,
                       const void *b_panels, float *c, int64_t ldc);

/* The same of a part of the depth of deeper panels, for kernels that have near_block. */
void hc_multiply_part(const hc_attention *work, hc_attention_ahead *ahead, const hc_near_block *block);

/* The matrix kernel's pack functions, of a head's q, k, v or dout; is_along_k: of depth K, for hc_multiply_heads. Where
 * products are in parts they note a head that is out of range (attention_range.c); the last function does so with lse and
 * delta (T). */
void hc_pack_a(const hc_attention *work, int64_t head, int64_t m, int64_t k, const hc_matrix *a, void *out_panels,
               int is_along_k);
void hc_pack_b(const hc_attention *work, int64_t head, int64_t k, int64_t n, const hc_matrix *b, void *out_panels,
               int is_along_k);
void hc_note_sums(const hc_attention *work, int64_t head, const float *lse, const float *delta);

/* Bytes of a block of scores, which may become a panel of B, and of the buffers of two functions below. */
int64_t hc_scores_bytes(const hc_attention *work);
int64_t hc_packed_bytes(const hc_attention *work);
int64_t hc_transposed_bytes(const hc_attention *work);

/* Bytes of a panel of B of depth `rows`; of the panels of a block that a vector kernel writes, and where in them a row
 * starts. */
int64_t hc_panel_bytes(const hc_attention *work, int64_t rows);
int64_t hc_written_bytes(const hc_attention *work);
int64_t hc_row_offset(const hc_attention *work, int64_t row);

/* The panels of B of depth `rows` from what a vector kernel left in `block`: that itself, or packed to `packed`. */
const void *hc_finish_panel(const hc_attention *work, int64_t rows, void *block, void *packed);

/* out[i, j] = factor * block[j, i] for i < rows, j < K; block has K rows, and `out` starts at a token of a head. */
void hc_store_transposed(const hc_attention *work, int64_t rows, float factor, float *block, float *buffer, hc_matrix out);

/* Causal: the rows of scores that a column must not see become -inf. Queries are columns (forward) or rows (backward),
 * from first_query on, keys the others, from first_key on. */
void hc_hide_later_keys(const hc_attention *work, int64_t rows, int64_t columns, int64_t first_query, int64_t first_key,
                        float *scores);

/* Bytes of a thread's scratch memory, and the work of a thread. */
int64_t hc_attention_forward_bytes(const hc_attention *work);
void hc_attention_forward_job(void *arguments, int thread, int num_threads);
int64_t hc_attention_backward_bytes(const hc_attention *work);
void hc_attention_backward_job(void *arguments, int thread, int num_threads);

#endif
