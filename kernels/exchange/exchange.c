/* The protocol of an exchange: processes of one node take turns at slots of a segment, told by counters.
 *
 * The segment holds, for each process, a line of counters and `slots` slots. An array goes through in chunks; chunk c of
 * every process lies in its slot c % slots. Three steps a chunk: `put` copies a process's own values into its slot; `combine`
 * reduces one part of the chunk, over all processes, into the own slot (parts are as hc_part cuts them, one a process); `get`
 * reads each part from the slot of the process that reduced it. A counter of each step tells the others how far one is, so
 * that chunk c + 1 is put while others still combine c. */
#define _GNU_SOURCE
#include "exchange/exchange.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "context.h"

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#define CACHE_LINE 64
/* Looks at a counter before a process sleeps: about 20 microseconds, the time of a chunk's step. */
#define LOOKS 500
/* How long a process sleeps before it looks whether the one it waits for still exists. */
#define SLEEP_NANOSECONDS 50000000

enum { PUT = 0, COMBINED = 1, GOT = 2, STEPS = 3 };

/* What one process tells the others; chunks done since the segment was made, modulo 2^32. */
typedef struct {
    _Alignas(CACHE_LINE) atomic_uint done[STEPS];
    atomic_uint sleepers; /* who may have to be woken when a counter of this line rises */
    atomic_int pid;       /* 0 before it has attached */
} counters;

struct hc_exchange {
    counters *lines; /* of each process */
    char *slots;     /* of process 0; those of the next lie slots * slot_bytes further */
    const hc_kernels *kernels;
    int64_t slot_bytes;
    int rank, ranks, num_slots;
};

static int64_t now_nanoseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
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
    *out_bytes = lines_bytes(ranks) + ranks * slots * slot_bytes;
    return HC_OK;
}

int hc_exchange_attach(void *segment, const hc_context *context, int rank, int ranks, int slots, int64_t slot_bytes,
                       hc_exchange **out_exchange) {
    int64_t bytes;
    if (segment == NULL || context == NULL || out_exchange == NULL || rank < 0 || rank >= ranks ||
        hc_exchange_bytes(ranks, slots, slot_bytes, &bytes) != HC_OK) {
        return HC_BAD_ARGUMENT;
    }
    hc_exchange *made = malloc(sizeof(*made));
    if (made == NULL) {
        return HC_OUT_OF_MEMORY;
    }
    *made = (hc_exchange){.lines = segment, .slots = (char *)segment + lines_bytes(ranks), .kernels = context->kernels,
                          .slot_bytes = slot_bytes, .rank = rank, .ranks = ranks, .num_slots = slots};
    atomic_store(&made->lines[rank].pid, (int)getpid());
    *out_exchange = made;
    return HC_OK;
}

void hc_exchange_detach(hc_exchange *exchange) {
    free(exchange);
}

static void *slot_of(const hc_exchange *x, int rank, uint32_t number) {
    return x->slots + ((int64_t)rank * x->num_slots + number % (uint32_t)x->num_slots) * x->slot_bytes;
}

static int is_gone(const counters *line) {
    const int pid = atomic_load(&line->pid);
    return pid > 0 && kill(pid, 0) != 0 && errno == ESRCH;
}

static void sleep_while(counters *line, int step, uint32_t value) {
    atomic_fetch_add(&line->sleepers, 1);
#ifdef __linux__
    const struct timespec limit = {0, SLEEP_NANOSECONDS};
    syscall(SYS_futex, &line->done[step], FUTEX_WAIT, value, &limit, NULL, 0); /* not _PRIVATE: other processes wake */
#else
    (void)step, (void)value;
    sched_yield();
#endif
    atomic_fetch_sub(&line->sleepers, 1);
}

