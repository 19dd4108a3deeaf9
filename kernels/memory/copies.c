/* Public functions of the copy engine. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#include "memory/copy_engine.h"
#include "team/waiting.h"

/* A team copies one part per thread at a time. */
static int64_t max_part_bytes(const hc_context *team) {
    return HC_COPY_PART_BYTES * team->num_threads;
}

static int is_invalid(const hc_copy_request *request) {
    return request == NULL || request->bytes < 0 || (request->bytes > 0 && (request->source == NULL || request->out_target == NULL)) ||
           request->source_offset < 0 || request->target_offset < 0;
}

int hc_copies_submit(hc_copies *copies, const hc_copy_request *request, int stream_number, int priority, int *out_state) {
    if (is_invalid(request) || out_state == NULL || stream_number < 0 || stream_number >= HC_COPY_STREAMS) {
        return HC_BAD_ARGUMENT;
    }
    hc_queued *created = malloc(sizeof(hc_queued));
    if (created == NULL) {
        return HC_OUT_OF_MEMORY;
    }
    const int status = hc_copies_enter(copies);
    if (status != HC_OK) {
        free(created);
        return status;
    }
    hc_copy_lane *own = &copies->lanes[stream_number];
    *created = (hc_queued){.request = *request, .out_state = out_state, .priority = priority, .stream = stream_number,
                           .number = copies->number++};
    __atomic_store_n(out_state, HC_COPY_PENDING, __ATOMIC_RELAXED);
    hc_copy_queue_put(&own->queue, created);
    hc_copies_end_if_done(own, created); /* a copy of 0 bytes ends immediately */
    pthread_cond_signal(&own->work_available);
    pthread_mutex_unlock(&copies->lock);
    return HC_OK;
}

int hc_copies_state(const int *state) {
    return state == NULL ? EINVAL : __atomic_load_n(state, __ATOMIC_ACQUIRE);
}

/* Return the copy of a state. Without a state, return a copy with an unclaimed part, or else any copy. NULL: no such
 * copy. */
static hc_queued *find(hc_copies *copies, const int *state) {
    hc_queued *found = NULL;
    for (int i = 0; i < HC_COPY_STREAMS && found == NULL; i++) {
        const hc_copy_queue *queue = &copies->lanes[i].queue;
        found = state != NULL ? hc_copy_queue_find(queue, state) : hc_copy_queue_next(queue);
    }
    for (int i = 0; i < HC_COPY_STREAMS && found == NULL && state == NULL; i++) {
        found = copies->lanes[i].queue.first;
    }
    return found;
}

int hc_copies_wait(hc_copies *copies, hc_context *context, const int *state, int64_t timeout_nanoseconds) {
    int status = !hc_is_context(context) ? HC_BAD_ARGUMENT : hc_copies_enter(copies);
    if (status != HC_OK) {
        return status;
    }
    const int64_t begin = now_nanoseconds(), deadline = hc_copies_deadline(timeout_nanoseconds);
    for (hc_queued *copy; status == HC_OK && (copy = find(copies, state)) != NULL;) {
        hc_copy_lane *own = &copies->lanes[copy->stream];
        if (state != NULL) {
            hc_copy_queue_raise(&own->queue, copy);
        }
        const int is_late = now_nanoseconds() > deadline;
        if (is_late || (hc_copies_take_part(own, copy, max_part_bytes(context), context) == 0 &&
                        hc_copies_wait_for_change(copies, deadline) == ETIMEDOUT)) {
            status = HC_TIMED_OUT;
        }
    }
    copies->stall_nanoseconds += now_nanoseconds() - begin;
    pthread_mutex_unlock(&copies->lock);
    return status;
}

/* Return the next copy of both streams together, or NULL. */
static hc_queued *next_of_all(hc_copies *copies) {
    hc_queued *a = hc_copy_queue_next(&copies->lanes[HC_LOAD].queue);
    hc_queued *b = hc_copy_queue_next(&copies->lanes[HC_OFFLOAD].queue);
    if (a == NULL || b == NULL) {
        return a == NULL ? b : a;
    }
    const int is_second = b->priority > a->priority || (b->priority == a->priority && b->number < a->number);
    return is_second ? b : a;
}

int hc_copies_advance(hc_copies *copies, hc_context *context, int64_t bytes, int64_t *out_copied) {
    if (!hc_is_context(context) || out_copied == NULL || bytes < 0) {
        return HC_BAD_ARGUMENT;
    }
    *out_copied = 0;
    const int status = hc_copies_enter(copies);
    if (status != HC_OK) {
        return status;
    }
    const int64_t begin = now_nanoseconds();
    for (hc_queued *next; *out_copied < bytes && (next = next_of_all(copies)) != NULL;) {
        const int64_t left = bytes - *out_copied;
        const int64_t max_bytes = left < max_part_bytes(context) ? left : max_part_bytes(context);
        *out_copied += hc_copies_take_part(&copies->lanes[next->stream], next, max_bytes, context);
    }
    copies->stall_nanoseconds += now_nanoseconds() - begin;
    pthread_mutex_unlock(&copies->lock);
    return HC_OK;
}

int hc_copies_now(hc_copies *copies, hc_context *context, const hc_copy_request *request, int *out_error) {
    if (!hc_is_context(context) || is_invalid(request) || out_error == NULL) {
        return HC_BAD_ARGUMENT;
    }
    const int status = hc_copies_enter(copies);
    if (status != HC_OK) {
        return status;
    }
    const hc_copy_device *device = copies->device;
    pthread_mutex_unlock(&copies->lock);
    const int64_t begin = now_nanoseconds();
    *out_error = hc_copies_by_team(copies, device, context, request);
    const int64_t end = now_nanoseconds();
    pthread_mutex_lock(&copies->lock);
    copies->stall_nanoseconds += end - begin;
    copies->team_bytes += *out_error == 0 ? request->bytes : 0;
    copies->failed += *out_error != 0;
    pthread_mutex_unlock(&copies->lock);
    return HC_OK;
}

int hc_copies_counters(hc_copies *copies, hc_copy_counters *out_counters) {
    if (!hc_is_copies(copies) || out_counters == NULL) {
        return HC_BAD_ARGUMENT;
    }
    if (copies->owner != hc_forks()) {
        return HC_NOT_RUNNING;
    }
    pthread_mutex_lock(&copies->lock); /* also after close */
    *out_counters = (hc_copy_counters){.team_bytes = copies->team_bytes, .failed = copies->failed,
                                       .stall_nanoseconds = copies->stall_nanoseconds};
    for (int i = 0; i < HC_COPY_STREAMS; i++) {
        out_counters->bytes[i] = copies->lanes[i].bytes;
        out_counters->busy_nanoseconds[i] = copies->lanes[i].busy_nanoseconds;
        out_counters->queued_bytes += copies->lanes[i].queue.queued_bytes;
    }
    pthread_mutex_unlock(&copies->lock);
    return HC_OK;
}

int hc_copies_set_faults(hc_copies *copies, int error, int64_t after_bytes, int64_t delay_nanoseconds) {
    if (error < 0 || after_bytes < 0 || delay_nanoseconds < 0) {
        return HC_BAD_ARGUMENT;
    }
    const int status = hc_copies_enter(copies);
    if (status != HC_OK) {
        return status;
    }
    hc_copy_faults *faults = &copies->device_state.faults;
    atomic_store(&faults->left_bytes, after_bytes);
    atomic_store(&faults->error, error);
    atomic_store(&faults->delay_nanoseconds, delay_nanoseconds);
    copies->device = &hc_copy_with_faults;
    pthread_mutex_unlock(&copies->lock);
    return HC_OK;
}
