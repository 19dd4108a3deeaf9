/* Blocks cut from one address range; returned blocks merge with their neighbors. Internal, without a lock.
 *
 * There are no size classes. A block has the requested size, rounded up to 4,096 bytes, and free neighbors of any
 * size become one block. */
#ifndef HC_ARENA_H
#define HC_ARENA_H

#include <stdint.h>

#include "context.h"

typedef struct hc_block {
    struct hc_block *below, *above; /* neighbors by address */
    char *pages;
    int64_t bytes;
    int in_use;
} hc_block;

/* Free block with its size, so that the search reads only blocks of equal size. */
typedef struct {
    int64_t bytes;
    hc_block *block;
} hc_free_block;

/* Memory is requested from and returned to the system in complete huge pages. Blocks are multiples of 4,096 bytes
 * and may share a page. */
typedef struct {
    char *start;
    int64_t bytes;          /* reserved; 0: the system refused, every take is refused */
    int is_fixed;           /* what has memory behind it keeps it: a file, or huge pages that were reserved */
    unsigned char *backed;  /* for each huge page, whether it has memory */
    int64_t backed_bytes;
    hc_block **first;       /* for each huge page, the lowest block that starts in it */
    hc_block *highest;      /* the block that ends where the range ends */
    hc_free_block *free;    /* sorted by size, then by address */
    int64_t num_free, num_blocks, capacity; /* capacity >= num_blocks, so that a give needs no memory */
} hc_arena;

/* Reserve `bytes` of addresses (complete huge pages), or as many as the system grants. An arena without addresses is
 * valid. */
void hc_arena_create(hc_arena *out_arena, int64_t bytes);

/* Create an arena over existing complete huge pages, which it then owns: HC_OK, or HC_OUT_OF_MEMORY. */
int hc_arena_create_on(hc_arena *out_arena, void *pages, int64_t bytes);

/* For a new arena: its pages exist and are untouched, so the first user of a block on a page touches it
 * (hc_arena_back). */
void hc_arena_not_touched(hc_arena *arena);

/* Gives its addresses and its bookkeeping back; no block may be in use. */
void hc_arena_destroy(hc_arena *arena);

/* The lowest of the smallest free blocks that hold `bytes`, perhaps without memory behind it; the rest stays free.
 * NULL: none does. */
hc_block *hc_arena_take(hc_arena *arena, int64_t bytes);

/* Frees a block, which is not valid from then on. Its memory stays. */
void hc_arena_give(hc_arena *arena, hc_block *block);

/* Bytes of the huge pages of a block that have no memory behind them. */
int64_t hc_arena_missing(const hc_arena *arena, const hc_block *block);

/* Back them with memory, untouched. The result is the range of huge pages from the first to the last, or an empty
 * range. HC_OUT_OF_MEMORY: the system refuses; pages that already have memory keep it. */
int hc_arena_back(hc_arena *arena, const hc_block *block, char **out_pages, int64_t *out_bytes);

/* The block in use that starts at an address, or NULL. */
hc_block *hc_arena_find(const hc_arena *arena, const void *pages);

/* Bytes of huge pages that hc_arena_return could give, counted up to `enough`. */
int64_t hc_arena_returnable(const hc_arena *arena, int64_t enough);

/* The longest run of memory that is there and in no block in use. */
int64_t hc_arena_longest_idle(const hc_arena *arena);

/* Gives the system at least `bytes` of huge pages that no block in use touches, highest first; less where there is
 * less. */
void hc_arena_return(hc_arena *arena, int64_t bytes);

#endif
