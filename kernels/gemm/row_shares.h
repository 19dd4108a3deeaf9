/* Which rows of each thread's part of a product are still to be computed. Part of gemm_job.c.
 *
 * The thread whose part it is takes blocks from the front; a thread that has no rows of its own left takes some from the back. So
 * one that was interrupted, or whose core is slower, is waited for no longer than about one block takes; and no sum depends on who
 * computes it. */
#ifndef HC_ROW_SHARES_H
#define HC_ROW_SHARES_H

#include <stdatomic.h>
#include <stdint.h>

/* The first tile of rows that is left, in the lower half, and the one behind the last; on a cache line of its own. */
typedef struct hc_row_share {
    atomic_uint_least64_t left;
    char apart[64 - sizeof(uint64_t)];
} hc_row_share;

/* num_tiles fit into 32 bits: an A of so many rows fits into no memory. */
static inline void hc_share_fill(hc_row_share *share, int64_t num_tiles) {
    atomic_store_explicit(&share->left, (uint64_t)num_tiles << 32, memory_order_relaxed);
}

/* Takes at most `most` tiles, from the back no more than half of what is left, at least one; the first of them, and their number,
 * 0 when none is left. What was written before the tiles were filled in is made known by a barrier, hence no order here. */
static inline int64_t hc_share_take(hc_row_share *share, int64_t most, int from_back, int64_t *out_first) {
    uint64_t before = atomic_load_explicit(&share->left, memory_order_relaxed), after;
    int64_t taken;
    do {
        const int64_t first = (int64_t)(before & UINT32_MAX), stop = (int64_t)(before >> 32);
        if (first >= stop) {
            return 0;
        }
        taken = from_back ? (stop - first + 1) / 2 : stop - first;
        taken = taken < most ? taken : most;
        *out_first = from_back ? stop - taken : first;
        after = from_back ? before - ((uint64_t)taken << 32) : before + (uint64_t)taken;
    } while (!atomic_compare_exchange_weak_explicit(&share->left, &before, after, memory_order_relaxed, memory_order_relaxed));
    return taken;
}

#endif
