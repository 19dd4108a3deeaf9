/* Weighted sums of bytes. The vector layer has no integers: these loops of a fixed length are what compilers make vectors of. */
#include "picture/picture.h"
#include "simd/simd.h"

HC_INLINE void weigh(int64_t count, int64_t taps, const int32_t *weights, const uint8_t *source, int64_t stride, uint8_t *out) {
    int32_t sums[HC_BYTES_AT_ONCE];
    for (int64_t i = 0; i < count; i++) {
        sums[i] = 1 << (HC_WEIGHT_BITS - 1);
    }
    for (int64_t t = 0; t < taps; t++) {
        const int32_t weight = weights[t];
        const uint8_t *bytes = source + t * stride;
        for (int64_t i = 0; i < count; i++) {
            sums[i] += weight * bytes[i];
        }
    }
    for (int64_t i = 0; i < count; i++) {
        const int32_t level = sums[i] >> HC_WEIGHT_BITS;
        out[i] = (uint8_t)(level < 0 ? 0 : level > 255 ? 255 : level);
    }
}

void HC_NAME(weigh_bytes)(int64_t count, int64_t taps, const int32_t *weights, const uint8_t *source, int64_t stride,
                          uint8_t *out) {
    int64_t i = 0;
    for (; i + HC_BYTES_AT_ONCE <= count; i += HC_BYTES_AT_ONCE) {
        weigh(HC_BYTES_AT_ONCE, taps, weights, source + i, stride, out + i);
    }
    if (i < count) {
        weigh(count - i, taps, weights, source + i, stride, out + i);
    }
}
