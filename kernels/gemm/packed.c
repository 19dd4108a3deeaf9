/* B of matrix products, packed once for several products. */
#include "gemm/packed.h"

#include "gemm/gemm_range.h"
#include "handles.h"

static int64_t panels_of(int64_t n, const hc_gemm_kernel *kernel) {
    return (n + kernel->nr() - 1) / kernel->nr();
}

int64_t hc_packed_b_bytes(const hc_gemm_plan *plan, const hc_gemm_kernel *kernel) {
    const int64_t depth = hc_round_up(plan->k, kernel->kr);
    return (int64_t)sizeof(hc_packed_b) + panels_of(plan->n, kernel) * plan->nr * depth * kernel->element_bytes;
}

const char *hc_packed_b_at(const hc_packed_b *packed, int64_t p, int64_t j) {
    const hc_gemm_kernel *kernel = packed->kernel;
    const int64_t deep = hc_min_i64(packed->kc, hc_round_up(packed->k, kernel->kr) - p), nr = kernel->nr();
    return (const char *)(packed + 1) + (p * panels_of(packed->n, kernel) + j / nr * deep) * nr * kernel->element_bytes;
}

typedef struct {
    const hc_gemm_job *of;
    hc_packed_b *out;
} filling;

/* Pack B. The threads divide the panels. */
static void fill(void *arguments, int thread, int num_threads) {
    filling *job = arguments;
    hc_packed_b *out = job->out;
    const hc_gemm_kernel *kernel = out->kernel;
    const int64_t nr = kernel->nr();
    int64_t first, stop;
    hc_part(out->n, nr, thread, num_threads, &first, &stop);
    for (int64_t p = 0; p < out->k && first < stop; p += out->kc) {
        const int64_t deep = hc_min_i64(out->kc, out->k - p);
        const hc_matrix b = hc_from(&job->of->arguments->b, p, first);
        char *panels = (char *)(uintptr_t)hc_packed_b_at(out, p, first);
        if (kernel->largest) {
            hc_gemm_raise_largest(&out->largest, kernel->pack_b_max(deep, stop - first, &b, panels));
        } else {
            kernel->pack_b(deep, stop - first, &b, panels);
        }
    }
}

void hc_packed_b_fill(hc_gemm_job *job, hc_packed_b *out) {
    *out = (hc_packed_b){.tag = HC_PACKED_B_TAG, .kernel = job->kernel, .n = job->plan.n, .k = job->plan.k, .kc = job->plan.kc};
    filling what = {.of = job, .out = out};
    hc_team_run(job->context->team, job->plan.num_threads, fill, &what);
}

int hc_is_packed_b(const hc_packed_b *packed, const hc_gemm_arguments *x) {
    return hc_has_tag(packed, HC_PACKED_B_TAG) && packed->n == x->n && packed->k == x->k;
}

int hc_packed_b_serves(const hc_packed_b *packed, const hc_gemm_job *job) {
    return packed != NULL && packed->kernel == job->kernel && packed->kc == job->plan.kc;
}
