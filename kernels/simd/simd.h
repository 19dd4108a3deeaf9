/* Vector layer: common names for the vectors of all instruction sets, so that a *_simd.c source serves all of them.
 *
 * A vector `hc_vf` contains hc_lanes() fp32 numbers. hc_lanes() is a constant, except on SVE. There, it is known only
 * at run time and vectors are sizeless: store them in local variables, never in arrays, structs or static storage. The
 * header of each target defines:
 *
 *   hc_lanes()                                   numbers per vector
 *   hc_load(p) hc_store(p, v)                    fp32, any alignment
 *   hc_load_n(p, n) hc_store_n(p, n, v)          the first n lanes, 0 <= n <= hc_lanes(); others load as 0
 *   hc_load_bf16(p) hc_store_bf16(p, v)          bf16 as uint16_t; stores round to nearest even, nan stays nan (quiet)
 *   hc_load_bf16_n(p, n) hc_store_bf16_n(p, n, v)
 *   hc_as_bf16(v)                                v rounded to bf16, as fp32
 *   hc_store_exact_bf16(p, v)                    store a v that is already rounded to bf16
 *   hc_load_bf16_even(p) hc_load_bf16_odd(p)     elements 0, 2, 4, ... and 1, 3, 5, ... of 2 hc_lanes() elements
 *   hc_store_bf16_pair(p, even, odd)             inverse of these loads; a third of the time of two stores
 *   hc_stream_bf16_pair(p, even, odd)            the same, non-temporal; p aligned to 2 hc_lanes() elements
 *   hc_evens(a, b) hc_odds(a, b)                 lanes 0, 2, 4, ... and 1, 3, 5, ... of a, followed by those lanes of b
 *   hc_zip_first(even, odd) hc_zip_second(even, odd)   inverse of hc_evens and hc_odds: a and b
 *   hc_stream(p, v) hc_stream_bf16(p, v)         non-temporal stores; p aligned to hc_lanes() elements
 *   hc_stream_end()                              after the last non-temporal store, before another thread reads
 *   hc_prefetch(p) hc_prefetch_far(p)            for reading, into the L1 or the L2 cache; any address
 *   hc_prefetch_to_write(p)                      for writing, into the L1 cache; any address
 *   hc_set(float) hc_zero()
 *   hc_add hc_sub hc_mul hc_div hc_sqrt hc_abs hc_negate
 *   hc_max(a, b) hc_min(a, b)                    nan in b: nan; nan in a: b or nan. hc_max(bound, x) keeps a nan of x
 *   hc_round(v)                                  to nearest even
 *   hc_fma(a, b, c)                              a * b + c, rounded once (ref: almost always)
 *   hc_fnma(a, b, c)                             c - a * b, rounded like hc_fma
 *   hc_copy_sign(a, sign)                        |a| with the sign of `sign`
 *   hc_sum(v) hc_largest(v)                      over the lanes, in a fixed order
 *   hc_mask, hc_greater(a, b), hc_is_nan(a), hc_select(mask, yes, no)
 *   hc_first(n)                                  mask of the first n lanes, 0 <= n <= hc_lanes()
 *   hc_power_of_two(n)                           2^n for integer n, -126 <= n <= 127
 *   hc_scale(v, n)                               v * 2^n for integer n, |n| <= 250, rounded once, also if denormal
 *   hc_within(v, limit)                          v between -limit and limit; nan: nan or limit
 *   hc_fraction(t)                               t - floor(t), in [0, 1]
 *   hc_scale_floor(v, t)                         v * 2^floor(t), rounded once, also if denormal
 *                                                hc_fraction and hc_scale_floor require -250 <= t <= 250,
 *                                                or any t if HC_SCALE_TAKES_ALL is 1. The fraction of +-inf
 *                                                is then 0, and 2^t of inf, -inf, nan is inf, 0, nan.
 *   hc_reciprocal_coarse(a)                      1 / a with relative error 2^-14; only if HC_SCALE_TAKES_ALL is 1
 *   hc_wide hc_wide_zero() hc_wide_add(a, b) hc_wide_sub(a, b)   vector of half as many fp64 numbers
 *   hc_wide_first(v) hc_wide_second(v)           the two halves of the lanes of v as fp64; the target selects the lanes
 *   hc_wide_fma(a, b, c) hc_wide_sum(v)
 *
 * The header also defines macros for functions, so that the same source compiles to streaming code on SME:
 *
 *   HC_INLINE hc_vf name(hc_vf x) HC_STREAMING_OK { ... }               a helper, for any mode
 *   HC_KERNEL_FUNCTION void HC_NAME(op)(...) HC_KERNEL_STREAMING { ... } a kernel: enters and leaves streaming mode once
 *
 * HC_INLINE functions must not call a function of another file, because on SME that would leave streaming mode. */
