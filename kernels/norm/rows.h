/* Order of visits of a block of rows, and vectors at the end of a row. For *_simd.c sources only. */
#ifndef HC_ROWS_H
#define HC_ROWS_H

#include "simd/simd.h"

/* Rows that are processed together, a quarter of the block apart. The values that the rows of a block share (shift,
 * scale, gate and the sums of their gradients) are then loaded and stored once per four rows. Four address streams a
 * quarter apart keep more memory banks busy than one (see activation/elementwise_simd.c). */
#define HC_ROWS_AT_ONCE 4

/* Load n elements of an array from index i on. n is hc_lanes() for all vectors of a row except the last. */
HC_INLINE hc_vf hc_load_some(const void *p, int64_t i, int64_t n, int full, int type) HC_STREAMING_OK {
    return full ? hc_load_as(p, i, type) : hc_load_as_n(p, i, n, type);
}

HC_INLINE void hc_store_some(void *p, int64_t i, int64_t n, int full, int pass_caches, int type,
                             hc_vf v) HC_STREAMING_OK {
    if (!full) {
        hc_store_as_n(p, i, n, type, v);
    } else if (pass_caches) {
        hc_stream_as(p, i, type, v);
    } else {
        hc_store_as(p, i, type, v);
    }
}

/* Return 1 if every row of an array starts at a multiple of the vector length, as non-temporal stores require. */
HC_INLINE int hc_rows_aligned(const void *p, int64_t columns, int type) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes();
    return columns % lanes == 0 && (uintptr_t)p % (uintptr_t)(lanes * (type == HC_F32 ? 4 : 2)) == 0;
}

#endif
