/* Threads take blocks of a chain of pools, mark them, and return them, while another thread checks the budgets. */
#include "test/cases.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "context.h"

#define ROUNDS 1500
#define HELD 12
#define MEBI ((int64_t)1 << 20)
#define MAX_TAKERS 16

typedef struct {
    hc_context *context;
    hc_pool *pools[3]; /* with a budget, over a file (or with a budget), with a small budget; each spills to the next */
    int num_pools;
    atomic_int is_over;
} work;

typedef struct {
    work *shared;
    uint32_t state;
    long wrong;
} taker;

static uint32_t draw(taker *t) {
    t->state = t->state * 1664525u + 1013904223u;
    return t->state >> 8;
}

/* Mark both ends of a block, which no other thread may own. */
static void mark(void *block, int64_t bytes, int64_t value) {
    *(volatile int64_t *)block = value;
    *(volatile int64_t *)((char *)block + bytes - 8) = value;
}

static int is_marked(const void *block, int64_t bytes, int64_t value) {
    return *(const volatile int64_t *)block == value && *(const volatile int64_t *)((const char *)block + bytes - 8) == value;
}

static void *take_and_give(void *argument) {
    static const int64_t sizes[] = {8, 4096, 5000, 70000, MEBI, 2 * MEBI, 2 * MEBI + 8, 5 * MEBI};
    taker *t = argument;
    struct {
        void *block;
        int64_t bytes, value;
    } held[HELD] = {0};
    for (int round = 0; round < ROUNDS + HELD; round++) {
        const int i = round < ROUNDS ? (int)(draw(t) % HELD) : round - ROUNDS;
        if (held[i].block != NULL) {
            t->wrong += !is_marked(held[i].block, held[i].bytes, held[i].value);
            hc_pool_give(t->shared->pools[0], held[i].block);
            held[i].block = NULL;
        } else if (round < ROUNDS) {
            held[i].bytes = sizes[draw(t) % 8] / 8 * 8;
            held[i].value = (int64_t)draw(t) << 24 | round;
            held[i].block = hc_pool_take(t->shared->pools[0], t->shared->context, held[i].bytes);
            if (held[i].block != NULL) {
                mark(held[i].block, held[i].bytes, held[i].value);
            }
        }
    }
    return NULL;
}

/* Check that budgets hold at any moment. */
static void *watch(void *argument) {
    work *w = argument;
    long wrong = 0;
    while (!atomic_load(&w->is_over)) {
        for (int i = 0; i < w->num_pools; i++) {
            hc_pool_state now;
            hc_pool_counters(w->pools[i], &now);
            wrong += now.backed_bytes > now.budget_bytes || now.peak_backed_bytes > now.budget_bytes;
            wrong += now.used_bytes + now.idle_bytes != now.backed_bytes || now.used_bytes < 0 || now.idle_bytes < 0;
        }
        hc_pool_trim(w->pools[0]);
    }
    return (void *)(intptr_t)wrong;
}

static long of_all_threads(work *w, int num_threads) {
    taker takers[MAX_TAKERS];
    pthread_t threads[MAX_TAKERS], watcher;
    void *found;
    pthread_create(&watcher, NULL, watch, w);
    for (int i = 0; i < num_threads; i++) {
        takers[i] = (taker){w, 77u * (uint32_t)i + 1, 0};
        pthread_create(&threads[i], NULL, take_and_give, &takers[i]);
    }
    long wrong = 0;
    for (int i = 0; i < num_threads; i++) {
        pthread_join(threads[i], NULL);
        wrong += takers[i].wrong;
    }
    atomic_store(&w->is_over, 1);
    pthread_join(watcher, &found);
    return wrong + (long)(intptr_t)found;
}

int hc_test_pool(int num_threads, int file) {
    hc_context context = {.tag = HC_CONTEXT_TAG, .num_threads = 1, .num_clusters = 1};
    work w = {.context = &context, .num_pools = 3};
    if (num_threads > MAX_TAKERS || hc_team_create(1, 1, NULL, 1, NULL, &context.team) != HC_OK) {
        return -1;
    }
    const hc_pool_options last = {.budget_bytes = 4 * MEBI, .file = -1};
    hc_pool_options middle = {.budget_bytes = 16 * MEBI, .file = file}, first = {.budget_bytes = 10 * MEBI, .file = -1};
    if (hc_pool_create(&last, &middle.next) != HC_OK || hc_pool_create(&middle, &first.next) != HC_OK ||
        hc_pool_create(&first, &w.pools[0]) != HC_OK) {
        return -1;
    }
    w.pools[1] = first.next, w.pools[2] = middle.next;
    long wrong = of_all_threads(&w, num_threads);
    for (int i = 0; i < 3; i++) {
        hc_pool_state at_end;
        hc_pool_counters(w.pools[i], &at_end);
        wrong += at_end.used_bytes != 0 || at_end.num_blocks != 0 || (i == 0 && at_end.spills == 0);
    }
    /* A block that outlives its pool. */
    void *block = hc_pool_take(w.pools[0], &context, MEBI);
    hc_pool *of_block = w.pools[0];
    hc_pool_release(w.pools[0]);
    mark(block, MEBI, 1);
    hc_pool_give(of_block, block);
    /* A closed pool refuses blocks, although they fit the next pool, and accepts further calls. */
    hc_pool_close(w.pools[1]);
    wrong += hc_pool_take(w.pools[1], &context, 1) != NULL || hc_pool_take(w.pools[1], &context, 1) != NULL;
    hc_pool_release(w.pools[1]);
    hc_pool_release(w.pools[2]);
    hc_team_destroy(context.team);
    return wrong > 0;
}
