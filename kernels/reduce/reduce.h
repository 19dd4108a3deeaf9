/* Types of the reduction kernels, which are compiled once per instruction set. Sums are in fp64. */
#ifndef HC_REDUCE_H
#define HC_REDUCE_H

#include <stdint.h>

#include "each_isa.h"
#include "hcops.h"

typedef double hc_sum_of_squares_kernel(int64_t count, const float *x);

/* Return the sum of (x - y)^2. The differences are also in fp64. */
typedef double hc_squared_difference_kernel(int64_t count, const void *x, int x_type, const void *y, int y_type);

#define HC_DECLARE(isa)                                                                                                    \
    hc_sum_of_squares_kernel hc_sum_of_squares_##isa;                                                                      \
    hc_squared_difference_kernel hc_squared_difference_##isa;
HC_EACH_ISA(HC_DECLARE)
#undef HC_DECLARE

#endif
