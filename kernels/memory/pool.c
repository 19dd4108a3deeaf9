/* Pool: an arena of blocks under one lock, with a budget, and the next pool for blocks that do not fit. */
#include "memory/pool.h"

#include <pthread.h>
#include <stdlib.h>

#include "context.h"
#include "memory/pages.h"

/* Idle memory that is allowed in addition to the largest use ever, because the sizes of forward and backward differ. */
#define SLACK(most) ((most) / 8)

#define MAX_NODES 64

struct hc_pool {
    uint64_t tag; /* HC_POOL_TAG */
    pthread_mutex_t lock;
    unsigned owner; /* hc_forks of the process that owns the lock, see lock_pool */
    unsigned maker; /* hc_forks of the process that created the pool */
    hc_arena arena;
    hc_block *mapped; /* blocks outside the arena's range: separate mappings that never merge */
    int64_t mapped_bytes, num_mapped;
    int64_t used, num_used, max_used;
    int64_t budget; /* limit of backed bytes; negative: none */
    int64_t peak_used, peak_backed, hits, misses, spills, spilled_bytes;
    int is_shared; /* 1: the memory is a file's, which a forked child shares */
    int is_closed;   /* 1: no further blocks are taken */
    int is_released; /* 1: the caller's handle is released */
    hc_pool *next;   /* NULL after closing */
    int num_nodes, nodes[MAX_NODES];
};

static int is_pool(const hc_pool *pool) {
    return hc_has_tag(pool, HC_POOL_TAG);
}

/* Return the physical memory that was taken from the system. */
static int64_t backed_bytes(const hc_pool *pool) {
    return pool->arena.backed_bytes + pool->mapped_bytes;
}

static void note_peaks(hc_pool *pool) {
    const int64_t backed = backed_bytes(pool);
    pool->max_used = pool->used > pool->max_used ? pool->used : pool->max_used;
    pool->peak_used = pool->used > pool->peak_used ? pool->used : pool->peak_used;
    pool->peak_backed = backed > pool->peak_backed ? backed : pool->peak_backed;
}

/* Create the memory of a pool that owns all of it from the start: a file, or reserved huge pages. Return HC_OK also for
 * other pools. */
static int create_fixed(hc_pool *pool, const hc_pool_options *options) {
    const int64_t bytes = options->budget_bytes < 0 ? 0 : options->budget_bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if (options->file < 0 && !options->reserved_pages) {
        return HC_OK;
    }
    if (bytes == 0) {
        return HC_BAD_ARGUMENT;
    }
    void *pages = options->file >= 0 ? hc_pages_of_file(options->file, bytes) : hc_pages_reserved(bytes);
    if (pages == NULL) {
        return options->file >= 0 ? HC_OUT_OF_MEMORY : HC_OK;
    }
    pool->is_shared = options->file >= 0;
    const int status = hc_arena_create_on(&pool->arena, pages, bytes);
    if (status != HC_OK) {
        hc_pages_give(pages, bytes);
    } else if (options->file < 0) {
        hc_arena_not_touched(&pool->arena); /* the team binds and touches each page in the first take */
    }
    return status;
}

int hc_pool_create(const hc_pool_options *options, hc_pool **out_pool) {
    static const hc_pool_options defaults = {.budget_bytes = -1, .file = -1};
    options = options == NULL ? &defaults : options;
    if (out_pool == NULL || options->num_nodes < 0 || options->num_nodes > MAX_NODES ||
        (options->num_nodes > 0 && options->nodes == NULL) || (options->next != NULL && !is_pool(options->next))) {
        return HC_BAD_ARGUMENT;
    }
    hc_pool *pool = calloc(1, sizeof(hc_pool));
    if (pool == NULL) {
        return HC_OUT_OF_MEMORY;
    }
    pool->tag = HC_POOL_TAG;
    pool->owner = pool->maker = hc_forks();
    pool->budget = options->budget_bytes;
    pool->next = options->next;
    pool->num_nodes = options->num_nodes;
    for (int i = 0; i < options->num_nodes; i++) {
        pool->nodes[i] = options->nodes[i];
    }
    const int status = create_fixed(pool, options);
    if (status != HC_OK) {
        free(pool);
        return status;
    }
    if (!pool->arena.is_fixed) {
        hc_arena_create(&pool->arena, hc_pages_worth_reserving(pool->budget));
    }
    pthread_mutex_init(&pool->lock, NULL);
    note_peaks(pool);
    *out_pool = pool;
    return HC_OK;
}

static void lock_pool(hc_pool *pool) {
    if (pool->owner != hc_forks()) {
        /* In a forked child. The thread that may have held the lock during the fork exists only in the parent. */
        pool->owner = hc_forks();
        pthread_mutex_init(&pool->lock, NULL);
    }
    pthread_mutex_lock(&pool->lock);
}

