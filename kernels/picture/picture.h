/* The type of the kernel on bytes of pictures, which is compiled once per instruction set. */
#ifndef HC_PICTURE_H
#define HC_PICTURE_H

#include <stdint.h>

#include "hcops.h"

/* Weights of pixels are integers of 2^-22: a sum of bytes times weights whose sizes add to less than 2 stays below 2^31. */
#define HC_WEIGHT_BITS 22

/* Bytes that are weighed at once: sums of them fill 4 to 16 registers. */
#define HC_BYTES_AT_ONCE 64

/* out[i] = the sum over t of weights[t] * source[t * stride + i], rounded and clipped to a byte. */
typedef void hc_weigh_bytes_kernel(int64_t count, int64_t taps, const int32_t *weights, const uint8_t *source, int64_t stride,
                                   uint8_t *out);

#define HC_DECLARE(isa) hc_weigh_bytes_kernel hc_weigh_bytes_##isa;
HC_DECLARE(ref)
HC_DECLARE(avx2)
HC_DECLARE(avx512)
HC_DECLARE(neon)
HC_DECLARE(sve)
HC_DECLARE(sme)
#undef HC_DECLARE

#endif
