/* Whether a product may take the kernel of a limited range (hc_gemm_kernel.largest). */
#ifndef HC_GEMM_RANGE_H
#define HC_GEMM_RANGE_H

#include <stdint.h>

#include "context.h"
#include "gemm/gemm_job.h"

/* Raises *to to a magnitude that a thread found. */
void hc_gemm_note_largest(uint32_t *to, uint32_t found);

/* 1: the product keeps fp32's error, given the largest magnitudes of its operands as the bits of an fp32 without its
 * sign. */
int hc_gemm_is_in_range(uint32_t largest_a, uint32_t largest_b, int64_t k);

/* The same for the operands of the job, after a scan on the threads of the context, with its lock held. A packed B
 * stores its magnitude. */
int hc_gemm_fits_range(hc_context *context, const hc_gemm_job *job);

#endif