/* Returns when process `rank` has done `step` for all chunks below `number`. */
static int wait_for(const hc_exchange *x, int rank, int step, uint32_t number, int64_t deadline) {
    counters *line = &x->lines[rank];
    for (int look = 0;; look++) {
        const uint32_t done = atomic_load_explicit(&line->done[step], memory_order_acquire);
        if ((int32_t)(done - number) >= 0) {
            return HC_OK;
        }
        if (look < LOOKS) {
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

static void tell(const hc_exchange *x, int step, uint32_t done) {
    counters *line = &x->lines[x->rank];
    atomic_store(&line->done[step], done);
#ifdef __linux__
    if (atomic_load(&line->sleepers) > 0) {
        syscall(SYS_futex, &line->done[step], FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    }
#endif
}

static int64_t element_bytes(int type) {
    return type == HC_BF16 ? 2 : 4;
}

/* Elements start..stop of a chunk, which process `rank` combines; whole cache lines. */
static void part_of(const hc_exchange *x, int rank, int64_t count, int type, int64_t *out_start, int64_t *out_stop) {
    hc_part(count, CACHE_LINE / element_bytes(type), rank, x->ranks, out_start, out_stop);
}

static int is_wrong(const hc_exchange *x, int64_t count, int type, const int *out_rank) {
    return x == NULL || out_rank == NULL || (type != HC_F32 && type != HC_BF16) || count < 0 ||
           count > x->slot_bytes / element_bytes(type);
}

int hc_exchange_put(hc_exchange *exchange, uint32_t number, int64_t count, const void *x, int x_type, int type, float scale,
                    int64_t timeout_nanoseconds, int *out_rank) {
    if (is_wrong(exchange, count, type, out_rank) || (x_type != HC_F32 && x_type != HC_BF16) || (x == NULL && count > 0)) {
        return HC_BAD_ARGUMENT;
    }
    const uint32_t slots = (uint32_t)exchange->num_slots;
    const int64_t deadline = now_nanoseconds() + timeout_nanoseconds;
    const int status = wait_for_all(exchange, GOT, number + 1 - slots, deadline, out_rank);
    if (status == HC_OK) {
        exchange->kernels->convert(count, scale, x, x_type, slot_of(exchange, exchange->rank, number), type);
        tell(exchange, PUT, number + 1);
    }
    return status;
}

int hc_exchange_combine(hc_exchange *exchange, uint32_t number, int64_t count, int type, int op, float scale,
                        int64_t timeout_nanoseconds, void **out_part, int64_t *out_start, int64_t *out_count, int *out_rank) {
    if (is_wrong(exchange, count, type, out_rank) || op < HC_SUM || op > HC_SMALLEST || out_part == NULL || out_start == NULL ||
        out_count == NULL || exchange->ranks > HC_MOST_PROCESSES) {
        return HC_BAD_ARGUMENT;
    }
    const void *parts[HC_MOST_PROCESSES];
    int64_t start, stop;
    const int64_t deadline = now_nanoseconds() + timeout_nanoseconds;
    const int status = wait_for_all(exchange, PUT, number + 1, deadline, out_rank);
    if (status != HC_OK) {
        return status;
    }
    part_of(exchange, exchange->rank, count, type, &start, &stop);
    for (int rank = 0; rank < exchange->ranks; rank++) {
        parts[rank] = (const char *)slot_of(exchange, rank, number) + start * element_bytes(type);
    }
    *out_part = (char *)slot_of(exchange, exchange->rank, number) + start * element_bytes(type);
    *out_start = start;
    *out_count = stop - start;
    exchange->kernels->combine(op, exchange->ranks, stop - start, parts, type, scale, *out_part);
    return HC_OK;
}

int hc_exchange_publish(hc_exchange *exchange, uint32_t number) {
    if (exchange == NULL) {
        return HC_BAD_ARGUMENT;
    }
    tell(exchange, COMBINED, number + 1);
    return HC_OK;
}

int hc_exchange_get(hc_exchange *exchange, uint32_t number, int64_t count, int type, void *out, int out_type,
                    int64_t timeout_nanoseconds, int *out_rank) {
    if (is_wrong(exchange, count, type, out_rank) || (out_type != HC_F32 && out_type != HC_BF16) || (out == NULL && count > 0)) {
        return HC_BAD_ARGUMENT;
    }
    const int64_t deadline = now_nanoseconds() + timeout_nanoseconds;
    for (int i = 0; i < exchange->ranks; i++) { /* one's own part first: it is in the cache */
        const int rank = (exchange->rank + i) % exchange->ranks;
        int64_t start, stop;
        const int status = i == 0 ? HC_OK : wait_for(exchange, rank, COMBINED, number + 1, deadline);
        if (status != HC_OK) {
            *out_rank = rank;
            return status;
        }
        part_of(exchange, rank, count, type, &start, &stop);
        exchange->kernels->convert(stop - start, 1.0f,
                                   (const char *)slot_of(exchange, rank, number) + start * element_bytes(type), type,
                                   (char *)out + start * element_bytes(out_type), out_type);
    }
    tell(exchange, GOT, number + 1);
    return HC_OK;
}