#ifndef HC_SIMD_H
#define HC_SIMD_H

#include <stdint.h>
#include <string.h>

#include "hcops.h"

/* HC_NAME(op) is hc_<op>_<isa>. The build defines HC_SUFFIX and one HC_TARGET_<ISA>. */
#ifndef HC_SUFFIX
#error "HC_SUFFIX is not defined: this source is compiled once per instruction set, by kernels/CMakeLists.txt"
#endif
#define HC_JOIN_(op, suffix) hc_##op##_##suffix
#define HC_JOIN(op, suffix) HC_JOIN_(op, suffix)
#define HC_NAME(op) HC_JOIN(op, HC_SUFFIX)

#define HC_INLINE static inline __attribute__((always_inline, unused))
#if defined(HC_TARGET_SME)
#define HC_STREAMING_OK __arm_streaming_compatible
#define HC_KERNEL_FUNCTION __arm_locally_streaming
#else
#define HC_STREAMING_OK
#define HC_KERNEL_FUNCTION
#endif
#define HC_KERNEL_STREAMING

#if defined(HC_TARGET_REF)
#include "simd/ref.h"
#elif defined(HC_TARGET_AVX2)
#include "simd/avx2.h"
#elif defined(HC_TARGET_AVX512)
#include "simd/avx512.h"
#elif defined(HC_TARGET_NEON)
#include "simd/neon.h"
#elif defined(HC_TARGET_SVE) || defined(HC_TARGET_SME)
#include "simd/sve.h"
#else
#error "no HC_TARGET_<ISA> is defined that has vectors"
#endif

/* Load elements i.. of an array of type `dtype`, fp32 or bf16. The branch is the same for an entire loop: the compiler
 * hoists it, or the CPU predicts it. */
HC_INLINE hc_vf hc_load_as(const void *p, int64_t i, int dtype) HC_STREAMING_OK {
    return dtype == HC_F32 ? hc_load((const float *)p + i) : hc_load_bf16((const uint16_t *)p + i);
}

HC_INLINE hc_vf hc_load_as_n(const void *p, int64_t i, int64_t n, int dtype) HC_STREAMING_OK {
    return dtype == HC_F32 ? hc_load_n((const float *)p + i, n) : hc_load_bf16_n((const uint16_t *)p + i, n);
}

HC_INLINE void hc_store_as(void *p, int64_t i, int dtype, hc_vf v) HC_STREAMING_OK {
    if (dtype == HC_F32) {
        hc_store((float *)p + i, v);
    } else {
        hc_store_bf16((uint16_t *)p + i, v);
    }
}

HC_INLINE void hc_store_as_n(void *p, int64_t i, int64_t n, int dtype, hc_vf v) HC_STREAMING_OK {
    if (dtype == HC_F32) {
        hc_store_n((float *)p + i, n, v);
    } else {
        hc_store_bf16_n((uint16_t *)p + i, n, v);
    }
}

HC_INLINE void hc_stream_as(void *p, int64_t i, int dtype, hc_vf v) HC_STREAMING_OK {
    if (dtype == HC_F32) {
        hc_stream((float *)p + i, v);
    } else {
        hc_stream_bf16((uint16_t *)p + i, v);
    }
}

#endif
