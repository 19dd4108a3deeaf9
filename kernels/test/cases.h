/* The parts of run_cases: a case, the calls behind the names of operators, and canaries around memory and CPU state. */
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
    void *arrays[HC_MAX_ARRAYS]; /* NULL where the case passes none */
    int dtypes[HC_MAX_ARRAYS];
    int64_t counts[HC_MAX_ARRAYS];
    int is_output[HC_MAX_ARRAYS]; /* which the operator may write; all arrays come with content */
} hc_case;

/* Calls the operator of a case; its status, or 1: no operator of that name. */
int hc_call(hc_context *context, const hc_case *one);

/* What was found broken after a call: bits, 0 if all is well. */
enum {
    HC_BROKEN_MEMORY = 1,    /* bytes before an output were written (behind it lies a page without access) */
    HC_BROKEN_INPUT = 2,     /* an input was written */
    HC_BROKEN_REGISTERS = 4, /* callee-saved registers: x19-x28, d8-d15 */
    HC_BROKEN_CONTROL = 8,   /* rounding and exception control: FPCR, MXCSR */
    HC_BROKEN_UNIT = 16,     /* the matrix unit is still on: streaming mode or ZA, AMX tiles */
    HC_BROKEN_LAZY_SAVE = 32 /* a caller's dormant ZA was lost */
};

/* `bytes` bytes that end where a page without access begins, aligned to nothing more than their size; before them lies a canary.
 * NULL: refused. */
void *hc_guarded(int64_t bytes);
int hc_guard_is_broken(const void *data);
void hc_unguard(void *data, int64_t bytes);

/* hc_call under watch of the CPU state; *out_broken gets bits. */
int hc_watched_call(hc_context *context, const hc_case *one, int64_t *out_broken);

/* Two callers have a team of 1 to 256 threads do runs of all sizes at once; 0, or 1 where a barrier or a run let something
 * through, or -1 where there is no team. lent: 0, or the most threads that a runtime gives, which stands for OpenMP. */
int hc_test_team(int num_threads, int num_clusters, int64_t spin_nanoseconds, int lent);

/* Several callers copy through one engine at once: memory and files, all priorities, with faults, until it is closed under them. 0,
 * or 1 where bytes, states or counters are wrong, or -1 where there is no engine. */
int hc_test_copies(int with_threads, int num_threads);

/* The emulated tile unit by itself: three words are rows, pairs and columns of a product of tiles from standard input, to standard
 * output; one names a misuse, which ends the program. 0, or 1 where something is wrong, or -1 where there is no such unit. */
int hc_test_tiles(int num_words, char **words);

/* Threads (at most 16) take, mark and give blocks of three pools with budgets, the second over a file of 16 MiB, or memory where the
 * descriptor is negative, while another looks. 0, or 1 where blocks overlap, a budget is exceeded or something stays, or -1. */
int hc_test_pool(int num_threads, int file);

#endif
