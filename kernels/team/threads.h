/* How a thread of the library starts: on its CPU, without the signals of the process. */
#ifndef HC_THREADS_H
#define HC_THREADS_H

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>

#include "hcops.h"

#ifdef __linux__
/* As many CPUs as Linux is ever built for; a cpu_set_t has 1,024. A CPU beyond them makes an empty set, which the system refuses. */
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

/* Signals of the process are the caller's: Python's handlers run in its main thread, which a signal that came to a thread of ours
 * would not wake. What a thread's own instruction raises stays with it. */
static inline void block_signals(sigset_t *out_before) {
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGPROF};
    sigset_t blocked;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        sigdelset(&blocked, own[i]);
    }
    pthread_sigmask(SIG_BLOCK, &blocked, out_before);
}

/* HC_OK, or HC_NO_THREAD. cpu: where it is pinned; NULL: nowhere. The thread inherits the signals that the caller blocks. */
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
