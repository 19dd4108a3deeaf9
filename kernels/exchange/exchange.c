/* Protocol of an exchange: processes of one node alternate in using slots of a segment, synchronized by counters.
 *
 * The segment contains a line of counters and `slots` slots for each process. Arrays pass in chunks with one piece
 * per process. Piece r of chunk c of every process is in its slot c % slots. `put` copies the pieces that other
 * processes combine into this process's slot. `combine` reduces this process's piece over all processes, with its
 * own values straight from its array. It leaves the result in its slot, where `get` of other processes reads it, or
 * only in an array. `offer` puts a finished piece there directly. A counter per step publishes the progress of each
 * process, so that chunk c + 1 can be put while other processes still combine c. */
#define _GNU_SOURCE
#include "exchange/exchange.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "array.h"

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#define CACHE_LINE 64
/* Polls of a counter before a process sleeps: about 20 microseconds, the time of one step of a chunk. */
#define LOOKS 500
/* Sleep time between checks that the other process still exists. */
#define SLEEP_NANOSECONDS 50000000
#define NO_WAITING 0
/* Polling time of a barrier before it sleeps. Processes in a barrier usually have separate cores and no other work. */
#define AWAKE_NANOSECONDS 500000
/* Time after which a stopped process is reported. */
#define STOPPED_NANOSECONDS 10000000000

enum { PUT = 0, COMBINED = 1, GOT = 2, STEPS = 3 };

/* Progress that one process publishes: chunks done since the segment was created, modulo 2^32. */
typedef struct {
    _Alignas(CACHE_LINE) atomic_uint done[STEPS];
    atomic_uint sleepers; /* processes to wake when a counter of this line rises */
    atomic_int pid;       /* 0 until the process attaches */
} counters;

struct hc_exchange {
    uint64_t tag; /* HC_EXCHANGE_TAG */
    counters *lines; /* one per process */
    char *slots;     /* slots of process 0; later processes follow at distances of slots * slot_bytes */
    const hc_kernels *kernels;
    int64_t slot_bytes;
    int rank, ranks, num_slots;
};

static int64_t now_nanoseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Return the end of the timeout, or NO_WAITING for a single poll. */
static int64_t deadline_after(int64_t timeout_nanoseconds) {
    return timeout_nanoseconds > 0 ? now_nanoseconds() + timeout_nanoseconds : NO_WAITING;
}

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t lines_bytes(int ranks) {
    return (int64_t)(ranks * sizeof(counters) + 4095) / 4096 * 4096;
}

int hc_exchange_bytes(int ranks, int slots, int64_t slot_bytes, int64_t *out_bytes) {
    if (ranks < 1 || slots < 1 || slot_bytes < CACHE_LINE || slot_bytes % CACHE_LINE != 0 || out_bytes == NULL ||
        slot_bytes > (INT64_MAX - lines_bytes(ranks)) / ranks / slots) {
        return HC_BAD_ARGUMENT;
    }
    *out_bytes = lines_bytes(ranks) + slot_bytes * ranks * slots;
    return HC_OK;
}

int hc_exchange_attach(void *segment, const hc_context *context, int rank, int ranks, int slots, int64_t slot_bytes,
                       hc_exchange **out_exchange) {
    int64_t bytes;
    if (segment == NULL || (uintptr_t)segment % CACHE_LINE != 0 || !hc_is_context(context) || out_exchange == NULL || rank < 0 || rank >= ranks ||
        hc_exchange_bytes(ranks, slots, slot_bytes, &bytes) != HC_OK) {
        return HC_BAD_ARGUMENT;
    }
    hc_exchange *created = malloc(sizeof(*created));
    if (created == NULL) {
        return HC_OUT_OF_MEMORY;
    }
    *created = (hc_exchange){.tag = HC_EXCHANGE_TAG, .lines = segment, .slots = (char *)segment + lines_bytes(ranks),
                             .kernels = context->kernels, .slot_bytes = slot_bytes, .rank = rank, .ranks = ranks,
                             .num_slots = slots};
    atomic_store(&created->lines[rank].pid, (int)getpid());
    *out_exchange = created;
    return HC_OK;
}

int hc_is_exchange(const hc_exchange *exchange) {
    return hc_has_tag(exchange, HC_EXCHANGE_TAG);
}

void hc_exchange_detach(hc_exchange *exchange) {
    if (hc_is_exchange(exchange)) {
        hc_drop_tag(&exchange->tag);
        free(exchange);
    }
}

int hc_exchange_rank(const hc_exchange *exchange) {
    return exchange->rank;
}

