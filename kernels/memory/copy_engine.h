/* Engine of hc_copies. Internal.
 *
 * One lock guards the queues and the counters; it is not held while bytes are copied. An idle thread claims a part
 * of a copy, copies it, and reports it. The last part of a copy ends it. A thread and a team can therefore work on
 * one copy together. */
#ifndef HC_COPY_ENGINE_H
#define HC_COPY_ENGINE_H

#include <pthread.h>
#include <stdint.h>

#include "context.h"
#include "memory/copy_device.h"
#include "memory/copy_queue.h"

typedef struct {
    hc_copies *copies;
    hc_copy_queue queue;
    pthread_cond_t work_available; /* signaled if a part may be available */
    pthread_t thread;
    int number;                 /* hc_copy_stream */
    int has_thread, is_running; /* has_thread: must be joined; is_running: in its loop */
    int64_t bytes, busy_nanoseconds;
} hc_copy_lane;

struct hc_copies {
    uint64_t tag; /* HC_COPIES_TAG */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* signaled when a copy or a thread has ended */
    const hc_copy_device *device;
    hc_copy_state device_state;
    hc_copy_lane lanes[HC_COPY_STREAMS];
    int64_t number, team_bytes, failed, stall_nanoseconds;
    int is_closed;
    unsigned owner; /* hc_forks of the process that owns the threads and the lock */
};

static inline int hc_is_copies(const hc_copies *copies) {
    return hc_has_tag(copies, HC_COPIES_TAG);
}

/* Take the lock and return HC_OK. Return HC_NOT_RUNNING without the lock if the engine is closed or belongs to another
 * process. */
int hc_copies_enter(hc_copies *copies);

/* Called with the lock. Claim and copy a part of at most `max_bytes`; the lock is released during the copy. `team`:
 * threads that copy instead of the caller alone, or NULL. Return the bytes, or 0 without a part to claim. The copy may
 * be freed afterwards. */
int64_t hc_copies_take_part(hc_copy_lane *lane, hc_queued *copy, int64_t max_bytes, hc_context *team);

/* Called with the lock. End a copy without remaining parts. */
void hc_copies_end_if_done(hc_copy_lane *lane, hc_queued *copy);

/* Copy a complete request with the compute team. Return 0 or an errno. */
int hc_copies_by_team(hc_copies *copies, const hc_copy_device *device, hc_context *context,
                      const hc_copy_request *request);

/* Return the time of a timeout from now on the monotonic clock. hc_copies_wait_for_change, called with the lock, waits
 * until a copy or a thread has ended, and returns 0 or ETIMEDOUT. */
int64_t hc_copies_deadline(int64_t timeout_nanoseconds);
int hc_copies_wait_for_change(hc_copies *copies, int64_t deadline);

#endif