/* Release the lock, and end a pool without handle and blocks. */
static void unlock_pool(hc_pool *pool) {
    const int is_over = pool->is_released && pool->num_used == 0;
    pthread_mutex_unlock(&pool->lock);
    if (is_over) {
        hc_drop_tag(&pool->tag);
        pthread_mutex_destroy(&pool->lock);
        hc_arena_destroy(&pool->arena);
        free(pool);
    }
}

static void end_takes(hc_pool *pool, int is_released) {
    if (is_pool(pool)) {
        lock_pool(pool);
        pool->is_closed = 1;
        pool->is_released |= is_released;
        pool->next = NULL; /* the next pool may end before this pool from now on */
        unlock_pool(pool);
    }
}

void hc_pool_close(hc_pool *pool) {
    end_takes(pool, 0);
}

void hc_pool_release(hc_pool *pool) {
    end_takes(pool, 1);
}

int hc_pool_reserved(hc_pool *pool, void **out_start, int64_t *out_bytes) {
    if (!is_pool(pool) || out_start == NULL || out_bytes == NULL) {
        return HC_BAD_ARGUMENT;
    }
    *out_start = pool->arena.start;
    *out_bytes = pool->arena.bytes;
    return HC_OK;
}

/* Make space for `more` new memory of a block of `bytes`. Keep used and idle memory together below the largest use plus
 * its slack, and within the budget. Return 0 if the budget does not allow it; no memory was returned to the system
 * then. */
static int make_space(hc_pool *pool, int64_t bytes, int64_t more) {
    const int64_t used = pool->used + bytes, largest = used > pool->max_used ? used : pool->max_used;
    const int64_t over_budget = pool->budget < 0 ? 0 : backed_bytes(pool) + more - pool->budget;
    int64_t excess = backed_bytes(pool) + more - (largest + SLACK(largest));
    if (over_budget > 0 && hc_arena_returnable(&pool->arena, over_budget) < over_budget) {
        return 0;
    }
    excess = excess > over_budget ? excess : over_budget;
    if (excess > 0) {
        hc_arena_return(&pool->arena, excess);
    }
    return 1;
}

/* New pages of a block, which must be touched after the take. */
typedef struct {
    char *pages;
    int64_t bytes;
} new_pages;

static hc_block *take_from_arena(hc_pool *pool, int64_t bytes, new_pages *out_new) {
    hc_block *found = hc_arena_take(&pool->arena, bytes);
    const int64_t missing = found == NULL ? 0 : hc_arena_missing(&pool->arena, found);
    if (missing > 0 && (!make_space(pool, bytes, missing) ||
                        hc_arena_back(&pool->arena, found, &out_new->pages, &out_new->bytes) != HC_OK)) {
        hc_arena_give(&pool->arena, found);
        *out_new = (new_pages){0};
        return NULL;
    }
    return found;
}

static hc_block *map_block(hc_pool *pool, int64_t bytes, new_pages *out_new) {
    if (pool->arena.is_fixed || !make_space(pool, bytes, bytes)) {
        return NULL;
    }
    hc_block *created = calloc(1, sizeof(hc_block));
    void *pages = created == NULL ? NULL : hc_pages_take(bytes);
    if (pages == NULL) {
        free(created);
        return NULL;
    }
    *created = (hc_block){.above = pool->mapped, .pages = pages, .bytes = bytes, .in_use = 1};
    if (pool->mapped != NULL) {
        pool->mapped->below = created;
    }
    pool->mapped = created;
    pool->mapped_bytes += bytes, pool->num_mapped++;
    *out_new = (new_pages){pages, bytes};
    return created;
}

static void unmap_block(hc_pool *pool, hc_block *block) {
    *(block->below == NULL ? &pool->mapped : &block->below->above) = block->above;
    if (block->above != NULL) {
        block->above->below = block->below;
    }
    pool->mapped_bytes -= block->bytes, pool->num_mapped--;
    hc_pages_give(block->pages, block->bytes);
    free(block);
}

/* Take from this pool alone, with the lock held; NULL if it does not fit. */
static hc_block *take_locked(hc_pool *pool, int64_t requested, new_pages *out_new) {
    const int64_t rounded = requested <= INT64_MAX - HUGE_PAGE_BYTES ? hc_pages_round(requested) : INT64_MAX;
    if (rounded == INT64_MAX || pool->is_closed || (pool->is_shared && pool->maker != hc_forks())) {
        return NULL; /* a forked child would overwrite its parent's data in the file */
    }
    if (pool->budget >= 0 && requested > pool->budget) {
        return NULL;
    }
    hc_block *found = take_from_arena(pool, requested, out_new);
    return found != NULL ? found : map_block(pool, rounded, out_new);
}

