/* An address range that is cut into used and free blocks, with best fit. The huge pages that have memory are tracked
 * separately.
 *
 * Adjacent free blocks are always merged. Memory that was never used is an ordinary free block: the largest, so it is
 * used last. A training step that starts on an empty arena therefore cuts the range in the same way each time, and
 * reuses the memory of the previous step. */
#include "memory/arena.h"

#include <stdlib.h>
#include <string.h>

#include "memory/pages.h"

#define FIRST_CAPACITY 256

static int is_short(const hc_arena *arena) {
    return arena->backed == NULL || arena->first == NULL || arena->free == NULL || arena->highest == NULL;
}

static void free_bookkeeping(hc_arena *arena) {
    free(arena->backed), free(arena->first), free(arena->free), free(arena->highest);
    *arena = (hc_arena){0};
}

int hc_arena_create_on(hc_arena *out_arena, void *pages, int64_t bytes) {
    hc_arena *arena = out_arena;
    const size_t num_pages = (size_t)(bytes / HUGE_PAGE_BYTES);
    *arena = (hc_arena){.start = pages, .bytes = bytes, .is_fixed = 1, .backed_bytes = bytes};
    arena->backed = malloc(num_pages + 1);
    arena->first = calloc(num_pages + 1, sizeof(hc_block *));
    arena->free = malloc(FIRST_CAPACITY * sizeof(hc_free_block));
    arena->highest = calloc(1, sizeof(hc_block));
    if (bytes == 0 || is_short(arena)) {
        free_bookkeeping(arena);
        return HC_OUT_OF_MEMORY;
    }
    memset(arena->backed, 1, num_pages);
    *arena->highest = (hc_block){.pages = pages, .bytes = bytes};
    arena->free[0] = (hc_free_block){bytes, arena->highest};
    arena->first[0] = arena->highest;
    arena->num_free = arena->num_blocks = 1, arena->capacity = FIRST_CAPACITY;
    return HC_OK;
}

void hc_arena_create(hc_arena *out_arena, int64_t bytes) {
    void *pages = NULL;
    *out_arena = (hc_arena){0};
    while (bytes > 0 && pages == NULL) {
        pages = hc_pages_reserve(bytes);
        bytes = pages != NULL ? bytes : bytes / 2 / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    }
    if (pages == NULL) {
        return;
    }
    if (hc_arena_create_on(out_arena, pages, bytes) != HC_OK) {
        hc_pages_give(pages, bytes);
        return;
    }
    hc_arena_not_touched(out_arena);
    out_arena->is_fixed = 0;
}

void hc_arena_not_touched(hc_arena *arena) {
    memset(arena->backed, 0, (size_t)(arena->bytes / HUGE_PAGE_BYTES));
    arena->backed_bytes = 0;
}

void hc_arena_destroy(hc_arena *arena) {
    hc_pages_give(arena->start, arena->bytes);
    for (hc_block *block = arena->highest == NULL ? NULL : arena->highest->below; block != NULL;) {
        hc_block *below = block->below;
        free(block);
        block = below;
    }
    free_bookkeeping(arena);
}

/* Return the position of the first free block that is not before (bytes, pages) in the order. With pages NULL, return
 * the first of all blocks of that size. */
static int64_t place_of(const hc_arena *arena, int64_t bytes, const char *pages) {
    int64_t low = 0, high = arena->num_free;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const hc_free_block *one = &arena->free[middle];
        const int is_before = one->bytes < bytes || (one->bytes == bytes && pages != NULL && one->block->pages < pages);
        low = is_before ? middle + 1 : low;
        high = is_before ? high : middle;
    }
    return low;
}

static void insert_free(hc_arena *arena, hc_block *block) {
    hc_free_block *at = arena->free + place_of(arena, block->bytes, block->pages);
    memmove(at + 1, at, (size_t)(arena->free + arena->num_free++ - at) * sizeof(*at));
    *at = (hc_free_block){block->bytes, block};
}

static void remove_free(hc_arena *arena, const hc_block *block) {
    hc_free_block *at = arena->free + place_of(arena, block->bytes, block->pages);
    memmove(at, at + 1, (size_t)(arena->free + --arena->num_free - at) * sizeof(*at));
}

