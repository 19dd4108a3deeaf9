/* Argument checks, addresses and partitions of fp32 and bf16 arrays, for the vector operators. Internal. */
#ifndef HC_ARRAY_H
#define HC_ARRAY_H

#include <stddef.h>
#include <stdint.h>

#include "context.h"

/* Tokens of one image per unit of work, and per partial sum of sums over tokens. 32 rows of a DiT (1.5 to 4.6 KB in
 * fp32) with their gradients are 150 to 440 KB, which fit an L2 cache. A batch of 4 images of 256 tokens still provides
 * units for 32 threads. A partial sum costs 2 rows of memory traffic per 96 or more rows. */
#define HC_BLOCK_ROWS 32

/* Elements of a list of tensors per unit of work: 64 KB of fp32. The work far exceeds the start of a thread, and the
 * last unit of the slowest thread is negligible. */
#define HC_CHUNK 16384

/* Upper limit for one core's share of the last-level cache, because a virtual machine with few cores reports the
 * cache of the entire socket. 8 MB exceeds the share on every server CPU without stacked cache (4 MB on EPYC 9004, 2
 * to 4 MB on Xeon). */
#define HC_LARGEST_CACHE_SHARE (8 << 20)

static inline int64_t hc_element_bytes(int type) {
    return type == HC_BF16 ? 2 : 4;
}

static inline const void *hc_at(const void *p, int64_t i, int type) {
    return (const char *)p + i * hc_element_bytes(type);
}

static inline void *hc_out_at(void *p, int64_t i, int type) {
    return (char *)p + i * hc_element_bytes(type);
}

/* Return 1 for a readable or writable array: a type with vector kernels, and a pointer unless the array is empty. */
static inline int hc_is_array(const void *p, int64_t count, int type) {
    return (type == HC_F32 || type == HC_BF16) && (p != NULL || count == 0);
}

/* Return a * b * c, or -1 if a factor is negative or the product times 64 overflows int64. The sizes in bytes of
 * arrays, and of partial sums with several elements each, then do not overflow. */
static inline int64_t hc_count(int64_t a, int64_t b, int64_t c) {
    int64_t ab, abc, bytes;
    if (a < 0 || b < 0 || c < 0 || __builtin_mul_overflow(a, b, &ab) || __builtin_mul_overflow(ab, c, &abc) ||
        __builtin_mul_overflow(abc, (int64_t)64, &bytes)) {
        return -1;
    }
    return abc;
}

/* Return 1 if an operator that touches `bytes` should use non-temporal stores, because the caches would retain none of
 * the data. An ordinary store first reads the line, which is a third of the memory traffic of a copy. */
static inline int hc_pass_caches(const hc_context *context, int64_t bytes) {
    const int64_t share = context->l3_bytes < HC_LARGEST_CACHE_SHARE ? context->l3_bytes : HC_LARGEST_CACHE_SHARE;
    return bytes > share * context->num_threads;
}

/* Return the number of threads for `elements` of work. Each thread gets at least 8 Ki elements, because starting a
 * thread costs about 2 microseconds, about the time of these elements. */
static inline int hc_threads_for(const hc_context *context, int64_t elements) {
    const int64_t threads = elements / 8192;
    return threads < 1 ? 1 : threads < context->num_threads ? (int)threads : context->num_threads;
}

/* Iterator over the elements of a list of tensors, as if they were one array. */
typedef struct {
    const int64_t *counts;
    int64_t tensors, tensor, offset;
} hc_walk;

static inline hc_walk hc_walk_from(int64_t tensors, const int64_t *counts, int64_t position) {
    hc_walk walk = {counts, tensors, 0, position};
    while (walk.tensor < tensors && walk.offset >= counts[walk.tensor]) {
        walk.offset -= counts[walk.tensor++];
    }
    return walk;
}

/* Consecutive elements of one tensor. */
typedef struct {
    int64_t tensor, offset, count;
} hc_piece;

/* Return the next elements of the iterator, at most `limit`, all of one tensor. At the end, count is 0. */
static inline hc_piece hc_walk_next(hc_walk *walk, int64_t limit) {
    while (walk->tensor < walk->tensors && walk->offset == walk->counts[walk->tensor]) {
        walk->tensor++;
        walk->offset = 0;
    }
    const int64_t left = walk->tensor < walk->tensors ? walk->counts[walk->tensor] - walk->offset : 0;
    const hc_piece piece = {walk->tensor, walk->offset, left < limit ? left : limit};
    walk->offset += piece.count;
    return piece;
}

#endif