/* Take from this pool alone; NULL if it does not fit, and out_next is the next pool, if any. */
static hc_block *take_here(hc_pool *pool, hc_context *context, int64_t bytes, hc_pool **out_next) {
    const int64_t requested = bytes > INT64_MAX - PAGE_BYTES ? INT64_MAX
                              : bytes > 0                    ? (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES
                                                          : PAGE_BYTES;
    new_pages to_touch = {0};
    lock_pool(pool);
    hc_block *found = take_locked(pool, requested, &to_touch);
    if (found != NULL) {
        pool->hits += to_touch.bytes == 0;
        pool->misses += to_touch.bytes != 0;
        pool->used += found->bytes, pool->num_used++;
    } else {
        pool->spills++;
        pool->spilled_bytes += bytes;
    }
    *out_next = pool->next;
    note_peaks(pool); /* also after a refusal, which may have backed some pages */
    pthread_mutex_unlock(&pool->lock);
    if (to_touch.bytes > 0) {
        /* Without the lock, because the team may run a job that takes or gives blocks. */
        const hc_nodes nodes = {pool->num_nodes, pool->nodes};
        hc_pages_touch(to_touch.pages, to_touch.bytes, found->pages, found->bytes, context, nodes);
    }
    return found;
}

hc_block *hc_pool_take_block(hc_pool **pool, hc_context *context, int64_t bytes) {
    for (hc_pool *next;; *pool = next) {
        hc_block *found = take_here(*pool, context, bytes, &next);
        if (found != NULL || next == NULL) {
            return found;
        }
    }
}

static void give_locked(hc_pool *pool, hc_block *block) {
    const uintptr_t at = (uintptr_t)block->pages, start = (uintptr_t)pool->arena.start;
    pool->used -= block->bytes, pool->num_used--;
    if (at >= start && at - start < (uintptr_t)pool->arena.bytes) {
        hc_arena_give(&pool->arena, block);
    } else {
        unmap_block(pool, block);
    }
}

void hc_pool_give_block(hc_pool *pool, hc_block *block) {
    lock_pool(pool);
    give_locked(pool, block);
    unlock_pool(pool);
}

void *hc_pool_take(hc_pool *pool, hc_context *context, int64_t bytes) {
    if (!is_pool(pool) || !hc_is_context(context) || bytes < 0) {
        return NULL;
    }
    const hc_block *taken = hc_pool_take_block(&pool, context, bytes);
    return taken == NULL ? NULL : taken->pages;
}

/* Return the used block at an address, for callers that have only the address. Tensors store their block. */
static hc_block *find(const hc_pool *pool, const void *pages) {
    hc_block *block = hc_arena_find(&pool->arena, pages);
    for (hc_block *other = pool->mapped; block == NULL && other != NULL; other = other->above) {
        block = other->pages == pages ? other : NULL;
    }
    return block;
}

void hc_pool_give(hc_pool *pool, void *pages) {
    for (hc_block *found = NULL; is_pool(pool) && pages != NULL && found == NULL;) {
        lock_pool(pool);
        hc_pool *next = pool->next;
        found = find(pool, pages);
        if (found != NULL) {
            give_locked(pool, found);
        }
        unlock_pool(pool);
        pool = next;
    }
}

int hc_pool_holds(hc_pool *pool, const void *address) {
    if (!is_pool(pool)) {
        return 0;
    }
    const uintptr_t at = (uintptr_t)address;
    lock_pool(pool);
    int holds = at - (uintptr_t)pool->arena.start < (uintptr_t)pool->arena.bytes;
    for (const hc_block *block = pool->mapped; !holds && block != NULL; block = block->above) {
        holds = at - (uintptr_t)block->pages < (uintptr_t)block->bytes;
    }
    pthread_mutex_unlock(&pool->lock);
    return holds;
}

int hc_pool_counters(hc_pool *pool, hc_pool_state *out_state) {
    if (!is_pool(pool) || out_state == NULL) {
        return HC_BAD_ARGUMENT;
    }
    lock_pool(pool);
    *out_state = (hc_pool_state){
        .used_bytes = pool->used,
        .idle_bytes = backed_bytes(pool) - pool->used,
        .peak_bytes = pool->peak_used,
        .hits = pool->hits,
        .misses = pool->misses,
        .backed_bytes = backed_bytes(pool),
        .peak_backed_bytes = pool->peak_backed,
        .budget_bytes = pool->budget,
        .spills = pool->spills,
        .spilled_bytes = pool->spilled_bytes,
        .largest_free_bytes = hc_arena_longest_idle(&pool->arena),
        .num_blocks = pool->num_used,
    };
    pthread_mutex_unlock(&pool->lock);
    return HC_OK;
}

int hc_pool_start_peak(hc_pool *pool) {
    if (!is_pool(pool)) {
        return HC_BAD_ARGUMENT;
    }
    lock_pool(pool);
    pool->peak_used = pool->used;
    pthread_mutex_unlock(&pool->lock);
    return HC_OK;
}

int hc_pool_trim(hc_pool *pool) {
    if (!is_pool(pool)) {
        return HC_BAD_ARGUMENT;
    }
    lock_pool(pool);
    hc_arena_return(&pool->arena, pool->arena.backed_bytes);
    pthread_mutex_unlock(&pool->lock);
    return HC_OK;
}
