/* Softmax over rows: argument checks, and the partition of the rows among threads. */
#include <stddef.h>

#include "array.h"
#include "context.h"

typedef struct {
    const hc_kernels *kernels;
    int64_t rows, columns;
    const void *x, *y; /* y is NULL in the forward pass */
    void *out;
    int x_type, y_type, out_type;
} softmax_job;

static void softmax(void *arguments, int thread, int num_threads) {
    const softmax_job *job = arguments;
    int64_t start, stop;
    hc_part(job->rows, 1, thread, num_threads, &start, &stop);
    const int64_t rows = stop - start, columns = job->columns, first = start * columns;
    const void *x = hc_at(job->x, first, job->x_type);
    void *out = hc_out_at(job->out, first, job->out_type);
    if (job->y == NULL) {
        job->kernels->softmax_forward(rows, columns, x, job->x_type, out, job->out_type);
    } else {
        const void *y = hc_at(job->y, first, job->y_type);
        job->kernels->softmax_backward(rows, columns, x, job->x_type, y, job->y_type, out, job->out_type);
    }
}

static void run(hc_context *context, softmax_job *job) {
    job->kernels = context->kernels;
    hc_lock(context);
    hc_team_run(context->team, hc_threads_for(context, job->rows * job->columns), softmax, job);
    hc_unlock(context);
}

int hc_softmax_forward(hc_context *context, int64_t rows, int64_t columns, const void *x, int x_type, void *out, int out_type) {
    const int64_t count = hc_count(rows, columns, 1);
    if (!hc_is_context(context) || count < 0 || !hc_is_array(x, count, x_type) || !hc_is_array(out, count, out_type)) {
        return HC_BAD_ARGUMENT;
    }
    if (count > 0) {
        run(context, &(softmax_job){.rows = rows, .columns = columns, .x = x, .x_type = x_type, .out = out,
                                    .out_type = out_type});
    }
    return HC_OK;
}

int hc_softmax_backward(hc_context *context, int64_t rows, int64_t columns, const void *dout, int dout_type, const void *y,
                        int y_type, void *out_dx, int dx_type) {
    const int64_t count = hc_count(rows, columns, 1);
    if (!hc_is_context(context) || count < 0 || !hc_is_array(dout, count, dout_type) || !hc_is_array(y, count, y_type) ||
        !hc_is_array(out_dx, count, dx_type)) {
        return HC_BAD_ARGUMENT;
    }
    if (count > 0) {
        run(context, &(softmax_job){.rows = rows, .columns = columns, .x = dout, .x_type = dout_type, .y = y,
                                    .y_type = y_type, .out = out_dx, .out_type = dx_type});
    }
    return HC_OK;
}
