/* Parts of run_cases: cases, operator calls by name, and checks of memory and CPU state. */
#ifndef HC_CASES_H
#define HC_CASES_H

#include <stdint.h>

#include "hcops.h"

#define HC_MAX_ARRAYS 64

typedef struct {
    char op[32];
    int64_t num_ints, num_floats, num_arrays;
    int64_t *ints;
    double *floats;
    void *arrays[HC_MAX_ARRAYS]; /* NULL if the case passes no array */
    int dtypes[HC_MAX_ARRAYS];
    int64_t counts[HC_MAX_ARRAYS];
    int is_output[HC_MAX_ARRAYS]; /* 1: the operator may write the array; all arrays have initial content */
} hc_case;

/* Call the operator of a case. Return its status, or 1 if no operator has that name. */
int hc_call(hc_context *context, const hc_case *one);

/* Violations found after a call, as bits; 0 without violations. */
enum {
    HC_BROKEN_MEMORY = 1,    /* write before an output (a page without access follows it) */
    HC_BROKEN_INPUT = 2,     /* write to an input */
    HC_BROKEN_REGISTERS = 4, /* callee-saved registers: x19-x28, d8-d15 */
    HC_BROKEN_CONTROL = 8,   /* rounding and exception control: FPCR, MXCSR */
    HC_BROKEN_UNIT = 16,     /* matrix unit still active: streaming mode or ZA, AMX tiles */
    HC_BROKEN_LAZY_SAVE = 32 /* a caller's dormant ZA was lost */
};

/* Return `bytes` bytes that end at a page without access, aligned only to their size, with a canary before them. NULL
 * if refused. */
void *hc_guarded(int64_t bytes);
int hc_guard_is_broken(const void *data);
void hc_unguard(void *data, int64_t bytes);

/* Run hc_call and check the CPU state; *out_broken receives bits. */
int hc_watched_call(hc_context *context, const hc_case *one, int64_t *out_broken);

/* Two callers run jobs of all sizes on a team of 1 to 256 threads concurrently. Returns 0, 1 if a barrier or a run
 * was passed too early, or -1 without a team. lent: 0, or the largest number of threads of a runtime that replaces
 * OpenMP. */
int hc_test_team(int num_threads, int num_clusters, int64_t spin_nanoseconds, int lent);

/* Several callers copy through one engine concurrently: memory and files, all priorities, with faults, until it is
 * closed. Returns 0, 1 if bytes, states or counters are wrong, or -1 without an engine. */
int hc_test_copies(int with_threads, int num_threads);

/* The emulated tile unit alone. Three arguments are rows, pairs and columns of a product of tiles from standard
 * input to standard output; one argument names a misuse, which ends the program. Returns 0, 1 if a result is wrong,
 * or -1 without the unit. */
int hc_test_tiles(int num_words, char **words);

/* Threads (at most 16) take, mark and give blocks of three pools with budgets, while another thread checks the
 * counters. The second pool uses a file of 16 MiB, or memory if the descriptor is negative. Returns 0, 1 if blocks
 * overlap, a budget is exceeded or memory is left, or -1. */
int hc_test_pool(int num_threads, int file);

#endif
