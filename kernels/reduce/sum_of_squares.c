/* Sum of the squares of several tensors. They are summed as one array in fixed chunks, independent of the number of
 * threads. */
#include <stddef.h>

#include "array.h"
#include "context.h"

typedef struct {
    const hc_kernels *kernels;
    int64_t tensors, total;
    const int64_t *counts;
    const float *const *x;
    double *sums; /* per chunk */
} squares_job;

static void squares(void *arguments, int thread, int num_threads) {
    const squares_job *job = arguments;
    int64_t start, stop;
    hc_part(job->total, HC_CHUNK, thread, num_threads, &start, &stop);
    hc_walk walk = hc_walk_from(job->tensors, job->counts, start);
    for (int64_t position = start; position < stop; position += HC_CHUNK) {
        double sum = 0.0;
        int64_t left = job->total - position < HC_CHUNK ? job->total - position : HC_CHUNK;
        while (left > 0) {
            const hc_piece piece = hc_walk_next(&walk, left);
            sum += job->kernels->sum_of_squares(piece.count, job->x[piece.tensor] + piece.offset);
            left -= piece.count;
        }
        job->sums[position / HC_CHUNK] = sum;
    }
}

int hc_sum_of_squares(hc_context *context, int64_t tensors, const int64_t *counts, const float *const *x, double *out_sum) {
    if (!hc_is_context(context) || out_sum == NULL || tensors < 0 || (tensors > 0 && (counts == NULL || x == NULL))) {
        return HC_BAD_ARGUMENT;
    }
    int64_t total = 0;
    for (int64_t i = 0; i < tensors; i++) {
        if (hc_count(counts[i], 1, 1) < 0 || !hc_is_array(x[i], counts[i], HC_F32) ||
            hc_count(total + counts[i], 1, 1) < 0) {
            return HC_BAD_ARGUMENT;
        }
        total += counts[i];
    }
    const int64_t chunks = (total + HC_CHUNK - 1) / HC_CHUNK;
    hc_lock(context);
    squares_job job = {context->kernels, tensors, total, counts, x,
                       hc_scratch(context, (chunks + 1) * (int64_t)sizeof(double))};
    if (job.sums == NULL) {
        hc_unlock(context);
        return HC_OUT_OF_MEMORY;
    }
    hc_team_run(context->team, hc_threads_for(context, total), squares, &job);
    double sum = 0.0;
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        sum += job.sums[chunk];
    }
    *out_sum = sum;
    hc_unlock(context);
    return HC_OK;
}