int hc_exchange_size(const hc_exchange *exchange) {
    return exchange->ranks;
}

static void *slot_of(const hc_exchange *x, int rank, uint32_t number) {
    return x->slots + ((int64_t)rank * x->num_slots + number % (uint32_t)x->num_slots) * x->slot_bytes;
}

static int is_gone(const counters *line) {
    const int pid = atomic_load(&line->pid);
    return pid > 0 && kill(pid, 0) != 0 && errno == ESRCH;
}

/* Return the state letter of proc(5): 'T' stopped, 'Z' ended but not yet reaped by its parent, '?' if the system does
 * not provide it. */
static char state_of(const counters *line) {
    char path[32], text[512], *end = NULL;
    snprintf(path, sizeof(path), "/proc/%d/stat", atomic_load(&line->pid));
    FILE *file = fopen(path, "r");
    if (file != NULL) {
        const size_t length = fread(text, 1, sizeof(text) - 1, file);
        text[length] = 0;
        fclose(file);
        end = strrchr(text, ')'); /* after the name, which may contain any characters */
    }
    return end != NULL && end[1] == ' ' ? end[2] : '?';
}

static void sleep_while(counters *line, int step, uint32_t value) {
    atomic_fetch_add(&line->sleepers, 1);
#ifdef __linux__
    const struct timespec limit = {0, SLEEP_NANOSECONDS};
    syscall(SYS_futex, &line->done[step], FUTEX_WAIT, value, &limit, NULL, 0); /* not _PRIVATE: wakers are processes */
#else
    (void)step, (void)value;
    sched_yield();
#endif
    atomic_fetch_sub(&line->sleepers, 1);
}

/* Wait until process `rank` has finished `step` for all chunks below `number`. */
static int wait_for(const hc_exchange *x, int rank, int step, uint32_t number, int64_t deadline) {
    counters *line = &x->lines[rank];
    for (int poll = 0;; poll++) {
        const uint32_t done = atomic_load_explicit(&line->done[step], memory_order_acquire);
        if ((int32_t)(done - number) >= 0) {
            return HC_OK;
        }
        if (deadline == NO_WAITING) {
            return HC_TIMED_OUT;
        }
        if (poll < LOOKS) {
            relax();
            continue;
        }
        if (is_gone(line)) {
            return HC_PROCESS_GONE;
        }
        if (now_nanoseconds() > deadline) {
            return HC_TIMED_OUT;
        }
        sleep_while(line, step, done);
    }
}

static int wait_for_all(const hc_exchange *x, int step, uint32_t number, int64_t deadline, int *out_rank) {
    for (int i = 1; i < x->ranks; i++) {
        const int rank = (x->rank + i) % x->ranks;
        const int status = wait_for(x, rank, step, number, deadline);
        if (status != HC_OK) {
            *out_rank = rank;
            return status;
        }
    }
    return HC_OK;
}

