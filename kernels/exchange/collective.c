/* Complete operations of the processes of one node. In one call, an array passes the steps of exchange.c chunk by
 * chunk, and each step runs as far ahead of the next as the slots allow. */
#include "exchange/exchange.h"

#include <stddef.h>

#include "array.h"
#include "minmax.h"

/* An operation: its array, cut into chunks with one piece per process. */
typedef struct {
    hc_exchange *exchange;
    const hc_collective *whole;
    int64_t chunks;
    int rank, ranks;
    int *out_rank;
} operation;

typedef int step_function(const operation *o, int64_t chunk, const hc_pieces *pieces, int64_t timeout_nanoseconds);

static int64_t element_bytes(int type) {
    return type == HC_BF16 ? 2 : 4;
}

/* Return the positions of the pieces of a chunk. For a sum, the pieces are consecutive. Otherwise they are at the same
 * offset in the part of each process. */
static hc_pieces pieces_of(const operation *o, int64_t chunk, int64_t *offsets) {
    const hc_collective *w = o->whole;
    const int64_t start = chunk * w->chunk;
    if (w->kind != HC_ALL_REDUCE) {
        for (int rank = 0; rank < o->ranks; rank++) {
            offsets[rank] = rank * w->count + start;
        }
        return (hc_pieces){offsets, hc_min_i64(w->chunk, w->count - start), INT64_MAX};
    }
    const int64_t count = hc_min_i64(w->chunk, w->count - start);
    const int64_t line = 64 / element_bytes(w->type);
    const int64_t length = ((count + o->ranks - 1) / o->ranks + line - 1) / line * line;
    for (int rank = 0; rank < o->ranks; rank++) {
        offsets[rank] = start + hc_min_i64(rank * length, count);
    }
    return (hc_pieces){offsets, length, start + count};
}

static uint32_t number_of(const operation *o, int64_t chunk) {
    return o->whole->first + (uint32_t)chunk;
}

static int put(const operation *o, int64_t chunk, const hc_pieces *pieces, int64_t timeout_nanoseconds) {
    const hc_collective *w = o->whole;
    return hc_exchange_put(o->exchange, number_of(o, chunk), pieces, w->x, w->x_type, w->type, timeout_nanoseconds, o->out_rank);
}

static int offer(const operation *o, int64_t chunk, const hc_pieces *pieces, int64_t timeout_nanoseconds) {
    const hc_collective *w = o->whole;
    const char *own = (const char *)w->x + chunk * w->chunk * element_bytes(w->x_type);
    return hc_exchange_offer(o->exchange, number_of(o, chunk), pieces, own, w->x_type, w->type, timeout_nanoseconds, o->out_rank);
}

static int combine(const operation *o, int64_t chunk, const hc_pieces *pieces, int64_t timeout_nanoseconds) {
    const hc_collective *w = o->whole;
    const int is_sum = w->kind == HC_ALL_REDUCE;
    const int64_t own = is_sum ? pieces->offsets[o->rank] : chunk * w->chunk;
    void *piece;
    const int status = hc_exchange_combine(o->exchange, number_of(o, chunk), pieces, w->x, w->x_type, w->type, w->op, w->scale,
                                           (char *)w->out + own * element_bytes(w->x_type), w->x_type, is_sum ? &piece : NULL,
                                           timeout_nanoseconds, o->out_rank);
    return status == HC_OK && is_sum ? hc_exchange_publish(o->exchange, number_of(o, chunk)) : status;
}

static int get(const operation *o, int64_t chunk, const hc_pieces *pieces, int64_t timeout_nanoseconds) {
    const hc_collective *w = o->whole;
    const int with_own = w->kind == HC_ALL_GATHER && w->type != w->x_type;
    return hc_exchange_get(o->exchange, number_of(o, chunk), pieces, w->type, with_own, w->out, w->x_type, timeout_nanoseconds,
                           o->out_rank);
}

static step_function *const STEPS[][HC_WHOLE_STEPS] = {
    [HC_ALL_REDUCE] = {put, combine, get},
    [HC_REDUCE_SCATTER] = {put, combine, NULL},
    [HC_ALL_GATHER] = {offer, get, NULL},
};

static int run_step(const operation *o, int k, int64_t timeout_nanoseconds) {
    int64_t offsets[HC_MAX_PROCESSES];
    const hc_pieces pieces = pieces_of(o, o->whole->done[k], offsets);
    const int status = STEPS[o->whole->kind][k](o, o->whole->done[k], &pieces, timeout_nanoseconds);
    o->whole->done[k] += status == HC_OK;
    return status;
}

/* Run every step once if it can proceed without waiting. *waiting is the last step that could not, or -1. */
static int run_round(const operation *o, int steps, int *waiting) {
    *waiting = -1;
    int moved = 0;
    for (int k = 0; k < steps; k++) {
        if (o->whole->done[k] == (k == 0 ? o->chunks : o->whole->done[k - 1])) {
            continue;
        }
        const int status = run_step(o, k, 0);
        if (status == HC_TIMED_OUT) {
            *waiting = k;
        } else if (status != HC_OK) {
            return status;
        } else {
            moved = 1;
        }
    }
    return moved ? HC_OK : HC_TIMED_OUT;
}

int hc_exchange_collective(hc_exchange *exchange, const hc_collective *whole, int64_t rounds, int64_t timeout_nanoseconds, int *out_rank) {
    if (!hc_is_exchange(exchange) || whole == NULL || whole->kind < HC_ALL_REDUCE || whole->kind > HC_ALL_GATHER ||
        whole->chunk < 1 || whole->done == NULL || out_rank == NULL || hc_exchange_size(exchange) > HC_MAX_PROCESSES ||
        hc_count(whole->count, hc_exchange_size(exchange), 1) < 0) {
        return HC_BAD_ARGUMENT;
    }
    const operation o = {.exchange = exchange, .whole = whole,
                         .chunks = whole->count / whole->chunk + (whole->count % whole->chunk != 0),
                         .rank = hc_exchange_rank(exchange), .ranks = hc_exchange_size(exchange), .out_rank = out_rank};
    const int steps = whole->kind == HC_ALL_REDUCE ? 3 : 2;
    for (int k = 0; k < steps; k++) { /* no step may be ahead of the previous step */
        if (whole->done[k] < 0 || whole->done[k] > (k == 0 ? o.chunks : whole->done[k - 1])) {
            return HC_BAD_ARGUMENT;
        }
    }
    for (int64_t i = 0; whole->done[steps - 1] < o.chunks; i++) {
        int waiting, status = i < rounds ? run_round(&o, steps, &waiting) : HC_TIMED_OUT;
        if (status == HC_TIMED_OUT && i < rounds && timeout_nanoseconds > 0) {
            status = run_step(&o, waiting, timeout_nanoseconds);
        }
        if (status != HC_OK) {
            return status;
        }
    }
    return HC_OK;
}