static int reserve_capacity(hc_arena *arena) {
    if (arena->num_blocks < arena->capacity) {
        return 1;
    }
    hc_free_block *larger = realloc(arena->free, 2 * (size_t)arena->capacity * sizeof(hc_free_block));
    if (larger == NULL) {
        return 0;
    }
    arena->free = larger;
    arena->capacity *= 2;
    return 1;
}

static hc_block **first_of(const hc_arena *arena, const char *pages) {
    return &arena->first[(pages - arena->start) / HUGE_PAGE_BYTES];
}

/* Cut a block to `bytes`, and free the rest. */
static void cut(hc_arena *arena, hc_block *block, hc_block *rest, int64_t bytes) {
    *rest = (hc_block){block, block->above, block->pages + bytes, block->bytes - bytes, 0};
    if (block->above != NULL) {
        block->above->below = rest;
    } else {
        arena->highest = rest;
    }
    block->above = rest;
    block->bytes = bytes;
    hc_block **first = first_of(arena, rest->pages);
    *first = *first == NULL || (*first)->pages > rest->pages ? rest : *first;
    arena->num_blocks++;
    insert_free(arena, rest);
}

hc_block *hc_arena_take(hc_arena *arena, int64_t bytes) {
    const int64_t place = place_of(arena, bytes, NULL);
    if (place == arena->num_free) {
        return NULL;
    }
    hc_block *found = arena->free[place].block, *rest = NULL;
    if (found->bytes > bytes) {
        rest = reserve_capacity(arena) ? malloc(sizeof(hc_block)) : NULL;
        if (rest == NULL) {
            return NULL;
        }
    }
    remove_free(arena, found);
    found->in_use = 1;
    if (rest != NULL) {
        cut(arena, found, rest, bytes);
    }
    return found;
}

/* Merge `lower` with the block above it. Both must be outside the list of free blocks. */
static hc_block *join(hc_arena *arena, hc_block *lower) {
    hc_block *upper = lower->above, **first = first_of(arena, upper->pages);
    if (*first == upper) {
        const int shares = upper->above != NULL && first_of(arena, upper->above->pages) == first;
        *first = shares ? upper->above : NULL;
    }
    lower->bytes += upper->bytes;
    lower->above = upper->above;
    if (upper->above != NULL) {
        upper->above->below = lower;
    } else {
        arena->highest = lower;
    }
    arena->num_blocks--;
    free(upper);
    return lower;
}

void hc_arena_give(hc_arena *arena, hc_block *block) {
    hc_block *below = block->below, *above = block->above;
    block->in_use = 0;
    if (above != NULL && !above->in_use) {
        remove_free(arena, above);
        block = join(arena, block);
    }
    if (below != NULL && !below->in_use) {
        remove_free(arena, below);
        block = join(arena, below);
    }
    insert_free(arena, block);
}

