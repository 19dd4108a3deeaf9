/* The order in which a block of rows is visited, and vectors at the end of a row. For *_simd.c sources only. */
#ifndef HC_ROWS_H
#define HC_ROWS_H

#include "simd/simd.h"

/* Rows are visited four at a time, a quarter of the block apart. Four, because what the rows of a block share (shift,
 * scale, gate and the sums of their gradients) is then loaded and stored once for four; a quarter apart, because four
 * runs of addresses keep more banks of memory busy than one (see activation/elementwise_simd.c). */
#define HC_ROWS_AT_ONCE 4

/* Elements i.. of an array, n of them; n is hc_lanes() for all vectors of a row but the last. */
HC_INLINE hc_vf hc_load_some(const void *p, int64_t i, int64_t n, int whole, int type) HC_STREAMING_OK {
    return whole ? hc_load_as(p, i, type) : hc_load_as_n(p, i, n, type);
}

HC_INLINE void hc_store_some(void *p, int64_t i, int64_t n, int whole, int pass_caches, int type, hc_vf v) HC_STREAMING_OK {
    if (!whole) {
        hc_store_as_n(p, i, n, type, v);
    } else if (pass_caches) {
        hc_stream_as(p, i, type, v);
    } else {
        hc_store_as(p, i, type, v);
    }
}

/* 1 where every row of an array starts at a multiple of the vector, as stores that bypass the caches demand. */
HC_INLINE int hc_rows_aligned(const void *p, int64_t columns, int type) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes();
    return columns % lanes == 0 && (uintptr_t)p % (uintptr_t)(lanes * (type == HC_F32 ? 4 : 2)) == 0;
}

#endif
