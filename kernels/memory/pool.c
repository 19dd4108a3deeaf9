/* The pool: an arena of blocks under one lock; and DLPack tensors over them. */
#include <pthread.h>
#include <stdlib.h>

#include "array.h"
#include "hcops.h"
#include "memory/arena.h"
#include "memory/pages.h"

/* Idle memory may lift the total above the most that was ever in use by this part of it: sizes of forward and backward differ. */
#define SLACK(peak) ((peak) / 8)

struct hc_pool {
    pthread_mutex_t lock;
    unsigned owner; /* hc_forks of the process whose lock it is, see lock_pool */
    hc_arena arena;
    hc_block *mapped; /* blocks that the arena had no addresses for: mappings of their own, which no block ever joins */
    int64_t mapped_bytes;
    int64_t used, peak, hits, misses;
};

int hc_pool_create(hc_pool **out_pool) {
    if (out_pool == NULL) {
        return HC_BAD_ARGUMENT;
    }
    hc_pool *pool = calloc(1, sizeof(hc_pool));
    if (pool == NULL) {
        return HC_OUT_OF_MEMORY;
    }
    pthread_mutex_init(&pool->lock, NULL);
    pool->owner = hc_forks();
    hc_arena_create(&pool->arena);
    *out_pool = pool;
    return HC_OK;
}

int hc_pool_reserved(hc_pool *pool, int64_t *out_bytes) {
    if (pool == NULL || out_bytes == NULL) {
        return HC_BAD_ARGUMENT;
    }
    *out_bytes = pool->arena.bytes;
    return HC_OK;
}

static void lock_pool(hc_pool *pool) {
    if (pool->owner != hc_forks()) {
        /* A forked child: the thread that may have held the lock at that moment exists in the parent only. */
        pool->owner = hc_forks();
        pthread_mutex_init(&pool->lock, NULL);
    }
    pthread_mutex_lock(&pool->lock);
}

/* Whether a block lies in the arena, and not in a mapping of its own. */
static int is_of_arena(const hc_pool *pool, const hc_block *block) {
    const uintptr_t start = (uintptr_t)pool->arena.start, at = (uintptr_t)block->pages;
    return at >= start && at - start < (uintptr_t)pool->arena.bytes;
}

/* Before a block of `bytes` gets `more` new memory: keeps the sum of what is in use and idle below the peak and its slack. */
static void keep_below_peak(hc_pool *pool, int64_t bytes, int64_t more) {
    const int64_t used = pool->used + bytes, peak = used > pool->peak ? used : pool->peak;
    const int64_t excess = pool->arena.backed_bytes + pool->mapped_bytes + more - (peak + SLACK(peak));
    if (excess > 0) {
        hc_arena_return(&pool->arena, excess);
    }
}

/* Pages that a block got in this take, and that are still to be touched. */
typedef struct {
    char *pages;
    int64_t bytes;
} new_pages;

static hc_block *take_from_arena(hc_pool *pool, int64_t bytes, new_pages *out_new) {
    hc_block *found = hc_arena_take(&pool->arena, bytes);
    const int64_t missing = found == NULL ? 0 : hc_arena_missing(&pool->arena, found);
    if (missing > 0) {
        keep_below_peak(pool, bytes, missing);
        if (hc_arena_back(&pool->arena, found, &out_new->pages, &out_new->bytes) != HC_OK) {
            hc_arena_give(&pool->arena, found);
            return NULL;
        }
    }
    return found;
}

static hc_block *map_block(hc_pool *pool, int64_t bytes, new_pages *out_new) {
    keep_below_peak(pool, bytes, bytes);
    hc_block *made = calloc(1, sizeof(hc_block));
    void *pages = made == NULL ? NULL : hc_pages_take(bytes);
    if (pages == NULL) {
        free(made);
        return NULL;
    }
    *made = (hc_block){.above = pool->mapped, .pages = pages, .bytes = bytes, .in_use = 1};
    if (pool->mapped != NULL) {
        pool->mapped->below = made;
    }
    pool->mapped = made;
    pool->mapped_bytes += bytes;
    *out_new = (new_pages){pages, bytes};
    return made;
}

static void unmap_block(hc_pool *pool, hc_block *block) {
    *(block->below == NULL ? &pool->mapped : &block->below->above) = block->above;
    if (block->above != NULL) {
        block->above->below = block->below;
    }
    pool->mapped_bytes -= block->bytes;
    hc_pages_give(block->pages, block->bytes);
    free(block);
}

