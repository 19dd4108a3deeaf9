/* Mean squared error of each row, and its gradient. Threads sum rows in fixed chunks, independent of the number of
 * threads. */
#include <stddef.h>

#include "array.h"
#include "context.h"

typedef struct {
    const hc_kernels *kernels;
    int64_t rows, columns, chunks; /* chunks per row */
    const void *x, *y;
    int x_type, y_type;
    double *sums; /* (rows, chunks), forward */
    const float *dout;
    void *out;
    int out_type, pass_caches;
} mse_job;

/* Return the row, the first element and the number of elements of a unit of work. */
static void unit_of(const mse_job *job, int64_t unit, int64_t *out_row, int64_t *out_start, int64_t *out_count) {
    const int64_t first = unit % job->chunks * HC_CHUNK, left = job->columns - first;
    *out_row = unit / job->chunks;
    *out_start = *out_row * job->columns + first;
    *out_count = left < HC_CHUNK ? left : HC_CHUNK;
}

static void forward(void *arguments, int thread, int num_threads) {
    const mse_job *job = arguments;
    int64_t first, last, row, start, count;
    hc_part(job->rows * job->chunks, 1, thread, num_threads, &first, &last);
    for (int64_t unit = first; unit < last; unit++) {
        unit_of(job, unit, &row, &start, &count);
        job->sums[unit] = job->kernels->squared_difference(count, hc_at(job->x, start, job->x_type), job->x_type,
                                                           hc_at(job->y, start, job->y_type), job->y_type);
    }
}

static void backward(void *arguments, int thread, int num_threads) {
    const mse_job *job = arguments;
    int64_t first, last, row, start, count;
    hc_part(job->rows * job->chunks, 1, thread, num_threads, &first, &last);
    for (int64_t unit = first; unit < last; unit++) {
        unit_of(job, unit, &row, &start, &count);
        const float factor = (float)(2.0 * (double)job->dout[row] / (double)job->columns);
        job->kernels->scaled_difference(count, factor, hc_at(job->x, start, job->x_type), job->x_type,
                                        hc_at(job->y, start, job->y_type), job->y_type,
                                        hc_out_at(job->out, start, job->out_type), job->out_type, job->pass_caches);
    }
}

int hc_mse_forward(hc_context *context, int64_t rows, int64_t columns, const void *x, int x_type, const void *y, int y_type,
                   float *out) {
    const int64_t count = hc_count(rows, columns, 1);
    if (!hc_is_context(context) || count < 0 || !hc_is_array(x, count, x_type) || !hc_is_array(y, count, y_type) ||
        hc_count(rows, 1, 1) < 0 || (out == NULL && rows > 0)) {
        return HC_BAD_ARGUMENT;
    }
    if (rows == 0) {
        return HC_OK;
    }
    const int64_t chunks = (columns + HC_CHUNK - 1) / HC_CHUNK;
    hc_lock(context);
    mse_job job = {.kernels = context->kernels, .rows = rows, .columns = columns, .chunks = chunks, .x = x, .x_type = x_type,
                   .y = y, .y_type = y_type, .sums = hc_scratch(context, rows * (chunks + 1) * (int64_t)sizeof(double))};
    if (job.sums == NULL) {
        hc_unlock(context);
        return HC_OUT_OF_MEMORY;
    }
    hc_team_run(context->team, hc_threads_for(context, count), forward, &job);
    for (int64_t row = 0; row < rows; row++) {
        double sum = 0.0;
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            sum += job.sums[row * chunks + chunk];
        }
        out[row] = (float)(sum / (double)columns);
    }
    hc_unlock(context);
    return HC_OK;
}

int hc_mse_backward(hc_context *context, int64_t rows, int64_t columns, const float *dout, const void *x, int x_type,
                    const void *y, int y_type, void *out_dx, int dx_type) {
    const int64_t count = hc_count(rows, columns, 1);
    if (!hc_is_context(context) || count < 0 || !hc_is_array(x, count, x_type) || !hc_is_array(y, count, y_type) ||
        !hc_is_array(out_dx, count, dx_type) || (dout == NULL && count > 0)) {
        return HC_BAD_ARGUMENT;
    }
    if (count == 0) {
        return HC_OK;
    }
    const int64_t bytes = count * (hc_element_bytes(x_type) + hc_element_bytes(y_type) + hc_element_bytes(dx_type));
    mse_job job = {.kernels = context->kernels, .rows = rows, .columns = columns,
                   .chunks = (columns + HC_CHUNK - 1) / HC_CHUNK, .x = x, .x_type = x_type, .y = y, .y_type = y_type,
                   .dout = dout, .out = out_dx, .out_type = dx_type, .pass_caches = hc_pass_caches(context, bytes)};
    hc_lock(context);
    hc_team_run(context->team, hc_threads_for(context, count), backward, &job);
    hc_unlock(context);
    return HC_OK;
}
