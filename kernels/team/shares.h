/* Work that is dealt out to the threads of a run in advance, so that a thread's part is near to it each time, and of which a thread
 * that has none left takes over some of the others'.
 *
 * Where the caller lets them, pieces become shorter towards the end of a part: a thread that was interrupted, or whose core is
 * slower, is waited for no longer than about the shortest takes. Nothing may depend on who does a piece. */
#ifndef HC_SHARES_H
#define HC_SHARES_H

#include <stdatomic.h>
#include <stdint.h>

/* Units next..stop of a thread's part are to be done; on a cache line of its own. */
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

/* Takes half of the units that are left, but at least `least` and at most `most`; the first of them, and their number, 0 when none
 * is left. */
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
