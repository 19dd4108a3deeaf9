/* Wait for a number to change: a thread polls for a while, then sleeps in the system. Part of team.c. */
#ifndef HC_WAITING_H
#define HC_WAITING_H

#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

/* Reading the clock costs about 25 ns, so a waiting thread reads it only after this many polls of the counter. */
#define LOOKS_PER_CLOCK 64

/* A number that threads wait for, and the count of sleeping threads. Without sleepers, no system call is made. */
typedef struct {
    atomic_uint value, sleepers;
} wait_word;

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* some tens of cycles; on most cores yield has no effect */
#endif
}

static inline int64_t now_nanoseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

#ifdef __linux__
static inline void wait_in_system(void *word, unsigned value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static inline void wake_in_system(void *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}
#else
static inline void wait_in_system(void *word, unsigned value) {
    (void)word, (void)value;
    sched_yield();
}

static inline void wake_in_system(void *word) {
    (void)word;
}
#endif

/* Return 1 if the thread should sleep. Call it after every LOOKS_PER_CLOCK polls, with a deadline that starts at 0. */
static inline int is_late(int64_t *deadline, int64_t spin_nanoseconds) {
    const int64_t now = now_nanoseconds();
    if (*deadline == 0) {
        *deadline = now + spin_nanoseconds;
    }
    return now > *deadline;
}

static inline unsigned value_of(wait_word *number) {
    return atomic_load_explicit(&number->value, memory_order_acquire);
}

/* Return when the value differs from `value`: poll for a while, then sleep. Sleepers are counted before the system
 * compares the value. wake_all reads the count after the value was changed. One of them therefore detects the other. */
static inline void wait_while(wait_word *number, unsigned value, int64_t spin_nanoseconds) {
    int64_t deadline = 0;
    for (;;) {
        for (int poll = 0; poll < LOOKS_PER_CLOCK; poll++) {
            if (value_of(number) != value) {
                return;
            }
            relax();
        }
        if (is_late(&deadline, spin_nanoseconds)) {
            atomic_fetch_add(&number->sleepers, 1);
            wait_in_system(&number->value, value);
            atomic_fetch_sub(&number->sleepers, 1);
        }
    }
}

static inline void wake_all(wait_word *number) {
    if (atomic_load(&number->sleepers) > 0) {
        wake_in_system(&number->value);
    }
}

#endif
