/* AdamW over several tensors as if they were one array: argument checks, the factors of the step, and the partition
 * among threads. */
#include <math.h>
#include <stddef.h>

#include "array.h"
#include "context.h"

/* Granularity of the partition among clusters: complete pages of fp32 elements. */
#define PAGE_ELEMENTS 1024

typedef struct {
    int all_threads, num_clusters; /* of the context; one cluster if memory is not bound to nodes */
    const hc_kernels *kernels;
    hc_adamw_factors factors;
    int64_t tensors;
    const int64_t *counts;
    float *const *weight;
    const float *const *gradient;
    float *const *first, *const *second, *const *ema;
    uint16_t *const *shadow;
} adamw_job;

/* Compute the factors in fp64, as Python does. 1 - 0.999 in fp32 is wrong in the fifth digit. */
static hc_adamw_factors factors_of(const hc_adamw_settings *s) {
    const double correction1 = 1.0 - pow(s->beta1, (double)s->step), correction2 = 1.0 - pow(s->beta2, (double)s->step);
    return (hc_adamw_factors){
        .gradient_scale = (float)s->gradient_scale,
        .one_minus_beta1 = (float)(1.0 - s->beta1),
        .beta2 = (float)s->beta2,
        .one_minus_beta2 = (float)(1.0 - s->beta2),
        .decay = (float)(1.0 - s->lr * s->weight_decay),
        .inverse_root_correction2 = (float)(1.0 / sqrt(correction2)),
        .eps = (float)s->eps,
        .step_size = (float)(s->lr / correction1),
        .ema_decay = (float)s->ema_decay,
        .one_minus_ema_decay = (float)(1.0 - s->ema_decay),
    };
}

/* Update elements offset ... offset + count - 1 of one tensor. */
static void update(const adamw_job *job, int64_t i, int64_t offset, int64_t count) {
    float *ema = job->ema == NULL || job->ema[i] == NULL ? NULL : job->ema[i] + offset;
    uint16_t *shadow = job->shadow == NULL || job->shadow[i] == NULL ? NULL : job->shadow[i] + offset;
    job->kernels->adamw(&job->factors, count, job->weight[i] + offset, job->gradient[i] + offset, job->first[i] + offset,
                        job->second[i] + offset, ema, shadow);
}

/* Update one thread's part. The threads of a cluster divide the cluster's parts of all tensors, as if these parts were
 * one array. The parts are in the cluster's memory (dithc.engine.numa). */
static void adamw(void *arguments, int thread, int num_threads) {
    const adamw_job *job = arguments;
    const int clusters = num_threads == job->all_threads ? job->num_clusters : 1;
    int cluster = 0;
    int64_t first = 0, last = 0, of_cluster = 0, start, stop;
    for (; thread >= last; cluster++) {
        hc_part(num_threads, 1, cluster, clusters, &first, &last);
    }
    cluster--;
    for (int64_t i = 0; i < job->tensors; i++) {
        hc_part(job->counts[i], PAGE_ELEMENTS, cluster, clusters, &start, &stop);
        of_cluster += stop - start;
    }
    int64_t mine, mine_stop, before = 0;
    hc_part(of_cluster, HC_CHUNK, thread - (int)first, (int)(last - first), &mine, &mine_stop);
    for (int64_t i = 0; i < job->tensors && before < mine_stop; i++) {
        hc_part(job->counts[i], PAGE_ELEMENTS, cluster, clusters, &start, &stop);
        const int64_t from = mine > before ? mine - before : 0;
        const int64_t to = mine_stop - before < stop - start ? mine_stop - before : stop - start;
        if (from < to) {
            update(job, i, start + from, to - from);
        }
        before += stop - start;
    }
}

int hc_adamw(hc_context *context, const hc_adamw_settings *settings, int64_t tensors, const int64_t *counts,
             float *const *out_weight, const float *const *gradient, float *const *out_first, float *const *out_second,
             float *const *out_ema, uint16_t *const *out_shadow) {
    if (!hc_is_context(context) || settings == NULL || settings->step < 1 || tensors < 0 ||
        (tensors > 0 && (counts == NULL || out_weight == NULL || gradient == NULL || out_first == NULL || out_second == NULL))) {
        return HC_BAD_ARGUMENT;
    }
    int64_t total = 0;
    for (int64_t i = 0; i < tensors; i++) {
        if (hc_count(counts[i], 1, 1) < 0 || !hc_is_array(out_weight[i], counts[i], HC_F32) ||
            !hc_is_array(gradient[i], counts[i], HC_F32) || !hc_is_array(out_first[i], counts[i], HC_F32) ||
            !hc_is_array(out_second[i], counts[i], HC_F32) ||
            hc_count(total + counts[i], 1, 1) < 0) {
            return HC_BAD_ARGUMENT;
        }
        total += counts[i];
    }
    adamw_job job = {context->num_threads, context->nodes == NULL ? 1 : context->num_clusters, context->kernels,
                     factors_of(settings), tensors, counts, out_weight, gradient, out_first, out_second, out_ema, out_shadow};
    hc_lock(context);
    hc_team_run(context->team, hc_threads_for(context, total), adamw, &job);
    hc_unlock(context);
    return HC_OK;
}
