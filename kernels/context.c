/* Contexts: a thread team, scratch memory and cache sizes in one handle. */
#define _GNU_SOURCE
#include "context.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "memory/pages.h"

/* Defaults for sizes that the caller does not provide: the smallest first and second level of the supported CPUs (Zen 4
 * has 32 KB and 1 MB, A64FX 64 KB and 8 MB shared by 12 cores), and 2 MB of last-level cache per core. */
#define DEFAULT_L1_BYTES (32 << 10)
#define DEFAULT_L2_BYTES (512 << 10)
#define DEFAULT_L3_BYTES (2 << 20)
#define DEFAULT_SPIN_NANOSECONDS 50000

typedef struct {
    hc_context context;
    pthread_mutex_t lock;
    unsigned owner; /* hc_forks of the process that owns the lock */
} locked_context;

static int copy_nodes(const hc_machine *machine, hc_context *context) {
    if (machine->nodes == NULL) {
        return HC_OK;
    }
    const size_t bytes = (size_t)context->num_clusters * sizeof(int);
    context->nodes = malloc(bytes);
    if (context->nodes == NULL) {
        return HC_OUT_OF_MEMORY;
    }
    memcpy(context->nodes, machine->nodes, bytes);
    return HC_OK;
}

/* Return 1 without a runtime, or for a runtime with all functions and without CPUs. The runtime places its threads
 * itself. */
static int is_complete(const hc_openmp *openmp, const int *cpus) {
    return openmp == NULL || (openmp->parallel != NULL && openmp->thread != NULL && openmp->num_threads != NULL && cpus == NULL);
}

int hc_context_create(const hc_machine *machine, hc_context **out_context) {
    if (machine == NULL || out_context == NULL || machine->num_threads < 1 || machine->num_threads > HC_MAX_THREADS ||
        machine->num_clusters < 0 || machine->num_clusters > machine->num_threads ||
        !is_complete(machine->openmp, machine->cpus)) {
        return HC_BAD_ARGUMENT;
    }
    const hc_kernels *kernels = hc_kernels_of(machine->isa);
    int best;
    if (kernels == NULL) {
        return HC_UNKNOWN_ISA;
    }
    if (hc_isa_detect(hc_isa_name(machine->isa), &best) != HC_OK) {
        return HC_UNSUPPORTED_ISA;
    }
    locked_context *locked = calloc(1, sizeof(locked_context));
    if (locked == NULL) {
        return HC_OUT_OF_MEMORY;
    }
    locked->context = (hc_context){
        .tag = HC_CONTEXT_TAG,
        .isa = machine->isa,
        .num_threads = machine->num_threads,
        .num_clusters = machine->num_clusters > 0 ? machine->num_clusters : 1,
        .l1_bytes = machine->l1_bytes > 0 ? machine->l1_bytes : DEFAULT_L1_BYTES,
        .l2_bytes = machine->l2_bytes > 0 ? machine->l2_bytes : DEFAULT_L2_BYTES,
        .l3_bytes = machine->l3_bytes > 0 ? machine->l3_bytes : DEFAULT_L3_BYTES,
        .kernels = kernels,
    };
    const int64_t spin = machine->spin_nanoseconds > 0 ? machine->spin_nanoseconds : DEFAULT_SPIN_NANOSECONDS;
    int status = copy_nodes(machine, &locked->context);
    if (status == HC_OK) {
        status = hc_team_create(machine->num_threads, locked->context.num_clusters, machine->cpus, spin,
                                machine->openmp, &locked->context.team);
    }
    if (status != HC_OK) {
        free(locked->context.nodes);
        free(locked);
        return status;
    }
    pthread_mutex_init(&locked->lock, NULL);
    locked->owner = hc_forks();
    *out_context = &locked->context;
    return HC_OK;
}

void hc_context_destroy(hc_context *context) {
    if (!hc_is_context(context)) {
        return;
    }
    locked_context *locked = (locked_context *)(void *)context;
    hc_drop_tag(&context->tag);
    hc_team_destroy(context->team);
    hc_pages_give(context->scratch, context->scratch_bytes);
    free(context->nodes);
    pthread_mutex_destroy(&locked->lock);
    free(locked);
}

static void give_scratch(hc_context *context) {
    void *old = context->scratch;
    const int64_t old_bytes = context->scratch_bytes;
    context->scratch = NULL; /* before the pages are released: a child forked in between must not keep their address */
    context->scratch_bytes = 0;
    hc_pages_give(old, old_bytes);
}

void *hc_scratch(hc_context *context, int64_t bytes) {
    if (bytes > context->scratch_bytes) {
        give_scratch(context);
        context->scratch = hc_pages_take(hc_pages_round(bytes));
        context->scratch_bytes = context->scratch == NULL ? 0 : hc_pages_round(bytes);
    }
    return context->scratch;
}

static void renew_lock_after_fork(locked_context *locked) {
    if (locked->owner != hc_forks()) {
        /* The thread that may have held the lock during the fork exists only in the parent. */
        locked->owner = hc_forks();
        pthread_mutex_init(&locked->lock, NULL);
    }
}

void hc_lock(hc_context *context) {
    locked_context *locked = (locked_context *)(void *)context;
    renew_lock_after_fork(locked);
    pthread_mutex_lock(&locked->lock);
}

void hc_unlock(hc_context *context) {
    pthread_mutex_unlock(&((locked_context *)(void *)context)->lock);
}

int hc_context_trim(hc_context *context) {
    if (!hc_is_context(context)) {
        return HC_BAD_ARGUMENT;
    }
    locked_context *locked = (locked_context *)(void *)context;
    renew_lock_after_fork(locked);
    if (pthread_mutex_trylock(&locked->lock) != 0) {
        return HC_OK; /* an operator uses the memory */
    }
    give_scratch(context);
    pthread_mutex_unlock(&locked->lock);
    return HC_OK;
}

int hc_context_scratch(hc_context *context, void **out_pages, int64_t *out_bytes) {
    if (!hc_is_context(context) || out_pages == NULL || out_bytes == NULL) {
        return HC_BAD_ARGUMENT;
    }
    hc_lock(context);
    *out_pages = context->scratch;
    *out_bytes = context->scratch_bytes;
    hc_unlock(context);
    return HC_OK;
}

int hc_run(hc_context *context, hc_callback job, void *arguments) {
    if (!hc_is_context(context) || job == NULL) {
        return HC_BAD_ARGUMENT;
    }
    hc_team_run(context->team, 0, job, arguments); /* unlocked: the job may call operators, each on one thread */
    return HC_OK;
}
