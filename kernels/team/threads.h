/* Start of a library thread: on its CPU, with the signals of the process blocked. */
#ifndef HC_THREADS_H
#define HC_THREADS_H

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>

#include "hcops.h"

#ifdef __linux__
/* Maximum number of CPUs in any build of Linux; a cpu_set_t has 1,024. A CPU beyond it produces an empty set, which the
 * system rejects. */
#define MAX_CPUS 8192

typedef struct {
    cpu_set_t sets[MAX_CPUS / CPU_SETSIZE];
} cpu_mask;

static inline cpu_mask mask_of_one(int cpu) {
    cpu_mask mask;
    CPU_ZERO_S(sizeof(mask), mask.sets);
    CPU_SET_S((size_t)cpu, sizeof(mask), mask.sets);
    return mask;
}
#endif

/* Block the signals of the process. Python's handlers run in the main thread, which a signal to a library thread would
 * not interrupt. Signals raised by a thread's own instructions stay enabled. */
static inline void block_signals(sigset_t *out_before) {
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGPROF};
    sigset_t blocked;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        sigdelset(&blocked, own[i]);
    }
    pthread_sigmask(SIG_BLOCK, &blocked, out_before);
}

/* Start a thread, and return HC_OK or HC_NO_THREAD. cpu: CPU to pin it to, or NULL. The thread inherits the signal mask
 * of the caller. */
static inline int start_thread(pthread_t *out_handle, const int *cpu, void *(*function)(void *), void *argument) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
#ifdef __linux__
    if (cpu != NULL) {
        const cpu_mask place = mask_of_one(*cpu);
        pthread_attr_setaffinity_np(&attributes, sizeof(place), place.sets);
    }
#else
    (void)cpu;
#endif
    const int failed = pthread_create(out_handle, &attributes, function, argument);
    pthread_attr_destroy(&attributes);
    return failed ? HC_NO_THREAD : HC_OK;
}

#endif
