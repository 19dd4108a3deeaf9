/* Work that is assigned to the threads of a run in advance, so that a thread's part stays near it. Threads without
 * remaining work take over work of other threads.
 *
 * If the caller allows it, pieces become shorter towards the end of a part, so that other threads wait for an
 * interrupted or slower thread only about as long as the shortest piece takes. Results must not depend on the thread
 * that computes a piece. */
#ifndef HC_SHARES_H
#define HC_SHARES_H

#include <stdatomic.h>
#include <stdint.h>

/* Units next..stop of a thread's part that remain, on a separate cache line. */
typedef struct hc_share {
    atomic_int_least64_t next;
    int64_t stop;
    char apart[64 - 2 * sizeof(int64_t)];
} hc_share;

/* Before a barrier, or before the run, which make it known to the other threads. */
static inline void hc_share_fill(hc_share *share, int64_t start, int64_t stop) {
    atomic_store_explicit(&share->next, start, memory_order_relaxed);
    share->stop = stop;
}

/* Takes half of the units that are left, but at least `least` and at most `most`; the first of them, and their number,
 * 0 when none is left. */
static inline int64_t hc_share_take(hc_share *share, int64_t least, int64_t most, int64_t *out_first) {
    int64_t first = atomic_load_explicit(&share->next, memory_order_relaxed), taken;
    do {
        const int64_t left = share->stop - first;
        if (left <= 0) {
            return 0;
        }
        taken = left / 2;
        taken = taken < least ? least : taken > most ? most : taken;
        taken = taken > left ? left : taken;
    } while (!atomic_compare_exchange_weak_explicit(&share->next, &first, first + taken, memory_order_relaxed,
                                                    memory_order_relaxed));
    *out_first = first;
    return taken;
}

#endif
