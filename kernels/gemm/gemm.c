/* Public matrix products: argument checks, selection of a kernel, and the fallback for operands outside a kernel's
 * range. */
#include <string.h>

#include "array.h"
#include "gemm/few_rows_job.h"
#include "gemm/gemm_job.h"
#include "gemm/gemm_range.h"
#include "gemm/packed.h"

static int is_operand(int64_t rows, int64_t columns, const hc_matrix *x, int compute) {
    const int type_fits = compute == HC_F64 ? x->dtype == HC_F64 : x->dtype == HC_F32 || x->dtype == HC_BF16;
    const int runs = x->row_stride == 1 || x->column_stride == 1 || rows <= 1 || columns <= 1;
    /* Element offsets and sizes of packed blocks must fit int64. Strides may be negative. */
    const int64_t row_step = x->row_stride < 0 ? -(x->row_stride + 1) : x->row_stride;
    const int64_t column_step = x->column_stride < 0 ? -(x->column_stride + 1) : x->column_stride;
    if (hc_count(rows, columns, 1) < 0 || hc_count(rows, row_step, 1) < 0 || hc_count(columns, column_step, 1) < 0) {
        return 0;
    }
    return type_fits && runs && (x->data != NULL || rows == 0 || columns == 0);
}

static int takes_epilogue_type(int compute, int dtype) {
    return compute == HC_F64 ? dtype == HC_F64 : dtype == HC_F32 || dtype == HC_BF16;
}

static int is_invalid(const hc_gemm_arguments *x) {
    const hc_epilogue *e = &x->epilogue;
    const hc_blocking *b = &x->blocking;
    if (x->m < 0 || x->n < 0 || x->k < 0 || (x->compute != HC_F32 && x->compute != HC_BF16 && x->compute != HC_F64) ||
        !is_operand(x->m, x->k, &x->a, x->compute) || !is_operand(x->k, x->n, &x->b, x->compute) ||
        !is_operand(x->m, x->n, &x->out_c, x->compute) || (x->out_c.column_stride != 1 && x->n > 1)) {
        return 1;
    }
    if (x->packed_b != NULL && !hc_is_packed_b(x->packed_b, x)) {
        return 1;
    }
    if (x->accumulate && (x->out_c.dtype == HC_BF16 || e->bias != NULL || hc_finishes(e))) {
        return 1;
    }
    if ((e->bias != NULL && !takes_epilogue_type(x->compute, e->bias_type)) ||
        (e->out_before != NULL && !takes_epilogue_type(x->compute, e->before_type)) ||
        (e->gate != NULL && (!takes_epilogue_type(x->compute, e->gate_type) || e->rows_per_gate < 1)) ||
        (e->residual != NULL && !takes_epilogue_type(x->compute, e->residual_type))) {
        return 1;
    }
    return b->mc < 0 || b->nc < 0 || b->kc < 0 || b->row_cuts < 0 || b->column_cuts < 0 || b->num_threads < 0 ||
           b->cluster_cut < HC_CUT_BY_COST || b->cluster_cut > HC_CUT_COLUMNS || x->rows_like < 0;
}

/* Smallest size for split products. Below it, padding to tiles, and packing, which writes half as much again as for
 * fp32, cost more than the faster products save. */
#define MIN_IN_PARTS 64

static int gains_from_parts(const hc_gemm_arguments *x) {
    return hc_order_rows(x) >= MIN_IN_PARTS && x->n >= MIN_IN_PARTS && x->k >= MIN_IN_PARTS;
}

/* Return 1 if a product that is found out of range cannot be repeated, because it overwrites its inputs. */
static int needs_operands_twice(const hc_gemm_arguments *x) {
    const hc_epilogue *e = &x->epilogue;
    return x->accumulate || e->residual == x->out_c.data || e->gelu_gradient_at == x->out_c.data;
}

static const hc_gemm_kernel *kernel_of(const hc_kernels *kernels, int compute) {
    return compute == HC_F64 ? kernels->gemm_f64 : compute == HC_BF16 ? kernels->gemm_bf16 : kernels->gemm_f32;
}

/* Return the split kernel, or NULL if it would not be faster. */
static const hc_gemm_kernel *split_kernel_of(const hc_kernels *kernels, const hc_gemm_arguments *x) {
    return x->compute == HC_F32 && gains_from_parts(x) ? kernels->gemm_f32_split : NULL;
}

static hc_gemm_job job_of(const hc_context *context, const hc_gemm_arguments *x, const hc_gemm_kernel *kernel) {
    const hc_epilogue *e = &x->epilogue;
    const int overwrites = e->residual == x->out_c.data || e->gelu_gradient_at == x->out_c.data;
    hc_gemm_job job = {
        .context = context,
        .arguments = x,
        .kernel = kernel,
        .c_bytes = x->compute == HC_F64 ? 8 : 4,
        .sums_in_scratch = x->out_c.dtype == HC_BF16 || overwrites,
    };
    if (hc_finishes(e) || job.sums_in_scratch) {
        job.finish = x->compute == HC_F64 ? hc_epilogue_f64 : context->kernels->epilogue;
    }
    return job;
}

