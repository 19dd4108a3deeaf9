/* LayerNorm and RMSNorm, with weights or adaptive (adaLN): argument checks, and the partition of the tokens among
 * threads. */
#include <stddef.h>

#include "norm/blocks.h"

typedef struct {
    const hc_kernels *kernels;
    hc_blocks blocks;
    hc_adaln_forward_block all; /* the arrays, as one block with all rows */
    int64_t condition_stride;
} forward_job;

static void forward(void *arguments, int thread, int num_threads) {
    const forward_job *job = arguments;
    int64_t start, stop, image, row;
    hc_part(job->blocks.n * job->blocks.blocks, 1, thread, num_threads, &start, &stop);
    for (int64_t unit = start; unit < stop; unit++) {
        hc_adaln_forward_block b = job->all;
        hc_block_rows(&job->blocks, unit, &image, &row, &b.rows);
        b.x = hc_at(b.x, row * b.columns, b.x_type);
        b.out = hc_out_at(b.out, row * b.columns, b.out_type);
        b.shift = hc_at(b.shift, image * job->condition_stride, b.condition_type);
        b.scale = hc_at(b.scale, image * job->condition_stride, b.condition_type);
        b.out_mean = b.out_mean == NULL ? NULL : b.out_mean + row;
        b.out_rstd += row;
        job->kernels->adaln_forward(&b);
    }
}

static int run_forward(hc_context *context, float offset, int64_t n, int64_t t, int64_t d, float eps, const void *x, int x_type,
                     const void *shift, const void *scale, int condition_type, int64_t condition_stride, void *out,
                     int out_type, float *out_mean, float *out_rstd) {
    const int64_t count = hc_count(n, t, d);
    if (!hc_is_context(context) || count < 0 || hc_count(n, condition_stride, 1) < 0 || !hc_is_array(x, count, x_type) ||
        !hc_is_array(shift, count, condition_type) || !hc_is_array(scale, count, condition_type) ||
        !hc_is_array(out, count, out_type) || (n * t > 0 && out_rstd == NULL)) {
        return HC_BAD_ARGUMENT;
    }
    if (count == 0) {
        return HC_OK;
    }
    forward_job job = {.kernels = context->kernels, .blocks = hc_blocks_of(n, t, d), .condition_stride = condition_stride};
    job.all = (hc_adaln_forward_block){
        .columns = d, .eps = eps, .x = x, .x_type = x_type, .shift = shift, .scale = scale, .condition_type = condition_type,
        .out = out, .out_type = out_type, .out_mean = out_mean, .out_rstd = out_rstd,
        .offset = offset, .pass_caches = hc_pass_caches(context, count * (hc_element_bytes(x_type) + hc_element_bytes(out_type))),
    };
    hc_lock(context);
    hc_team_run(context->team, hc_threads_for(context, count), forward, &job);
    hc_unlock(context);
    return HC_OK;
}

typedef struct {
    const hc_kernels *kernels;
    hc_team *team;
    hc_blocks blocks;
    hc_adaln_backward_block all;
    int64_t condition_stride;
    float *sums; /* (images, blocks, 2, d): partial sums of dshift and dscale per block */
    void *out_dshift, *out_dscale;
    int dcondition_type;
} backward_job;

static void backward(void *arguments, int thread, int num_threads) {
    const backward_job *job = arguments;
    const int64_t d = job->blocks.d;
    int64_t start, stop, image, row;
    hc_part(job->blocks.n * job->blocks.blocks, 1, thread, num_threads, &start, &stop);
    for (int64_t unit = start; unit < stop; unit++) {
        hc_adaln_backward_block b = job->all;
        hc_block_rows(&job->blocks, unit, &image, &row, &b.rows);
        b.dout = hc_at(b.dout, row * d, b.dout_type);
        b.x = hc_at(b.x, row * d, b.x_type);
        b.scale = hc_at(b.scale, image * job->condition_stride, b.condition_type);
        b.dstream = b.dstream == NULL ? NULL : hc_at(b.dstream, row * d, b.dstream_type);
        b.out_dx = hc_out_at(b.out_dx, row * d, b.dx_type);
        b.mean = b.mean == NULL ? NULL : b.mean + row;
        b.rstd += row;
        b.out_dshift = job->sums + unit * 2 * d;
        b.out_dscale = b.out_dshift + d;
        job->kernels->adaln_backward(&b);
    }
    hc_team_barrier(job->team);
    hc_add_blocks(job->kernels, &job->blocks, 2 * d, job->sums, job->out_dshift, job->dcondition_type, thread, num_threads);
    hc_add_blocks(job->kernels, &job->blocks, 2 * d, job->sums + d, job->out_dscale, job->dcondition_type, thread, num_threads);
}

