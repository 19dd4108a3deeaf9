/* Waiting and active copies by priority, which threads process in parts. Internal, without a lock. */
#ifndef HC_COPY_QUEUE_H
#define HC_COPY_QUEUE_H

#include <stdint.h>

#include "hcops.h"

typedef struct hc_queued {
    struct hc_queued *before, *after;
    hc_copy_request request;
    int *out_state;
    int64_t number;  /* sequence number of the submission */
    int64_t claimed; /* bytes claimed so far */
    int priority, stream;
    int running;     /* active parts */
    int error;       /* errno of the first failed part; no further part is claimed then */
} hc_queued;

/* Higher priorities first, equal priorities in the order of submission. */
typedef struct {
    hc_queued *first, *last;
    int64_t queued_bytes; /* not yet claimed */
} hc_copy_queue;

void hc_copy_queue_put(hc_copy_queue *queue, hc_queued *copy);

/* Move a copy after the copies of priority INT_MAX, before all others. */
void hc_copy_queue_raise(hc_copy_queue *queue, hc_queued *copy);

/* Return the first copy with an unclaimed part, or NULL. */
hc_queued *hc_copy_queue_next(const hc_copy_queue *queue);

/* Return the copy of a state, or NULL if it has ended. */
hc_queued *hc_copy_queue_find(const hc_copy_queue *queue, const int *state);

/* Claim a part of at most `max_bytes` bytes of a copy. Return its size, or 0 if no part is left. */
int64_t hc_copy_queue_claim(hc_copy_queue *queue, hc_queued *copy, int64_t max_bytes, hc_copy_request *out_part);

/* Set the error of a copy unless it has an error. No further part of it is claimed. */
void hc_copy_queue_fail(hc_copy_queue *queue, hc_queued *copy, int error);

/* If no part of a copy is active or left: remove it, publish its state, free it, and return 1. */
int hc_copy_queue_end(hc_copy_queue *queue, hc_queued *copy);

#endif
