/* Range of the operands of split fp32 products (gemm_f32_amx.c). Sums of bf16 parts exceed the range of fp32 if
 * exponents are near its limits. */
#include "gemm/gemm_range.h"

#include "gemm/matrix.h"
#include "gemm/packed.h"

void hc_gemm_raise_largest(uint32_t *to, uint32_t found) {
    uint32_t value = __atomic_load_n(to, __ATOMIC_RELAXED);
    while (found > value && !__atomic_compare_exchange_n(to, &value, found, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

/* Return 1 if a split product keeps the error of fp32, given the largest magnitudes. No sum overflows then, and the
 * loss below 2^-126 is small compared with the largest product, though not with the smallest. */
int hc_gemm_is_in_range(uint32_t largest_a, uint32_t largest_b, int64_t k) {
    const int bias = 127, a = (int)(largest_a >> 23) - bias, b = (int)(largest_b >> 23) - bias;
    int depth = 0;
    while (k >> depth > 0) {
        depth++;
    }
    /* a and b are exponents: magnitudes are below 2^(a + 1) and 2^(b + 1). A part is rounded up by less than 2^-8. */
    if (a > 125 || b > 125 || a + b + depth + 3 > 127) {
        return 0;
    }
    return largest_a == 0 || largest_b == 0 || (a >= -100 && b >= -100 && a + b >= -90);
}

typedef struct {
    const hc_gemm_arguments *product;
    const hc_gemm_kernel *kernel;
    int is_packed; /* 1: largest_b is already set */
    uint32_t largest_a, largest_b;
} search;

/* Compute the largest magnitudes of the operands. Threads divide the matrices along their contiguous lines. */
static void find_largest(void *arguments, int thread, int num_threads) {
    search *job = arguments;
    const hc_gemm_arguments *x = job->product;
    int64_t start, stop;
    if (x->a.column_stride == 1) {
        hc_part(x->m, 1, thread, num_threads, &start, &stop);
        const hc_matrix a = hc_from(&x->a, start, 0);
        hc_gemm_raise_largest(&job->largest_a, job->kernel->largest(stop - start, x->k, &a));
    } else {
        hc_part(x->k, 1, thread, num_threads, &start, &stop);
        const hc_matrix a = hc_from(&x->a, 0, start);
        hc_gemm_raise_largest(&job->largest_a, job->kernel->largest(x->m, stop - start, &a));
    }
    if (job->is_packed) {
        return;
    }
    if (x->b.column_stride == 1) {
        hc_part(x->k, 1, thread, num_threads, &start, &stop);
        const hc_matrix b = hc_from(&x->b, start, 0);
        hc_gemm_raise_largest(&job->largest_b, job->kernel->largest(stop - start, x->n, &b));
    } else {
        hc_part(x->n, 1, thread, num_threads, &start, &stop);
        const hc_matrix b = hc_from(&x->b, 0, start);
        hc_gemm_raise_largest(&job->largest_b, job->kernel->largest(x->k, stop - start, &b));
    }
}

int hc_gemm_fits_range(hc_context *context, const hc_gemm_job *job) {
    const hc_gemm_arguments *x = job->arguments;
    hc_gemm_job planned = *job;
    search what = {.product = x, .kernel = job->kernel};
    if (x->packed_b != NULL &&
        hc_gemm_make_plan(context, job->kernel, x->m, x->n, x->k, &x->blocking, &planned.plan) == HC_OK &&
        hc_packed_b_serves(x->packed_b, &planned)) {
        what.is_packed = 1;
        what.largest_b = ((const hc_packed_b *)x->packed_b)->largest;
    }
    hc_team_run(context->team, x->blocking.num_threads, find_largest, &what);
    return hc_gemm_is_in_range(what.largest_a, what.largest_b, x->k);
}
