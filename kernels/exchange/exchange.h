/* Reductions of arrays of several processes through shared memory: declarations shared by the files of this folder. */
#ifndef HC_EXCHANGE_H
#define HC_EXCHANGE_H

#include <stdint.h>

#include "each_isa.h"
#include "hcops.h"

/* Compute out[i] = scale * (op over r of x[r][i]), r = 0, 1, ... in this order, in fp32. x[r] has `type`, except
 * x[own], which has own_type and is rounded to `type` first. own < 0: no such array. The result is rounded to `type`.
 * `out` receives it as `type`, `copy` as own_type. Either may be NULL. copy may be x[own], and out may be any other
 * x[r]. */
typedef void hc_combine_kernel(int op, int num_arrays, int64_t count, const void *const *x, int type, int own, int own_type,
                               float scale, void *out, void *copy);

/* Compute out[i] = x[i], with a conversion of the type. */
typedef void hc_convert_kernel(int64_t count, const void *x, int x_type, void *out, int out_type);

/* Return 0 if the address is not an exchange handle. */
int hc_is_exchange(const hc_exchange *exchange);

/* Return this process's rank, and the number of processes. */
int hc_exchange_rank(const hc_exchange *exchange);
int hc_exchange_size(const hc_exchange *exchange);

#define HC_DECLARE(isa) \
    hc_combine_kernel hc_combine_##isa; \
    hc_convert_kernel hc_convert_##isa;
HC_EACH_ISA(HC_DECLARE)
#undef HC_DECLARE

#endif
