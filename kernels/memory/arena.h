/* Blocks cut from one address range. Returned blocks merge with their neighbors. Internal, without a lock.
 *
 * Blocks do not belong to size classes. A block has the requested size, rounded up to 4,096 bytes, and free neighbors
 * of any size become one block. */
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
    int64_t bytes;          /* reserved; 0 if the system refused, then every take is refused */
    int is_fixed;           /* 1: memory is never returned: a file, or reserved huge pages */
    unsigned char *backed;  /* 1 per huge page with memory */
    int64_t backed_bytes;
    hc_block **first;       /* per huge page, the lowest block that starts in it */
    hc_block *highest;      /* the block at the end of the range */
    hc_free_block *free;    /* sorted by size, then by address */
    int64_t num_free, num_blocks, capacity; /* capacity >= num_blocks, so that a give needs no memory */
} hc_arena;

/* Reserve `bytes` of addresses (complete huge pages), or as many as the system grants. An arena without addresses is
 * valid. */
void hc_arena_create(hc_arena *out_arena, int64_t bytes);

/* Create an arena over existing complete huge pages, which it then owns: HC_OK, or HC_OUT_OF_MEMORY. */
int hc_arena_create_on(hc_arena *out_arena, void *pages, int64_t bytes);

/* Mark the existing pages of a new arena as untouched, so that the first user of a block on a page touches it
 * (hc_arena_back). */
void hc_arena_not_touched(hc_arena *arena);

/* Release the addresses and the bookkeeping. No block may be in use. */
void hc_arena_destroy(hc_arena *arena);

/* Return the lowest of the smallest free blocks of at least `bytes`, possibly without memory, cut to size. NULL if no
 * block is large enough. */
hc_block *hc_arena_take(hc_arena *arena, int64_t bytes);

/* Free a block, which is then invalid. Its memory stays in the arena. */
void hc_arena_give(hc_arena *arena, hc_block *block);

/* Return the bytes of the huge pages of a block that have no memory. */
int64_t hc_arena_missing(const hc_arena *arena, const hc_block *block);

/* Provide memory for the huge pages of a block, untouched. The result is the range from the first to the last such
 * page, or an empty range. HC_OUT_OF_MEMORY if the system refuses. Pages that already have memory keep it. */
int hc_arena_back(hc_arena *arena, const hc_block *block, char **out_pages, int64_t *out_bytes);

/* Return the used block that starts at an address, or NULL. */
hc_block *hc_arena_find(const hc_arena *arena, const void *pages);

/* Return the bytes of huge pages that hc_arena_return could release, counted up to `enough`. */
int64_t hc_arena_returnable(const hc_arena *arena, int64_t enough);

/* Return the length of the longest run of unused memory. */
int64_t hc_arena_longest_idle(const hc_arena *arena);

/* Return at least `bytes` of huge pages that no used block touches to the system, or all of them if they are fewer. The
 * highest pages are returned first. */
void hc_arena_return(hc_arena *arena, int64_t bytes);

#endif
