/* Minimum and maximum of 64-bit integers. */
#ifndef HC_MINMAX_H
#define HC_MINMAX_H

#include <stdint.h>

static inline int64_t hc_min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t hc_max_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

#endif