int hc_gemm(hc_context *context, const hc_gemm_arguments *arguments) {
    if (!hc_is_context(context) || arguments == NULL || is_invalid(arguments)) {
        return HC_BAD_ARGUMENT;
    }
    const hc_gemm_arguments *x = arguments;
    if (x->m == 0 || x->n == 0) {
        /* Row sums of A require at least one column of C. */
        return x->m > 0 && x->out_row_sum_a ? HC_BAD_ARGUMENT : HC_OK;
    }
    const hc_gemm_kernel *split = split_kernel_of(context->kernels, x);
    const hc_few_form few = hc_few_form_of(x);
    hc_lock(context);
    int done = 0, status = HC_OK;
    if (few != HC_FEW_NONE) {
        hc_gemm_job job = job_of(context, x, NULL);
        status = hc_few_run(context, &job, few);
        hc_unlock(context);
        return status;
    }
    if (split) {
        hc_gemm_job job = job_of(context, x, split);
        if (!needs_operands_twice(x) || hc_gemm_fits_range(context, &job)) {
            status = hc_gemm_run(context, &job);
            done = status != HC_OK || hc_gemm_is_in_range(job.largest_a, job.largest_b, x->k);
        }
    }
    if (!done) {
        hc_gemm_job job = job_of(context, x, kernel_of(context->kernels, x->compute));
        status = hc_gemm_run(context, &job);
    }
    hc_unlock(context);
    return status;
}

/* Set up the job that packs B, with its kernel and plan. The kernel is NULL if the product packs nothing. */
static int job_to_pack(hc_context *context, const hc_gemm_arguments *x, hc_gemm_job *out_job) {
    if (!hc_is_context(context) || x == NULL || is_invalid(x)) {
        return HC_BAD_ARGUMENT;
    }
    if (x->n == 0 || x->k == 0 || hc_few_form_of(x) != HC_FEW_NONE) {
        *out_job = (hc_gemm_job){0};
        return HC_OK;
    }
    const hc_gemm_kernel *split = split_kernel_of(context->kernels, x);
    *out_job = job_of(context, x, split ? split : kernel_of(context->kernels, x->compute));
    return hc_gemm_make_plan(context, out_job->kernel, x->m, x->n, x->k, &x->blocking, &out_job->plan);
}

int hc_gemm_pack_bytes(hc_context *context, const hc_gemm_arguments *arguments, int64_t *out_bytes) {
    hc_gemm_job job;
    const int status = out_bytes == NULL ? HC_BAD_ARGUMENT : job_to_pack(context, arguments, &job);
    if (status == HC_OK) {
        *out_bytes = job.kernel ? hc_packed_b_bytes(&job.plan, job.kernel) : 0;
    }
    return status;
}

int hc_gemm_pack(hc_context *context, const hc_gemm_arguments *arguments, void *out_packed) {
    hc_gemm_job job;
    const int status = out_packed == NULL ? HC_BAD_ARGUMENT : job_to_pack(context, arguments, &job);
    if (status != HC_OK || job.kernel == NULL || (uintptr_t)out_packed % _Alignof(hc_packed_b) != 0) {
        return status != HC_OK ? status : HC_BAD_ARGUMENT;
    }
    hc_lock(context);
    hc_packed_b_fill(&job, out_packed);
    hc_unlock(context);
    return HC_OK;
}

int hc_gemm_cut(hc_context *context, const hc_gemm_arguments *arguments, int thread, int64_t *out_part) {
    if (!hc_is_context(context) || arguments == NULL || out_part == NULL || is_invalid(arguments) || thread < 0 ||
        thread >= context->num_threads) {
        return HC_BAD_ARGUMENT;
    }
    memset(out_part, 0, 4 * sizeof(*out_part));
    const hc_gemm_arguments *x = arguments;
    if (x->m == 0 || x->n == 0) {
        return HC_OK;
    }
    const hc_few_form few = hc_few_form_of(x);
    if (few != HC_FEW_NONE) {
        hc_few_cut(context, x, few, thread, out_part);
        return HC_OK;
    }
    const hc_gemm_kernel *split = split_kernel_of(context->kernels, x);
    hc_gemm_plan plan;
    const int status = hc_gemm_make_plan(context, split ? split : kernel_of(context->kernels, x->compute), x->m, x->n, x->k,
                                         &x->blocking, &plan);
    if (status != HC_OK || thread >= plan.num_threads) {
        return status;
    }
    const hc_gemm_part part = hc_gemm_part_of(&plan, thread);
    if (part.row_start < part.row_stop && part.column_start < part.column_stop) {
        const int64_t found[] = {part.row_start, part.row_stop, part.column_start, part.column_stop};
        memcpy(out_part, found, sizeof(found));
    }
    return HC_OK;
}
