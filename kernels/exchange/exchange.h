/* Sums of arrays of several processes through memory that they share: what the files of this folder give each other. */
#ifndef HC_EXCHANGE_H
#define HC_EXCHANGE_H

#include <stdint.h>

#include "each_isa.h"
#include "hcops.h"

/* out[i] = op over r of x[r][i], r = 0, 1, ... in this order, in fp32, times scale. x[r] is of `type`, but x[own] of own_type, and
 * rounded to `type` before it counts; own < 0: none. The result is rounded to `type`; `out` takes it so, `copy` as own_type; either
 * may be NULL, and copy may be x[own], out any other x[r]. */
typedef void hc_combine_kernel(int op, int num_arrays, int64_t count, const void *const *x, int type, int own, int own_type,
                               float scale, void *out, void *copy);

/* out[i] = x[i], from one type to another. */
typedef void hc_convert_kernel(int64_t count, const void *x, int x_type, void *out, int out_type);

/* 0: an address of something else. */
int hc_is_exchange(const hc_exchange *exchange);

/* This process's number, and how many there are. */
int hc_exchange_rank(const hc_exchange *exchange);
int hc_exchange_size(const hc_exchange *exchange);

#define HC_DECLARE(isa) \
    hc_combine_kernel hc_combine_##isa; \
    hc_convert_kernel hc_convert_##isa;
HC_EACH_ISA(HC_DECLARE)
#undef HC_DECLARE

#endif
