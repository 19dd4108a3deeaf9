/* Waiting and active copies by priority, which threads process in parts. Internal, without a lock. */
#ifndef HC_COPY_QUEUE_H
#define HC_COPY_QUEUE_H

#include <stdint.h>

#include "hcops.h"

typedef struct hc_queued {
    struct hc_queued *before, *after;
    hc_copy_request request;
    int *out_state;
    int64_t number;  /* of its submission */
    int64_t claimed; /* bytes claimed so far */
    int priority, stream;
    int running;     /* parts under way */
    int error;       /* errno of the first part that failed; no further part is taken then */
} hc_queued;

/* Higher priorities first, among equal ones in the order of submission. */
typedef struct {
    hc_queued *first, *last;
    int64_t queued_bytes; /* not claimed */
} hc_copy_queue;

void hc_copy_queue_put(hc_copy_queue *queue, hc_queued *copy);

/* Move a copy after the copies of priority INT_MAX, before all others. */
void hc_copy_queue_raise(hc_copy_queue *queue, hc_queued *copy);

/* First copy with an unclaimed part, or NULL. */
hc_queued *hc_copy_queue_next(const hc_copy_queue *queue);

/* The copy of that state; NULL: it is done. */
hc_queued *hc_copy_queue_find(const hc_copy_queue *queue, const int *state);

/* Takes a part of at most `most` bytes of a copy; its size, 0 where none is left. */
int64_t hc_copy_queue_claim(hc_copy_queue *queue, hc_queued *copy, int64_t most, hc_copy_request *out_part);

/* Set the error of a copy unless it has one. No further part of it is claimed. */
void hc_copy_queue_fail(hc_copy_queue *queue, hc_queued *copy, int error);

/* If no part of a copy is active or left: remove it, publish its state, free it, and return 1. */
int hc_copy_queue_end(hc_copy_queue *queue, hc_queued *copy);

#endif
