/* List sorted by priority. It contains tens of copies, most of them with one priority, which are appended at its
 * end. */
#include "memory/copy_queue.h"

#include <limits.h>
#include <stddef.h>
#include <stdlib.h>

#include "memory/copy_device.h"

static void unlink_copy(hc_copy_queue *queue, hc_queued *copy) {
    *(copy->before == NULL ? &queue->first : &copy->before->after) = copy->after;
    *(copy->after == NULL ? &queue->last : &copy->after->before) = copy->before;
}

static void link_copy(hc_copy_queue *queue, hc_queued *copy) {
    hc_queued *before = queue->last;
    while (before != NULL && before->priority < copy->priority) {
        before = before->before;
    }
    copy->before = before;
    copy->after = before == NULL ? queue->first : before->after;
    *(copy->before == NULL ? &queue->first : &copy->before->after) = copy;
    *(copy->after == NULL ? &queue->last : &copy->after->before) = copy;
}

static int64_t left(const hc_queued *copy) {
    return copy->error != 0 ? 0 : copy->request.bytes - copy->claimed;
}

void hc_copy_queue_put(hc_copy_queue *queue, hc_queued *copy) {
    queue->queued_bytes += left(copy);
    link_copy(queue, copy);
}

void hc_copy_queue_raise(hc_copy_queue *queue, hc_queued *copy) {
    if (copy->priority < INT_MAX) {
        unlink_copy(queue, copy);
        copy->priority = INT_MAX;
        link_copy(queue, copy);
    }
}

hc_queued *hc_copy_queue_next(const hc_copy_queue *queue) {
    hc_queued *copy = queue->first;
    while (copy != NULL && left(copy) == 0) {
        copy = copy->after;
    }
    return copy;
}

hc_queued *hc_copy_queue_find(const hc_copy_queue *queue, const int *state) {
    hc_queued *copy = queue->first;
    while (copy != NULL && copy->out_state != state) {
        copy = copy->after;
    }
    return copy;
}

int64_t hc_copy_queue_claim(hc_copy_queue *queue, hc_queued *copy, int64_t max_bytes, hc_copy_request *out_part) {
    const int64_t bytes = left(copy) < max_bytes ? left(copy) : max_bytes;
    if (bytes > 0) {
        *out_part = hc_copy_part(&copy->request, copy->claimed, bytes);
        copy->claimed += bytes;
        copy->running++;
        queue->queued_bytes -= bytes;
    }
    return bytes;
}

void hc_copy_queue_fail(hc_copy_queue *queue, hc_queued *copy, int error) {
    if (copy->error == 0) {
        queue->queued_bytes -= left(copy);
        copy->error = error;
    }
}

int hc_copy_queue_end(hc_copy_queue *queue, hc_queued *copy) {
    if (copy->running > 0 || left(copy) > 0) {
        return 0;
    }
    unlink_copy(queue, copy);
    /* The last access to a state that the caller may free after reading it. The copied data must be visible by then. */
    __atomic_store_n(copy->out_state, copy->error, __ATOMIC_RELEASE);
    free(copy);
    return 1;
}
