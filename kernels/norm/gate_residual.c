/* Gate + residual: argument checks, and the partition of the tokens among threads. */
#include <stddef.h>

#include "norm/blocks.h"

typedef struct {
    const hc_kernels *kernels;
    hc_blocks blocks;
    hc_gate_residual_forward_block all; /* the arrays, as one block with all rows */
    int64_t gate_stride;
} forward_job;

static void forward(void *arguments, int thread, int num_threads) {
    const forward_job *job = arguments;
    int64_t start, stop, image, row;
    hc_part(job->blocks.n * job->blocks.blocks, 1, thread, num_threads, &start, &stop);
    for (int64_t unit = start; unit < stop; unit++) {
        hc_gate_residual_forward_block b = job->all;
        hc_block_rows(&job->blocks, unit, &image, &row, &b.rows);
        b.x = hc_at(b.x, row * b.columns, b.x_type);
        b.gate = hc_at(b.gate, image * job->gate_stride, b.gate_type);
        b.y = hc_at(b.y, row * b.columns, b.y_type);
        b.out = hc_out_at(b.out, row * b.columns, b.out_type);
        job->kernels->gate_residual_forward(&b);
    }
}

int hc_gate_residual_forward(hc_context *context, int64_t n, int64_t t, int64_t d, const void *x, int x_type,
                             const void *gate, int gate_type, int64_t gate_stride, const void *y, int y_type, void *out,
                             int out_type) {
    const int64_t count = hc_count(n, t, d);
    if (!hc_is_context(context) || count < 0 || hc_count(n, gate_stride, 1) < 0 || !hc_is_array(x, count, x_type) ||
        !hc_is_array(gate, count, gate_type) || !hc_is_array(y, count, y_type) || !hc_is_array(out, count, out_type)) {
        return HC_BAD_ARGUMENT;
    }
    if (count == 0) {
        return HC_OK;
    }
    const int64_t bytes = count * (hc_element_bytes(x_type) + hc_element_bytes(y_type) + hc_element_bytes(out_type));
    forward_job job = {.kernels = context->kernels, .blocks = hc_blocks_of(n, t, d), .gate_stride = gate_stride};
    job.all = (hc_gate_residual_forward_block){
        .columns = d, .x = x, .x_type = x_type, .gate = gate, .gate_type = gate_type, .y = y, .y_type = y_type, .out = out,
        .out_type = out_type, .pass_caches = hc_pass_caches(context, bytes),
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
    hc_gate_residual_backward_block all;
    int64_t gate_stride;
    float *sums; /* (images, blocks, d) */
    void *out_dgate;
    int dgate_type;
} backward_job;

static void backward(void *arguments, int thread, int num_threads) {
    const backward_job *job = arguments;
    const int64_t d = job->blocks.d;
    int64_t start, stop, image, row;
    hc_part(job->blocks.n * job->blocks.blocks, 1, thread, num_threads, &start, &stop);
    for (int64_t unit = start; unit < stop; unit++) {
        hc_gate_residual_backward_block b = job->all;
        hc_block_rows(&job->blocks, unit, &image, &row, &b.rows);
        b.dout = hc_at(b.dout, row * d, b.dout_type);
        b.gate = hc_at(b.gate, image * job->gate_stride, b.gate_type);
        b.y = hc_at(b.y, row * d, b.y_type);
        b.out_dy = hc_out_at(b.out_dy, row * d, b.dy_type);
        b.out_dgate = job->sums + unit * d;
        job->kernels->gate_residual_backward(&b);
    }
    hc_team_barrier(job->team);
    hc_add_blocks(job->kernels, &job->blocks, d, job->sums, job->out_dgate, job->dgate_type, thread, num_threads);
}

int hc_gate_residual_backward(hc_context *context, int64_t n, int64_t t, int64_t d, const void *dout, int dout_type,
                              const void *gate, int gate_type, int64_t gate_stride, const void *y, int y_type, void *out_dy,
                              int dy_type, void *out_dgate, int dgate_type) {
    const int64_t count = hc_count(n, t, d), gates = hc_count(n, d, 1);
    if (!hc_is_context(context) || count < 0 || gates < 0 || hc_count(n, gate_stride, 1) < 0 ||
        !hc_is_array(dout, count, dout_type) || !hc_is_array(gate, count, gate_type) || !hc_is_array(y, count, y_type) ||
        !hc_is_array(out_dy, count, dy_type) || !hc_is_array(out_dgate, gates, dgate_type)) {
        return HC_BAD_ARGUMENT;
    }
    if (gates == 0) {
        return HC_OK;
    }
    const int64_t bytes = count * (hc_element_bytes(dout_type) + hc_element_bytes(y_type) + hc_element_bytes(dy_type));
    backward_job job = {.kernels = context->kernels, .team = context->team, .blocks = hc_blocks_of(n, t, d),
                        .gate_stride = gate_stride, .out_dgate = out_dgate, .dgate_type = dgate_type};
    job.all = (hc_gate_residual_backward_block){
        .columns = d, .dout = dout, .dout_type = dout_type, .gate = gate, .gate_type = gate_type, .y = y, .y_type = y_type,
        .out_dy = out_dy, .dy_type = dy_type, .pass_caches = hc_pass_caches(context, bytes),
    };
    hc_lock(context);
    job.sums = hc_scratch(context, (n * job.blocks.blocks * d + 1) * (int64_t)sizeof(float));
    if (job.sums == NULL) {
        hc_unlock(context);
        return HC_OUT_OF_MEMORY;
    }
    hc_team_run(context->team, hc_threads_for(context, count), backward, &job);
    hc_unlock(context);
    return HC_OK;
}
