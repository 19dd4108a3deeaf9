/* Products with few rows or small depth, as used by gemm.c. */
#ifndef HC_FEW_ROWS_JOB_H
#define HC_FEW_ROWS_JOB_H

#include "gemm/gemm_job.h"

/* HC_FEW_NONE: packed product. For the other forms see gemm/few_rows.h. */
typedef enum { HC_FEW_NONE, HC_FEW_DOTS, HC_FEW_SUMS, HC_FEW_DEPTHS } hc_few_form;

hc_few_form hc_few_form_of(const hc_gemm_arguments *x);

/* Compute hc_gemm_cut for valid arguments. An empty part is not written. */
void hc_few_cut(const hc_context *context, const hc_gemm_arguments *x, hc_few_form form, int thread, int64_t *out_part);

/* Compute the product on the threads of the context. The caller holds the context's lock. */
int hc_few_run(hc_context *context, hc_gemm_job *gemm, hc_few_form form);

#endif
