/* SwiGLU: argument checks, and the partition of the rows among threads. */
#include <stddef.h>

#include "array.h"
#include "context.h"

typedef struct {
    const hc_kernels *kernels;
    int64_t rows, columns; /* columns: E, half of the elements of a row of x */
    const void *dout, *x;  /* dout is NULL in the forward pass */
    void *out;
    int dout_type, x_type, out_type, pass_caches;
} swiglu_job;

static void swiglu(void *arguments, int thread, int num_threads) {
    const swiglu_job *job = arguments;
    int64_t start, stop;
    hc_part(job->rows, 1, thread, num_threads, &start, &stop);
    const int64_t rows = stop - start, e = job->columns;
    const void *x = hc_at(job->x, 2 * start * e, job->x_type);
    if (job->dout == NULL) {
        job->kernels->swiglu_forward(rows, e, x, job->x_type, hc_out_at(job->out, start * e, job->out_type), job->out_type,
                                     job->pass_caches);
    } else {
        job->kernels->swiglu_backward(rows, e, hc_at(job->dout, start * e, job->dout_type), job->dout_type, x, job->x_type,
                                      hc_out_at(job->out, 2 * start * e, job->out_type), job->out_type, job->pass_caches);
    }
}

static void run(hc_context *context, swiglu_job *job, int64_t bytes) {
    job->kernels = context->kernels;
    job->pass_caches = hc_pass_caches(context, bytes);
    hc_lock(context);
    hc_team_run(context->team, hc_threads_for(context, 2 * job->rows * job->columns), swiglu, job);
    hc_unlock(context);
}

int hc_swiglu_forward(hc_context *context, int64_t rows, int64_t columns, const void *x, int x_type, void *out, int out_type) {
    const int64_t both = hc_count(rows, columns, 2), count = both / 2;
    if (!hc_is_context(context) || both < 0 || !hc_is_array(x, both, x_type) || !hc_is_array(out, count, out_type)) {
        return HC_BAD_ARGUMENT;
    }
    if (count > 0) {
        swiglu_job job = {.rows = rows, .columns = columns, .x = x, .x_type = x_type, .out = out, .out_type = out_type};
        run(context, &job, both * hc_element_bytes(x_type) + count * hc_element_bytes(out_type));
    }
    return HC_OK;
}

int hc_swiglu_backward(hc_context *context, int64_t rows, int64_t columns, const void *dout, int dout_type, const void *x,
                       int x_type, void *out_dx, int dx_type) {
    const int64_t both = hc_count(rows, columns, 2), count = both / 2;
    if (!hc_is_context(context) || both < 0 || !hc_is_array(dout, count, dout_type) || !hc_is_array(x, both, x_type) ||
        !hc_is_array(out_dx, both, dx_type)) {
        return HC_BAD_ARGUMENT;
    }
    if (count > 0) {
        swiglu_job job = {.rows = rows, .columns = columns, .dout = dout, .dout_type = dout_type, .x = x, .x_type = x_type,
                          .out = out_dx, .out_type = dx_type};
        run(context, &job,
            count * hc_element_bytes(dout_type) + both * (hc_element_bytes(x_type) + hc_element_bytes(dx_type)));
    }
    return HC_OK;
}