static int run_backward(hc_context *context, float offset, int64_t n, int64_t t, int64_t d, const void *dout, int dout_type, const void *x,
                      int x_type, const void *scale, int condition_type, int64_t condition_stride, const float *mean,
                      const float *rstd, const void *dstream, int dstream_type, void *out_dx, int dx_type, void *out_dshift,
                      void *out_dscale, int dcondition_type) {
    const int64_t count = hc_count(n, t, d), conditions = hc_count(n, d, 1);
    if (!hc_is_context(context) || count < 0 || conditions < 0 || hc_count(n, condition_stride, 1) < 0 ||
        !hc_is_array(dout, count, dout_type) || !hc_is_array(x, count, x_type) || !hc_is_array(scale, count, condition_type) ||
        !hc_is_array(dstream, dstream == NULL ? 0 : count, dstream_type) || !hc_is_array(out_dx, count, dx_type) ||
        !hc_is_array(out_dshift, conditions, dcondition_type) ||
        !hc_is_array(out_dscale, conditions, dcondition_type) || (count > 0 && rstd == NULL)) {
        return HC_BAD_ARGUMENT;
    }
    if (conditions == 0) {
        return HC_OK;
    }
    const int64_t bytes = count * (hc_element_bytes(dout_type) + hc_element_bytes(x_type) + hc_element_bytes(dx_type) +
                                   (dstream == NULL ? 0 : hc_element_bytes(dstream_type)));
    backward_job job = {.kernels = context->kernels, .team = context->team, .blocks = hc_blocks_of(n, t, d),
                        .condition_stride = condition_stride, .out_dshift = out_dshift, .out_dscale = out_dscale,
                        .dcondition_type = dcondition_type};
    job.all = (hc_adaln_backward_block){
        .columns = d, .dout = dout, .dout_type = dout_type, .x = x, .x_type = x_type, .scale = scale,
        .condition_type = condition_type, .mean = mean, .rstd = rstd, .dstream = dstream, .dstream_type = dstream_type,
        .out_dx = out_dx, .dx_type = dx_type, .offset = offset, .pass_caches = hc_pass_caches(context, bytes),
    };
    hc_lock(context);
    job.sums = hc_scratch(context, (n * job.blocks.blocks * 2 * d + 1) * (int64_t)sizeof(float));
    if (job.sums == NULL) {
        hc_unlock(context);
        return HC_OUT_OF_MEMORY;
    }
    hc_team_run(context->team, hc_threads_for(context, count), backward, &job);
    hc_unlock(context);
    return HC_OK;
}

int hc_adaln_forward(hc_context *context, int64_t n, int64_t t, int64_t d, float eps, const void *x, int x_type,
                     const void *shift, const void *scale, int condition_type, int64_t condition_stride, void *out,
                     int out_type, float *out_mean, float *out_rstd) {
    return run_forward(context, 1.0f, n, t, d, eps, x, x_type, shift, scale, condition_type, condition_stride, out, out_type,
                       out_mean, out_rstd);
}

int hc_adaln_backward(hc_context *context, int64_t n, int64_t t, int64_t d, const void *dout, int dout_type, const void *x,
                      int x_type, const void *scale, int condition_type, int64_t condition_stride, const float *mean,
                      const float *rstd, const void *dstream, int dstream_type, void *out_dx, int dx_type, void *out_dshift,
                      void *out_dscale, int dcondition_type) {
    return run_backward(context, 1.0f, n, t, d, dout, dout_type, x, x_type, scale, condition_type, condition_stride, mean, rstd,
                        dstream, dstream_type, out_dx, dx_type, out_dshift, out_dscale, dcondition_type);
}

int hc_norm_forward(hc_context *context, int64_t rows, int64_t d, float eps, const void *x, int x_type, const void *bias,
                    const void *weight, int weight_type, void *out, int out_type, float *out_mean, float *out_rstd) {
    return run_forward(context, 0.0f, 1, rows, d, eps, x, x_type, bias, weight, weight_type, d, out, out_type, out_mean,
                       out_rstd);
}

int hc_norm_backward(hc_context *context, int64_t rows, int64_t d, const void *dout, int dout_type, const void *x, int x_type,
                     const void *weight, int weight_type, const float *mean, const float *rstd, void *out_dx, int dx_type,
                     void *out_dbias, void *out_dweight, int dweight_type) {
    return run_backward(context, 0.0f, 1, rows, d, dout, dout_type, x, x_type, weight, weight_type, d, mean, rstd, NULL, HC_F32,
                        out_dx, dx_type, out_dbias, out_dweight, dweight_type);
}
