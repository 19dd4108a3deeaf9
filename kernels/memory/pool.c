/* The pool: a list of blocks, in use or idle, under one lock; and DLPack tensors over them. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "hcops.h"
#include "memory/pages.h"

/* An idle block serves a request of at least 4/5 of its size: a training step asks for the same few sizes again and again. */
#define FITS(block_bytes, wanted) ((block_bytes) >= (wanted) && (block_bytes) <= (wanted) + (wanted) / 4)

/* Idle blocks may lift the total above the most that was ever in use by this part of it: sizes of forward and backward differ. */
#define SLACK(peak) ((peak) / 8)

typedef struct block {
    struct block *next;
    void *pages;
    int64_t bytes;
    int64_t last_used; /* the pool's count of takes and gives */
    int in_use;
} block;

struct hc_pool {
    pthread_mutex_t lock;
    pid_t owner; /* whose lock it is, see lock_pool */
    block *blocks;
    int64_t used, idle, peak, hits, misses, clock;
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
    pool->owner = getpid();
    *out_pool = pool;
    return HC_OK;
}

static void lock_pool(hc_pool *pool) {
    if (pool->owner != getpid()) {
        /* A forked child: the thread that may have held the lock at that moment exists in the parent only. */
        pool->owner = getpid();
        pthread_mutex_init(&pool->lock, NULL);
    }
    pthread_mutex_lock(&pool->lock);
}

/* The smallest idle block that fits, or NULL. */
static block *find_idle(hc_pool *pool, int64_t bytes) {
    block *best = NULL;
    for (block *b = pool->blocks; b != NULL; b = b->next) {
        if (!b->in_use && FITS(b->bytes, bytes) && (best == NULL || b->bytes < best->bytes)) {
            best = b;
        }
    }
    return best;
}

/* Unmaps the idle block that was not used for longest. */
static void drop_oldest(hc_pool *pool) {
    block **oldest = NULL;
    for (block **link = &pool->blocks; *link != NULL; link = &(*link)->next) {
        if (!(*link)->in_use && (oldest == NULL || (*link)->last_used < (*oldest)->last_used)) {
            oldest = link;
        }
    }
    block *b = *oldest;
    *oldest = b->next;
    pool->idle -= b->bytes;
    hc_pages_give(b->pages, b->bytes);
    free(b);
}

static block *add_block(hc_pool *pool, int64_t bytes) {
    const int64_t peak = pool->used + bytes > pool->peak ? pool->used + bytes : pool->peak;
    while (pool->idle > 0 && pool->used + pool->idle + bytes > peak + SLACK(peak)) {
        drop_oldest(pool);
    }
    block *made = calloc(1, sizeof(block));
    void *pages = made == NULL ? NULL : hc_pages_take(bytes);
    if (pages == NULL) {
        free(made);
        return NULL;
    }
    *made = (block){.next = pool->blocks, .pages = pages, .bytes = bytes};
    pool->blocks = made;
    pool->idle += bytes;
    return made;
}

static block *take(hc_pool *pool, hc_context *context, int64_t bytes) {
    const int64_t wanted = hc_pages_round(bytes > 0 ? bytes : 1);
    lock_pool(pool);
    block *found = find_idle(pool, wanted);
    const int is_new = found == NULL;
    if (is_new) {
        pool->misses++;
        found = add_block(pool, wanted);
    } else {
        pool->hits++;
    }
    if (found != NULL) {
        found->in_use = 1;
        found->last_used = pool->clock++;
        pool->idle -= found->bytes;
        pool->used += found->bytes;
        pool->peak = pool->used > pool->peak ? pool->used : pool->peak;
    }
    pthread_mutex_unlock(&pool->lock);
    if (is_new && found != NULL) {
        hc_pages_touch(found->pages, found->bytes, context);
    }
    return found;
}

static void give(hc_pool *pool, block *returned) {
    lock_pool(pool);
    returned->in_use = 0;
    returned->last_used = pool->clock++;
    pool->used -= returned->bytes;
    pool->idle += returned->bytes;
    pthread_mutex_unlock(&pool->lock);
}

void *hc_pool_take(hc_pool *pool, hc_context *context, int64_t bytes) {
    if (pool == NULL || context == NULL || bytes < 0) {
        return NULL;
    }
    const block *taken = take(pool, context, bytes);
    return taken == NULL ? NULL : taken->pages;
}

void hc_pool_give(hc_pool *pool, void *pages) {
    if (pool == NULL || pages == NULL) {
        return;
    }
    lock_pool(pool);
    block *found = pool->blocks;
    while (found != NULL && found->pages != pages) {
        found = found->next;
    }
    pthread_mutex_unlock(&pool->lock);
    if (found != NULL) {
        give(pool, found);
    }
}

void hc_pool_counters(hc_pool *pool, int64_t *out_used, int64_t *out_idle, int64_t *out_peak, int64_t *out_hits,
                      int64_t *out_misses) {
    int64_t *out[] = {out_used, out_idle, out_peak, out_hits, out_misses};
    lock_pool(pool);
    const int64_t values[] = {pool->used, pool->idle, pool->peak, pool->hits, pool->misses};
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < 5; i++) {
        if (out[i] != NULL) {
            *out[i] = values[i];
        }
    }
}

void hc_pool_trim(hc_pool *pool) {
    lock_pool(pool);
    while (pool->idle > 0) {
        drop_oldest(pool);
    }
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
    block *memory;
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
        count *= shape[i];
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