static void publish(const hc_exchange *x, int step, uint32_t done) {
    counters *line = &x->lines[x->rank];
    atomic_store(&line->done[step], done);
#ifdef __linux__
    if (atomic_load(&line->sleepers) > 0) {
        syscall(SYS_futex, &line->done[step], FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    }
#endif
}

/* Wait for a process in a barrier. It polls longer than wait_for, and also detects stopped processes. */
static int wait_in_barrier(const hc_exchange *x, int rank, uint32_t number, int64_t deadline) {
    counters *line = &x->lines[rank];
    const int64_t begun = now_nanoseconds();
    int64_t stopped_since = 0;
    for (int poll = 1;; poll++) {
        const uint32_t done = atomic_load_explicit(&line->done[PUT], memory_order_acquire);
        if ((int32_t)(done - number) >= 0) {
            return HC_OK;
        }
        relax();
        if (poll % LOOKS != 0) {
            continue;
        }
        const int64_t now = now_nanoseconds();
        if (now - begun < AWAKE_NANOSECONDS) {
            continue;
        }
        const char state = state_of(line);
        if (is_gone(line) || state == 'Z' || state == 'X') {
            return HC_PROCESS_GONE;
        }
        stopped_since = state != 'T' ? 0 : stopped_since ? stopped_since : now;
        if (stopped_since && now - stopped_since > STOPPED_NANOSECONDS) {
            return HC_PROCESS_STOPPED;
        }
        if (now > deadline) {
            return HC_TIMED_OUT;
        }
        sleep_while(line, PUT, done);
    }
}

int hc_exchange_barrier(hc_exchange *exchange, int64_t timeout_nanoseconds, int *out_rank) {
    if (!hc_is_exchange(exchange) || timeout_nanoseconds < 1 || out_rank == NULL) {
        return HC_BAD_ARGUMENT;
    }
    const uint32_t number = atomic_load_explicit(&exchange->lines[exchange->rank].done[PUT], memory_order_relaxed) + 1;
    const int64_t deadline = now_nanoseconds() + timeout_nanoseconds;
    publish(exchange, PUT, number);
    for (int i = 1; i < exchange->ranks; i++) {
        const int rank = (exchange->rank + i) % exchange->ranks;
        const int status = wait_in_barrier(exchange, rank, number, deadline);
        if (status != HC_OK) {
            *out_rank = rank;
            return status;
        }
    }
    return HC_OK;
}

static int64_t element_bytes(int type) {
    return type == HC_BF16 ? 2 : 4;
}

/* Return the number of elements of piece `rank` within the limit. */
static int64_t piece_count(const hc_pieces *pieces, int rank) {
    const int64_t left = pieces->limit - pieces->offsets[rank];
    return left < 0 ? 0 : left < pieces->length ? left : pieces->length;
}

/* Return the bytes of a piece in a slot. Pieces are consecutive, each in complete cache lines. */
static int64_t piece_bytes(const hc_pieces *pieces, int type) {
    return (pieces->length * element_bytes(type) + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

static char *piece_of(const hc_exchange *x, const hc_pieces *pieces, int of, int rank, uint32_t number, int type) {
    return (char *)slot_of(x, of, number) + rank * piece_bytes(pieces, type);
}

static const char *at(const void *x, int64_t i, int type) {
    return (const char *)x + i * element_bytes(type);
}

/* Copy elements. Elements of equal types are copied bitwise. */
static void move(const hc_exchange *exchange, int64_t count, const void *x, int x_type, void *out, int out_type) {
    if (x_type == out_type) {
        memcpy(out, x, (size_t)(count * element_bytes(x_type)));
    } else {
        exchange->kernels->convert(count, x, x_type, out, out_type);
    }
}

static int is_type(int type) {
    return type == HC_F32 || type == HC_BF16;
}

static int is_invalid(const hc_exchange *x, const hc_pieces *pieces, int type, const int *out_rank) {
    return !hc_is_exchange(x) || pieces == NULL || pieces->offsets == NULL || out_rank == NULL || !is_type(type) || pieces->length < 0 ||
           pieces->length > x->slot_bytes / element_bytes(type) || piece_bytes(pieces, type) > x->slot_bytes / x->ranks;
}

/* Wait until all other processes have read this process's slot of a chunk. Fail if this process has not read theirs,
 * because waiting could not succeed. */
static int wait_for_slot(const hc_exchange *x, uint32_t number, int64_t timeout_nanoseconds, int *out_rank) {
    const uint32_t required = number + 1 - (uint32_t)x->num_slots;
    const int status = wait_for_all(x, GOT, required, deadline_after(timeout_nanoseconds), out_rank);
    const uint32_t own = atomic_load_explicit(&x->lines[x->rank].done[GOT], memory_order_relaxed);
    if (status == HC_OK && (int32_t)(own - required) < 0) {
        *out_rank = x->rank;
        return HC_TIMED_OUT;
    }
    return status;
}

int hc_exchange_put(hc_exchange *exchange, uint32_t number, const hc_pieces *pieces, const void *x, int x_type, int type,
                    int64_t timeout_nanoseconds, int *out_rank) {
    if (is_invalid(exchange, pieces, type, out_rank) || !is_type(x_type) || (x == NULL && pieces->length > 0)) {
        return HC_BAD_ARGUMENT;
    }
    const int status = wait_for_slot(exchange, number, timeout_nanoseconds, out_rank);
    if (status == HC_OK) {
        for (int i = 1; i < exchange->ranks; i++) {
            const int rank = (exchange->rank + i) % exchange->ranks;
            move(exchange, piece_count(pieces, rank), at(x, pieces->offsets[rank], x_type), x_type,
                 piece_of(exchange, pieces, exchange->rank, rank, number, type), type);
        }
        publish(exchange, PUT, number + 1);
    }
    return status;
}

int hc_exchange_offer(hc_exchange *exchange, uint32_t number, const hc_pieces *pieces, const void *x, int x_type, int type,
                      int64_t timeout_nanoseconds, int *out_rank) {
    if (is_invalid(exchange, pieces, type, out_rank) || !is_type(x_type) || (x == NULL && pieces->length > 0)) {
        return HC_BAD_ARGUMENT;
    }
    const int status = wait_for_slot(exchange, number, timeout_nanoseconds, out_rank);
    if (status == HC_OK) {
        const int rank = exchange->rank;
        move(exchange, piece_count(pieces, rank), x, x_type, piece_of(exchange, pieces, rank, rank, number, type), type);
        publish(exchange, PUT, number + 1);
        publish(exchange, COMBINED, number + 1);
    }
    return status;
}

int hc_exchange_combine(hc_exchange *exchange, uint32_t number, const hc_pieces *pieces, const void *x, int x_type, int type,
                        int op, float scale, void *out, int out_type, void **out_piece, int64_t timeout_nanoseconds,
                        int *out_rank) {
    if (is_invalid(exchange, pieces, type, out_rank) || !is_type(x_type) || op < HC_SUM || op > HC_SMALLEST ||
        (x == NULL && pieces->length > 0) || (out == NULL && out_piece == NULL && piece_count(pieces, exchange->rank) > 0) ||
        (out_type != x_type && (out_type != type || out_piece != NULL)) || exchange->ranks > HC_MAX_PROCESSES) {
        return HC_BAD_ARGUMENT;
    }
    const void *arrays[HC_MAX_PROCESSES];
    const int own = exchange->rank;
    const int64_t deadline = deadline_after(timeout_nanoseconds);
    const int status = wait_for_all(exchange, PUT, number + 1, deadline, out_rank);
    if (status != HC_OK) {
        return status;
    }
    for (int rank = 0; rank < exchange->ranks; rank++) {
        arrays[rank] = rank == own ? at(x, pieces->offsets[own], x_type) : piece_of(exchange, pieces, rank, own, number, type);
    }
    char *const mine = piece_of(exchange, pieces, own, own, number, type);
    const int in_type = out_type != x_type;
    exchange->kernels->combine(op, exchange->ranks, piece_count(pieces, own), arrays, type, own, x_type, scale,
                               in_type ? out : out_piece != NULL ? mine : NULL, in_type ? NULL : out);
    if (out_piece != NULL) {
        *out_piece = mine;
    } else { /* no process reads this process's piece, and this process has read theirs */
        publish(exchange, COMBINED, number + 1);
        publish(exchange, GOT, number + 1);
    }
    return HC_OK;
}

int hc_exchange_publish(hc_exchange *exchange, uint32_t number) {
    if (!hc_is_exchange(exchange)) {
        return HC_BAD_ARGUMENT;
    }
    publish(exchange, COMBINED, number + 1);
    return HC_OK;
}

int hc_exchange_get(hc_exchange *exchange, uint32_t number, const hc_pieces *pieces, int type, int with_own, void *out,
                    int out_type, int64_t timeout_nanoseconds, int *out_rank) {
    if (is_invalid(exchange, pieces, type, out_rank) || !is_type(out_type) || (out == NULL && pieces->length > 0)) {
        return HC_BAD_ARGUMENT;
    }
    const int64_t deadline = deadline_after(timeout_nanoseconds);
    for (int i = with_own ? 0 : 1; i < exchange->ranks; i++) { /* this process's piece first, because it is cached */
        const int rank = (exchange->rank + i) % exchange->ranks;
        const int status = i == 0 ? HC_OK : wait_for(exchange, rank, COMBINED, number + 1, deadline);
        if (status != HC_OK) {
            *out_rank = rank;
            return status;
        }
        move(exchange, piece_count(pieces, rank), piece_of(exchange, pieces, rank, rank, number, type), type,
             (char *)out + pieces->offsets[rank] * element_bytes(out_type), out_type);
    }
    publish(exchange, GOT, number + 1);
    return HC_OK;
}

int hc_exchange_fold(hc_exchange *exchange, int num_arrays, int64_t count, const void *const *x, int type, int op, void *out) {
    if (!hc_is_exchange(exchange) || num_arrays < 1 || num_arrays > HC_MAX_PROCESSES || hc_count(count, 1, 1) < 0 ||
        !is_type(type) || op < HC_SUM || op > HC_SMALLEST || x == NULL || (out == NULL && count > 0)) {
        return HC_BAD_ARGUMENT;
    }
    for (int i = 0; i < num_arrays; i++) {
        if (x[i] == NULL && count > 0) {
            return HC_BAD_ARGUMENT;
        }
    }
    exchange->kernels->combine(op, num_arrays, count, x, type, -1, type, 1.0f, out, NULL);
    return HC_OK;
}
