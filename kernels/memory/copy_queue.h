/* Copies that wait or are under way, by priority; taken in parts by whoever has time. Not part of the door, no lock. */
#ifndef HC_COPY_QUEUE_H
#define HC_COPY_QUEUE_H

#include <stdint.h>

#include "hcops.h"

typedef struct hc_queued {
    struct hc_queued *before, *after;
    hc_copy_request request;
    int *out_state;
    int64_t number;  /* of its submission */
    int64_t claimed; /* bytes that somebody copies or has copied */
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

/* Moves a copy behind those of INT_MAX, before all others. */
void hc_copy_queue_raise(hc_copy_queue *queue, hc_queued *copy);

/* The first copy of which there is a part to take; NULL: there is none. */
hc_queued *hc_copy_queue_next(const hc_copy_queue *queue);

/* The copy of that state; NULL: it is done. */
hc_queued *hc_copy_queue_find(const hc_copy_queue *queue, const int *state);

/* Takes a part of at most `most` bytes of a copy; its size, 0 where none is left. */
int64_t hc_copy_queue_claim(hc_copy_queue *queue, hc_queued *copy, int64_t most, hc_copy_request *out_part);

/* Sets the error of a copy unless it has one. Nobody takes a part of it from then on. */
void hc_copy_queue_fail(hc_copy_queue *queue, hc_queued *copy, int error);

/* Where nothing of a copy is under way nor left to take: takes it out, tells its state, frees it, and returns 1. */
int hc_copy_queue_end(hc_copy_queue *queue, hc_queued *copy);

#endif