static hc_block *take(hc_pool *pool, hc_context *context, int64_t bytes) {
    if (bytes > INT64_MAX - 2 * HUGE_PAGE_BYTES) {
        return NULL;
    }
    const int64_t wanted = bytes > 0 ? (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES : PAGE_BYTES;
    new_pages to_touch = {0};
    lock_pool(pool);
    hc_block *found = take_from_arena(pool, wanted, &to_touch);
    if (found == NULL) {
        found = map_block(pool, hc_pages_round(wanted), &to_touch);
    }
    const int is_hit = found != NULL && to_touch.bytes == 0;
    pool->hits += is_hit;
    pool->misses += !is_hit;
    if (found != NULL) {
        pool->used += found->bytes;
        pool->peak = pool->used > pool->peak ? pool->used : pool->peak;
    }
    pthread_mutex_unlock(&pool->lock);
    if (found != NULL && !is_hit) {
        /* Without the lock: the team may be busy with a job that itself takes or gives blocks. */
        hc_pages_touch(to_touch.pages, to_touch.bytes, found->pages, found->bytes, context);
    }
    return found;
}

static void give_locked(hc_pool *pool, hc_block *returned) {
    pool->used -= returned->bytes;
    if (is_of_arena(pool, returned)) {
        hc_arena_give(&pool->arena, returned);
    } else {
        unmap_block(pool, returned);
    }
}

static void give(hc_pool *pool, hc_block *returned) {
    lock_pool(pool);
    give_locked(pool, returned);
    pthread_mutex_unlock(&pool->lock);
}

void *hc_pool_take(hc_pool *pool, hc_context *context, int64_t bytes) {
    if (pool == NULL || context == NULL || bytes < 0) {
        return NULL;
    }
    const hc_block *taken = take(pool, context, bytes);
    return taken == NULL ? NULL : taken->pages;
}

/* The block in use at an address; a walk, for those who know no more than the address: tensors know their block. */
static hc_block *find(const hc_pool *pool, const void *pages) {
    for (hc_block *block = pool->arena.highest; block != NULL; block = block->below) {
        if (block->pages == pages && block->in_use) {
            return block;
        }
    }
    hc_block *block = pool->mapped;
    while (block != NULL && block->pages != pages) {
        block = block->above;
    }
    return block;
}

void hc_pool_give(hc_pool *pool, void *pages) {
    if (pool == NULL || pages == NULL) {
        return;
    }
    lock_pool(pool);
    hc_block *found = find(pool, pages);
    if (found != NULL) {
        give_locked(pool, found);
    }
    pthread_mutex_unlock(&pool->lock);
}

void hc_pool_counters(hc_pool *pool, int64_t *out_used, int64_t *out_idle, int64_t *out_peak, int64_t *out_hits,
                      int64_t *out_misses) {
    int64_t *out[] = {out_used, out_idle, out_peak, out_hits, out_misses};
    lock_pool(pool);
    const int64_t idle = pool->arena.backed_bytes + pool->mapped_bytes - pool->used;
    const int64_t values[] = {pool->used, idle, pool->peak, pool->hits, pool->misses};
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < 5; i++) {
        if (out[i] != NULL) {
            *out[i] = values[i];
        }
    }
}

void hc_pool_trim(hc_pool *pool) {
    lock_pool(pool);
    hc_arena_return(&pool->arena, pool->arena.backed_bytes);
    pthread_mutex_unlock(&pool->lock);
}

/* The structures of the DLPack exchange format (dlpack.h, version 0), as its specification lays them out. */
typedef struct {
    int32_t device_type, device_id;
} dl_device;

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} dl_data_type;

typedef struct {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_data_type dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed_tensor {
    dl_tensor tensor;
    void *manager_context;
    void (*deleter)(struct dl_managed_tensor *self);
} dl_managed_tensor;

enum { DL_CPU = 1, DL_FLOAT = 2, DL_BFLOAT = 4 };

typedef struct {
    dl_managed_tensor managed;
    hc_pool *pool;
    hc_block *memory;
    int64_t shape[];
} pool_tensor;

static void delete_tensor(dl_managed_tensor *self) {
    pool_tensor *tensor = self->manager_context;
    give(tensor->pool, tensor->memory);
    free(tensor);
}

void *hc_pool_tensor(hc_pool *pool, hc_context *context, int dtype, int num_dimensions, const int64_t *shape) {
    const int bits = dtype == HC_F64 ? 64 : dtype == HC_BF16 ? 16 : 32;
    if (pool == NULL || context == NULL || dtype < HC_F32 || dtype > HC_F64 || num_dimensions < 0 || shape == NULL) {
        return NULL;
    }
    pool_tensor *tensor = malloc(sizeof(pool_tensor) + (size_t)num_dimensions * sizeof(int64_t));
    if (tensor == NULL) {
        return NULL;
    }
    int64_t count = 1;
    for (int i = 0; i < num_dimensions; i++) {
        tensor->shape[i] = shape[i];
        count = count < 0 ? count : hc_count(count, shape[i], 1);
    }
    tensor->pool = pool;
    tensor->memory = count < 0 ? NULL : take(pool, context, count * bits / 8);
    if (tensor->memory == NULL) {
        free(tensor);
        return NULL;
    }
    tensor->managed = (dl_managed_tensor){
        .tensor = {.data = tensor->memory->pages,
                   .device = {DL_CPU, 0},
                   .ndim = num_dimensions,
                   .dtype = {dtype == HC_BF16 ? DL_BFLOAT : DL_FLOAT, (uint8_t)bits, 1},
                   .shape = tensor->shape},
        .manager_context = tensor,
        .deleter = delete_tensor,
    };
    return &tensor->managed;
}
