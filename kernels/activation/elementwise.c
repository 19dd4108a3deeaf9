/* Elementwise operators: argument checks, and the partition of the elements among threads. */
#include <stddef.h>

#include "array.h"
#include "context.h"

/* Granularity of the partition in elements, 4 KB of fp32. Two threads then share neither a cache line nor a page. */
#define MULTIPLE 1024

typedef struct {
    const hc_kernels *kernels;
    int function; /* hc_function, for map and map_backward */
    int64_t count;
    float alpha, beta;
    const void *x, *y;
    void *out;
    int x_type, y_type, out_type, pass_caches;
} arrays_job;

static void part_of(arrays_job *job, int thread, int num_threads) {
    int64_t start, stop;
    hc_part(job->count, MULTIPLE, thread, num_threads, &start, &stop);
    job->count = stop - start;
    job->x = hc_at(job->x, start, job->x_type);
    job->y = job->y == NULL ? NULL : hc_at(job->y, start, job->y_type);
    job->out = hc_out_at(job->out, start, job->out_type);
}

static void map(void *arguments, int thread, int num_threads) {
    arrays_job own = *(const arrays_job *)arguments;
    part_of(&own, thread, num_threads);
    own.kernels->map(own.function, own.count, own.x, own.x_type, own.out, own.out_type, own.pass_caches);
}

static void map_backward(void *arguments, int thread, int num_threads) {
    arrays_job own = *(const arrays_job *)arguments;
    part_of(&own, thread, num_threads);
    own.kernels->map_backward(own.function, own.count, own.y, own.y_type, own.x, own.x_type, own.out, own.out_type,
                              own.pass_caches);
}

static void scale_add(void *arguments, int thread, int num_threads) {
    arrays_job own = *(const arrays_job *)arguments;
    part_of(&own, thread, num_threads);
    own.kernels->scale_add(own.count, own.alpha, own.x, own.x_type, own.beta, own.y, own.y_type, own.out, own.out_type,
                           own.pass_caches);
}

static int run(hc_context *context, hc_job *job, arrays_job *arguments) {
    if (arguments->count == 0) {
        return HC_OK;
    }
    const int64_t bytes = arguments->count * (hc_element_bytes(arguments->x_type) + hc_element_bytes(arguments->out_type) +
                                              (arguments->y == NULL ? 0 : hc_element_bytes(arguments->y_type)));
    arguments->kernels = context->kernels;
    arguments->pass_caches = hc_pass_caches(context, bytes);
    hc_lock(context);
    hc_team_run(context->team, hc_threads_for(context, arguments->count), job, arguments);
    hc_unlock(context);
    return HC_OK;
}

int hc_map(hc_context *context, int function, int64_t count, const void *x, int x_type, void *out, int out_type) {
    if (!hc_is_context(context) || function < HC_EXP || function > HC_GELU_ERF || hc_count(count, 1, 1) < 0 ||
        !hc_is_array(x, count, x_type) || !hc_is_array(out, count, out_type)) {
        return HC_BAD_ARGUMENT;
    }
    arrays_job job = {.function = function, .count = count, .x = x, .x_type = x_type, .out = out, .out_type = out_type};
    return run(context, map, &job);
}

int hc_map_backward(hc_context *context, int function, int64_t count, const void *dout, int dout_type, const void *x,
                    int x_type, void *out_dx, int dx_type) {
    if (!hc_is_context(context) || function < HC_EXP || function > HC_GELU_ERF || hc_count(count, 1, 1) < 0 ||
        !hc_is_array(dout, count, dout_type) || !hc_is_array(x, count, x_type) || !hc_is_array(out_dx, count, dx_type)) {
        return HC_BAD_ARGUMENT;
    }
    arrays_job job = {.function = function, .count = count, .x = x, .x_type = x_type, .y = dout, .y_type = dout_type,
                      .out = out_dx, .out_type = dx_type};
    return run(context, map_backward, &job);
}

int hc_scale_add(hc_context *context, int64_t count, float alpha, const void *x, int x_type, float beta, const void *y,
                 int y_type, void *out, int out_type) {
    if (!hc_is_context(context) || hc_count(count, 1, 1) < 0 || !hc_is_array(x, count, x_type) ||
        !hc_is_array(out, count, out_type) || (y == NULL && beta != 0.0f && count > 0) ||
        !hc_is_array(y, y == NULL ? 0 : count, y_type)) {
        return HC_BAD_ARGUMENT;
    }
    arrays_job job = {.count = count, .alpha = alpha, .beta = beta, .x = x, .x_type = x_type, .y = y, .y_type = y_type,
                      .out = out, .out_type = out_type};
    return run(context, scale_add, &job);
}