/* Return the first huge page that a block touches, and the page after the last. */
static void touched_by(const hc_arena *arena, const hc_block *block, int64_t *first, int64_t *stop) {
    const int64_t start = block->pages - arena->start;
    *first = start / HUGE_PAGE_BYTES;
    *stop = (start + block->bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES;
}

int64_t hc_arena_missing(const hc_arena *arena, const hc_block *block) {
    int64_t first, stop, missing = 0;
    touched_by(arena, block, &first, &stop);
    for (int64_t page = first; page < stop; page++) {
        missing += arena->backed[page] ? 0 : HUGE_PAGE_BYTES;
    }
    return missing;
}

int hc_arena_back(hc_arena *arena, const hc_block *block, char **out_pages, int64_t *out_bytes) {
    int64_t page, stop;
    touched_by(arena, block, &page, &stop);
    *out_pages = NULL, *out_bytes = 0;
    while (page < stop) {
        const int64_t first = page;
        while (page < stop && !arena->backed[page]) {
            page++;
        }
        if (page == first) {
            page++;
            continue;
        }
        char *pages = arena->start + first * HUGE_PAGE_BYTES;
        const int64_t bytes = (page - first) * HUGE_PAGE_BYTES;
        if (hc_pages_open(pages, bytes) != HC_OK) {
            return HC_OUT_OF_MEMORY;
        }
        memset(arena->backed + first, 1, (size_t)(page - first));
        arena->backed_bytes += bytes;
        *out_pages = *out_pages == NULL ? pages : *out_pages;
        *out_bytes = pages + bytes - *out_pages;
    }
    return HC_OK;
}

hc_block *hc_arena_find(const hc_arena *arena, const void *pages) {
    const uintptr_t at = (uintptr_t)pages, start = (uintptr_t)arena->start;
    if (at < start || at - start >= (uintptr_t)arena->bytes) {
        return NULL;
    }
    hc_block *block = *first_of(arena, pages);
    while (block != NULL && (uintptr_t)block->pages < at) {
        block = block->above;
    }
    return block != NULL && (uintptr_t)block->pages == at && block->in_use ? block : NULL;
}

/* Return the range of huge pages that are completely within a free block. */
static void pages_within(const hc_arena *arena, const hc_block *block, int64_t *first, int64_t *stop) {
    const int64_t start = block->pages - arena->start;
    *first = (start + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES;
    *stop = (start + block->bytes) / HUGE_PAGE_BYTES;
}

/* Return the next huge page from `page` on that has memory (is_backed 1) or has none (0), or `stop`. */
static int64_t next_page(const hc_arena *arena, int64_t page, int64_t stop, int is_backed) {
    const unsigned char *found = page < stop ? memchr(arena->backed + page, is_backed, (size_t)(stop - page)) : NULL;
    return found == NULL ? stop : found - arena->backed;
}

int64_t hc_arena_returnable(const hc_arena *arena, int64_t enough) {
    int64_t found = 0, first, stop;
    for (int64_t i = arena->is_fixed ? 0 : arena->num_free; i-- > 0 && found < enough;) {
        pages_within(arena, arena->free[i].block, &first, &stop);
        for (int64_t page = first; (page = next_page(arena, page, stop, 1)) < stop && found < enough;) {
            const int64_t behind = next_page(arena, page, stop, 0);
            found += (behind - page) * HUGE_PAGE_BYTES;
            page = behind;
        }
    }
    return found;
}

int64_t hc_arena_longest_idle(const hc_arena *arena) {
    int64_t longest = 0, first, stop;
    for (int64_t i = arena->num_free; i-- > 0 && arena->free[i].bytes > longest;) {
        const hc_block *block = arena->free[i].block;
        const int64_t start = block->pages - arena->start, end = start + block->bytes;
        touched_by(arena, block, &first, &stop);
        for (int64_t page = first; (page = next_page(arena, page, stop, 1)) < stop;) {
            const int64_t behind = next_page(arena, page, stop, 0);
            const int64_t low = page * HUGE_PAGE_BYTES, high = behind * HUGE_PAGE_BYTES;
            const int64_t bytes = (high < end ? high : end) - (low > start ? low : start);
            longest = bytes > longest ? bytes : longest;
            page = behind;
        }
    }
    return longest;
}

/* hc_arena_return for one free block. Return the number of bytes given to the system. */
static int64_t return_part(hc_arena *arena, const hc_block *block, int64_t bytes) {
    int64_t first, page, given = 0;
    pages_within(arena, block, &first, &page);
    while (page > first && given < bytes) {
        const int64_t stop = page;
        while (page > first && arena->backed[page - 1] && given < bytes) {
            arena->backed[--page] = 0;
            given += HUGE_PAGE_BYTES;
        }
        if (page < stop) {
            hc_pages_close(arena->start + page * HUGE_PAGE_BYTES, (stop - page) * HUGE_PAGE_BYTES);
        } else {
            page--;
        }
    }
    arena->backed_bytes -= given;
    return given;
}

void hc_arena_return(hc_arena *arena, int64_t bytes) {
    if (arena->is_fixed) {
        return;
    }
    for (const hc_block *block = arena->highest; block != NULL && bytes > 0; block = block->below) {
        bytes -= block->in_use ? 0 : return_part(arena, block, bytes);
    }
}
