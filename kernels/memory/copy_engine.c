/* Execution of copies: a thread for each stream, or none, and the compute team of waiting callers. */
#define _GNU_SOURCE
#include "memory/copy_engine.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "array.h"
#include "team/threads.h"
#include "team/waiting.h"

/* Granularity of the partition among the threads of a team: one page. */
#define COPY_MULTIPLE 4096

static int copy_now(hc_copies *copies, const hc_copy_device *device, const hc_copy_request *part) {
    void *token;
    const int error = device->start(&copies->device_state, part, &token);
    return error != 0 ? error : device->finish(&copies->device_state, token);
}

typedef struct {
    hc_copies *copies;
    const hc_copy_device *device;
    const hc_copy_request *request;
    atomic_int error;
} team_job;

static void copy_share(void *arguments, int thread, int num_threads) {
    team_job *job = arguments;
    int64_t start, stop;
    hc_part(job->request->bytes, COPY_MULTIPLE, thread, num_threads, &start, &stop);
    while (start < stop && atomic_load(&job->error) == 0) {
        const int64_t bytes = stop - start < HC_COPY_PART_BYTES ? stop - start : HC_COPY_PART_BYTES;
        const hc_copy_request part = hc_copy_part(job->request, start, bytes);
        const int error = copy_now(job->copies, job->device, &part);
        int none = 0;
        if (error != 0) {
            atomic_compare_exchange_strong(&job->error, &none, error);
        }
        start += bytes;
    }
}

int hc_copies_by_team(hc_copies *copies, const hc_copy_device *device, hc_context *context, const hc_copy_request *part) {
    team_job job = {.copies = copies, .device = device, .request = part};
    hc_team_run(context->team, hc_threads_for(context, part->bytes / 4), copy_share, &job);
    return atomic_load(&job.error);
}

void hc_copies_end_if_done(hc_copy_lane *own, hc_queued *copy) {
    hc_copies *copies = own->copies;
    const int has_failed = copy->error != 0;
    if (hc_copy_queue_end(&own->queue, copy)) {
        copies->failed += has_failed;
        pthread_cond_broadcast(&copies->changed);
    }
}

int64_t hc_copies_take_part(hc_copy_lane *own, hc_queued *copy, int64_t max_bytes, hc_context *team) {
    hc_copies *copies = own->copies;
    const hc_copy_device *device = copies->device;
    hc_copy_request part;
    const int64_t bytes = hc_copy_queue_claim(&own->queue, copy, max_bytes, &part);
    if (bytes == 0) {
        return 0;
    }
    pthread_mutex_unlock(&copies->lock);
    const int64_t begin = now_nanoseconds();
    const int error = team == NULL ? copy_now(copies, device, &part) : hc_copies_by_team(copies, device, team, &part);
    const int64_t end = now_nanoseconds();
    pthread_mutex_lock(&copies->lock);
    own->busy_nanoseconds += end - begin;
    copy->running--;
    if (error != 0) {
        hc_copy_queue_fail(&own->queue, copy, error);
    } else {
        own->bytes += bytes;
        copies->team_bytes += team == NULL ? 0 : bytes;
    }
    hc_copies_end_if_done(own, copy);
    return bytes;
}

static void *stream_main(void *argument) {
    hc_copy_lane *own = argument;
    hc_copies *copies = own->copies;
#ifdef __linux__
    prctl(PR_SET_NAME, own->number == HC_LOAD ? "dithc-load" : "dithc-offload");
#endif
    pthread_mutex_lock(&copies->lock);
    while (!copies->is_closed) {
        hc_queued *next = hc_copy_queue_next(&own->queue);
        if (next == NULL) {
            pthread_cond_wait(&own->work_available, &copies->lock);
        } else {
            hc_copies_take_part(own, next, HC_COPY_PART_BYTES, NULL);
        }
    }
    own->is_running = 0;
    pthread_cond_broadcast(&copies->changed);
    pthread_mutex_unlock(&copies->lock);
    return NULL;
}

