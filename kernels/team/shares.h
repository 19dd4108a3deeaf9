/* Work that is assigned to the threads of a run in advance, so that a thread's part stays in near memory. Threads
 * without remaining work take over work of other threads.
 *
 * If the caller allows it, pieces become shorter towards the end of a part. Other threads then wait for an interrupted
 * or slower thread only about as long as the shortest piece takes. Results must not depend on the thread that computes
 * a piece. */
#ifndef HC_SHARES_H
#define HC_SHARES_H

#include <stdatomic.h>
#include <stdint.h>

/* Remaining units next..stop of a thread's part, on a separate cache line. */
typedef struct hc_share {
    atomic_int_least64_t next;
    int64_t stop;
    char apart[64 - 2 * sizeof(int64_t)];
} hc_share;

/* Set a part. Call it before a barrier, or before the run, which makes the part visible to the other threads. */
static inline void hc_share_fill(hc_share *share, int64_t start, int64_t stop) {
    atomic_store_explicit(&share->next, start, memory_order_relaxed);
    share->stop = stop;
}

/* Take half of the remaining units, but at least `minimum` and at most `maximum`. Return their number, or 0 if no unit
 * is left. *out_first is the first of them. */
static inline int64_t hc_share_take(hc_share *share, int64_t minimum, int64_t maximum, int64_t *out_first) {
    int64_t first = atomic_load_explicit(&share->next, memory_order_relaxed), taken;
    do {
        const int64_t left = share->stop - first;
        if (left <= 0) {
            return 0;
        }
        taken = left / 2;
        taken = taken < minimum ? minimum : taken > maximum ? maximum : taken;
        taken = taken > left ? left : taken;
    } while (!atomic_compare_exchange_weak_explicit(&share->next, &first, first + taken, memory_order_relaxed,
                                                    memory_order_relaxed));
    *out_first = first;
    return taken;
}

#endif
