/* AdamW over many tensors, as if they were one array: checks, the numbers of the step, and the cut among threads. */
#include <math.h>
#include <stddef.h>

#include "array.h"
#include "context.h"

typedef struct {
    const hc_kernels *kernels;
    hc_adamw_factors factors;
    int64_t tensors, total;
    const int64_t *counts;
    float *const *weight;
    const float *const *gradient;
    float *const *first, *const *second, *const *ema;
    uint16_t *const *shadow;
} adamw_job;

/* In fp64, as Python computes them: 1 - 0.999 in fp32 is wrong in the fifth digit. */
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

static void adamw(void *arguments, int thread, int num_threads) {
    const adamw_job *job = arguments;
    int64_t start, stop;
    hc_part(job->total, HC_CHUNK, thread, num_threads, &start, &stop);
    hc_walk walk = hc_walk_from(job->tensors, job->counts, start);
    while (start < stop) {
        const hc_piece piece = hc_walk_on(&walk, stop - start);
        const int64_t i = piece.tensor, offset = piece.offset;
        float *ema = job->ema == NULL || job->ema[i] == NULL ? NULL : job->ema[i] + offset;
        uint16_t *shadow = job->shadow == NULL || job->shadow[i] == NULL ? NULL : job->shadow[i] + offset;
        job->kernels->adamw(&job->factors, piece.count, job->weight[i] + offset, job->gradient[i] + offset,
                            job->first[i] + offset, job->second[i] + offset, ema, shadow);
        start += piece.count;
    }
}

int hc_adamw(hc_context *context, const hc_adamw_settings *settings, int64_t tensors, const int64_t *counts,
             float *const *out_weight, const float *const *gradient, float *const *out_first, float *const *out_second,
             float *const *out_ema, uint16_t *const *out_shadow) {
    if (context == NULL || settings == NULL || settings->step < 1 || tensors < 0 ||
        (tensors > 0 && (counts == NULL || out_weight == NULL || gradient == NULL || out_first == NULL || out_second == NULL))) {
        return HC_BAD_ARGUMENT;
    }
    int64_t total = 0;
    for (int64_t i = 0; i < tensors; i++) {
        if (hc_count(counts[i], 1, 1) < 0 || !hc_is_array(out_weight[i], counts[i], HC_F32) ||
            !hc_is_array(gradient[i], counts[i], HC_F32) || !hc_is_array(out_first[i], counts[i], HC_F32) ||
            !hc_is_array(out_second[i], counts[i], HC_F32)) {
            return HC_BAD_ARGUMENT;
        }
        total += counts[i];
    }
    adamw_job job = {context->kernels, factors_of(settings), tensors, total, counts, out_weight, gradient, out_first, out_second,
                     out_ema, out_shadow};
    hc_lock(context);
    hc_team_run(context->team, hc_threads_for(context, total), adamw, &job);
    hc_unlock(context);
    return HC_OK;
}