static int start_threads(hc_copies *copies, const int *cpus) {
    sigset_t before;
    int status = HC_OK;
    block_signals(&before);
    pthread_mutex_lock(&copies->lock); /* threads start their loop after all of them exist, or after a failure */
    for (int i = 0; i < HC_COPY_STREAMS && status == HC_OK; i++) {
        hc_copy_lane *own = &copies->lanes[i];
        const int *cpu = cpus != NULL && cpus[i] >= 0 ? &cpus[i] : NULL;
        status = start_thread(&own->thread, cpu, stream_main, own);
        own->has_thread = own->is_running = status == HC_OK;
    }
    pthread_mutex_unlock(&copies->lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

static void create_condition(pthread_cond_t *out_condition) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(out_condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

int hc_copies_create(const hc_context *context, int with_threads, const int *cpus, hc_copies **out_copies) {
    if (!hc_is_context(context) || out_copies == NULL) {
        return HC_BAD_ARGUMENT;
    }
    hc_copies *created = calloc(1, sizeof(hc_copies));
    if (created == NULL) {
        return HC_OUT_OF_MEMORY;
    }
    created->tag = HC_COPIES_TAG;
    pthread_mutex_init(&created->lock, NULL);
    create_condition(&created->changed);
    created->device = &hc_copy_by_cpu;
    created->device_state.kernel = context->kernels->copy;
    created->owner = hc_forks();
    for (int i = 0; i < HC_COPY_STREAMS; i++) {
        created->lanes[i].copies = created;
        created->lanes[i].number = i;
        create_condition(&created->lanes[i].work_available);
    }
    if (with_threads && start_threads(created, cpus) != HC_OK) {
        hc_copies_close(created, INT64_MAX);
        hc_copies_destroy(created);
        return HC_NO_THREAD;
    }
    *out_copies = created;
    return HC_OK;
}

int hc_copies_enter(hc_copies *copies) {
    if (!hc_is_copies(copies)) {
        return HC_BAD_ARGUMENT;
    }
    if (copies->owner != hc_forks()) {
        return HC_NOT_RUNNING; /* the lock may be held by a thread that does not exist in this process */
    }
    pthread_mutex_lock(&copies->lock);
    if (copies->is_closed) {
        pthread_mutex_unlock(&copies->lock);
        return HC_NOT_RUNNING;
    }
    return HC_OK;
}

int64_t hc_copies_deadline(int64_t timeout_nanoseconds) {
    const int64_t now = now_nanoseconds();
    return timeout_nanoseconds <= 0 ? now : timeout_nanoseconds > INT64_MAX - now ? INT64_MAX : now + timeout_nanoseconds;
}

int hc_copies_wait_for_change(hc_copies *copies, int64_t deadline) {
    const struct timespec until = {(time_t)(deadline / 1000000000), (long)(deadline % 1000000000)};
    return pthread_cond_timedwait(&copies->changed, &copies->lock, &until);
}

int hc_copies_close(hc_copies *copies, int64_t timeout_nanoseconds) {
    if (!hc_is_copies(copies)) {
        return HC_BAD_ARGUMENT;
    }
    if (copies->owner != hc_forks()) {
        return HC_OK; /* the threads belong to the parent process */
    }
    const int64_t deadline = hc_copies_deadline(timeout_nanoseconds);
    pthread_mutex_lock(&copies->lock);
    copies->is_closed = 1;
    atomic_store(&copies->device_state.faults.stop, 1);
    int status = HC_OK;
    for (int i = 0; i < HC_COPY_STREAMS; i++) {
        hc_copy_lane *own = &copies->lanes[i];
        for (hc_queued *copy = own->queue.first, *after; copy != NULL; copy = after) {
            after = copy->after;
            if (copy->claimed < copy->request.bytes) {
                hc_copy_queue_fail(&own->queue, copy, ECANCELED);
                hc_copies_end_if_done(own, copy);
            }
        }
        pthread_cond_signal(&own->work_available);
    }
    for (int i = 0; i < HC_COPY_STREAMS; i++) {
        hc_copy_lane *own = &copies->lanes[i];
        while (status == HC_OK && (own->is_running || own->queue.first != NULL)) {
            status = hc_copies_wait_for_change(copies, deadline) == ETIMEDOUT ? HC_TIMED_OUT : HC_OK;
        }
    }
    pthread_mutex_unlock(&copies->lock);
    return status;
}

void hc_copies_destroy(hc_copies *copies) {
    if (!hc_is_copies(copies) || (copies->owner == hc_forks() && !copies->is_closed)) {
        return; /* joining the running threads would never return */
    }
    if (copies->owner == hc_forks()) {
        for (int i = 0; i < HC_COPY_STREAMS; i++) {
            if (copies->lanes[i].has_thread) {
                pthread_join(copies->lanes[i].thread, NULL);
            }
            pthread_cond_destroy(&copies->lanes[i].work_available);
        }
        pthread_cond_destroy(&copies->changed);
        pthread_mutex_destroy(&copies->lock);
    }
    hc_drop_tag(&copies->tag);
    free(copies);
}
