/* Blocks cut from one range of addresses; what is given back joins its neighbours. Not part of the door, no lock.
 *
 * There are no size classes: a block is what was asked for, rounded up to 4,096 bytes, and free neighbours are one block whatever
 * their sizes were. */
#ifndef HC_ARENA_H
#define HC_ARENA_H

#include <stdint.h>

#include "context.h"

typedef struct hc_block {
    struct hc_block *below, *above; /* neighbours by address */
    char *pages;
    int64_t bytes;
    int in_use;
} hc_block;

/* A free block, with its size beside it: the search reads no block but those of equal size. */
typedef struct {
    int64_t bytes;
    hc_block *block;
} hc_free_block;

/* Memory is taken from the system, and given back, by whole huge pages; blocks are multiples of 4,096 bytes and may share one. */
typedef struct {
    char *start;
    int64_t bytes;          /* reserved; 0: the system refused, every take is refused */
    int is_fixed;           /* what has memory behind it keeps it: a file, or huge pages that were reserved */
    unsigned char *backed;  /* for each huge page, whether memory stands behind it */
    int64_t backed_bytes;
    hc_block **first;       /* for each huge page, the lowest block that starts in it */
    hc_block *highest;      /* the block that ends where the range ends */
    hc_free_block *free;    /* sorted by size, then by address */
    int64_t num_free, num_blocks, capacity; /* capacity >= num_blocks, so that a give needs no memory */
} hc_arena;

/* Reserves addresses, `bytes` (whole huge pages) or as many as the system grants. An arena without any is valid. */
void hc_arena_create(hc_arena *out_arena, int64_t bytes);

/* An arena over pages that exist, whole huge pages, which belong to it from then on: HC_OK, or HC_OUT_OF_MEMORY. */
int hc_arena_create_on(hc_arena *out_arena, void *pages, int64_t bytes);

/* Of a new arena: its pages exist and nobody has touched them, so that whoever takes the first block on one does (hc_arena_back). */
void hc_arena_not_touched(hc_arena *arena);

/* Gives its addresses and its bookkeeping back; no block may be in use. */
void hc_arena_destroy(hc_arena *arena);

/* The lowest of the smallest free blocks that hold `bytes`, perhaps without memory behind it; the rest stays free. NULL: none
 * does. */
hc_block *hc_arena_take(hc_arena *arena, int64_t bytes);

/* Frees a block, which is not valid from then on. Its memory stays. */
void hc_arena_give(hc_arena *arena, hc_block *block);

/* Bytes of the huge pages of a block that have no memory behind them. */
int64_t hc_arena_missing(const hc_arena *arena, const hc_block *block);

/* Puts memory behind them, not touched yet; the result is the range of huge pages from the first of them to the last, empty where
 * there are none. HC_OUT_OF_MEMORY: the system refuses; what has memory by then keeps it. */
int hc_arena_back(hc_arena *arena, const hc_block *block, char **out_pages, int64_t *out_bytes);

/* The block in use that starts at an address, or NULL. */
hc_block *hc_arena_find(const hc_arena *arena, const void *pages);

/* Bytes of huge pages that hc_arena_return could give, counted up to `enough`. */
int64_t hc_arena_returnable(const hc_arena *arena, int64_t enough);

/* The longest run of memory that is there and in no block in use. */
int64_t hc_arena_longest_idle(const hc_arena *arena);

/* Gives the system at least `bytes` of huge pages that no block in use touches, highest first; less where there is less. */
void hc_arena_return(hc_arena *arena, int64_t bytes);

#endif
