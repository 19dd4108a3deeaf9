/* Test whether a product may use a kernel with a limited range (hc_gemm_kernel.largest). */
#ifndef HC_GEMM_RANGE_H
#define HC_GEMM_RANGE_H

#include <stdint.h>

#include "context.h"
#include "gemm/gemm_job.h"

/* Raise *to to the magnitude `found`, atomically. */
void hc_gemm_raise_largest(uint32_t *to, uint32_t found);

/* Return 1 if the product keeps the error of fp32. The arguments are the largest magnitudes of the operands, as fp32
 * bits without the sign. */
int hc_gemm_is_in_range(uint32_t largest_a, uint32_t largest_b, int64_t k);

/* Return hc_gemm_is_in_range for the operands of the job, after a scan on the threads of the context, with its lock
 * held. A packed B stores its magnitude. */
int hc_gemm_fits_range(hc_context *context, const hc_gemm_job *job);

#endif
