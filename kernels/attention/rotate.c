/* Norm and rotation of heads: argument checks, the partition of the tokens among threads, the copy of v, and the sums
 * of the weight gradients. */
#include <stddef.h>
#include <string.h>

#include "norm/blocks.h"

typedef struct {
    const hc_kernels *kernels;
    hc_team *team;
    hc_blocks blocks;
    hc_rotate_block all; /* the arrays, as one block with all rows */
    int backward;
    const float *of_query, *of_key;                      /* weights of the caller; NULL: no norm */
    float *weights;                                      /* the same weights in the order of the kernels */
    float *sums;                                         /* backward: (units, 4 * half), partial sums */
    float *out_dquery_weight, *out_dkey_weight, *totals; /* weight gradients, and their sums in kernel order */
} rotate_job;

static int64_t half_of(const rotate_job *job) {
    return (job->all.width + 1) / 2;
}

/* Copy v, or its gradient, unchanged. */
static void copy_values(const hc_rotate_block *b, const void *source) {
    const int64_t d = b->heads * b->width, bytes = d * hc_element_bytes(b->type);
    for (int64_t row = 0; row < b->rows; row++) {
        memcpy(hc_out_at(b->out, (3 * row + 2) * d, b->type), hc_at(source, (3 * row + 2) * d, b->type), (size_t)bytes);
    }
}

/* Sum this thread's part of the weight gradients over the units, and interleave the pairs. */
static void add_sums(const rotate_job *job, int thread, int num_threads) {
    const int64_t width = job->all.width, half = half_of(job), units = job->blocks.n * job->blocks.blocks;
    int64_t start, stop;
    hc_part(4 * half, 16, thread, num_threads, &start, &stop);
    job->kernels->add_blocks(units, 4 * half, stop - start, job->sums + start, job->totals + start, HC_F32);
    for (int64_t i = start; i < stop; i++) {
        float *out = i < 2 * half ? job->out_dquery_weight : job->out_dkey_weight;
        const int64_t in_pair = i % (2 * half) / half, at = 2 * (i % half) + in_pair;
        if (at < width) {
            out[at] = job->totals[i];
        }
    }
}

static void rotate(void *arguments, int thread, int num_threads) {
    const rotate_job *job = arguments;
    const int64_t half = half_of(job), row_elements = 3 * job->blocks.d;
    int64_t start, stop, image, row;
    hc_part(job->blocks.n * job->blocks.blocks, 1, thread, num_threads, &start, &stop);
    for (int64_t unit = start; unit < stop; unit++) {
        hc_rotate_block b = job->all;
        hc_block_rows(&job->blocks, unit, &image, &row, &b.rows);
        const int64_t angles = (row - image * job->blocks.t) * (b.width / 2);
        b.cos = b.cos == NULL ? NULL : b.cos + angles;
        b.sin = b.sin == NULL ? NULL : b.sin + angles;
        b.qkv = b.qkv == NULL ? NULL : hc_at(b.qkv, row * row_elements, b.type);
        b.dout = b.dout == NULL ? NULL : hc_at(b.dout, row * row_elements, b.type);
        b.out = hc_out_at(b.out, row * row_elements, b.type);
        b.out_dweights = job->sums == NULL ? NULL : job->sums + unit * 4 * half;
        if (b.out_dweights != NULL) {
            memset(b.out_dweights, 0, (size_t)(4 * half) * sizeof(float));
        }
        if (job->backward) {
            job->kernels->rotate_heads_backward(&b);
        } else {
            job->kernels->rotate_heads_forward(&b);
        }
        copy_values(&b, job->backward ? b.dout : b.qkv);
    }
    if (job->sums != NULL) {
        hc_team_barrier(job->team);
        add_sums(job, thread, num_threads);
    }
}

/* Split the weights into the first and the second elements of all pairs. Pad an odd width with 0. */
static void split_weights(const rotate_job *job) {
    const int64_t width = job->all.width, half = half_of(job);
    for (int64_t i = 0; i < 4 * half; i++) {
        const float *weight = i < 2 * half ? job->of_query : job->of_key;
        const int64_t at = 2 * (i % half) + i % (2 * half) / half;
        job->weights[i] = at < width ? weight[at] : 0.0f;
    }
}

static int run(hc_context *context, rotate_job *job) {
    const int64_t units = job->blocks.n * job->blocks.blocks, of_weights = 4 * half_of(job);
    const int with_norm = job->of_query != NULL;
    job->kernels = context->kernels;
    job->team = context->team;
    hc_lock(context);
    if (with_norm) {
        float *scratch = hc_scratch(context, (2 + (job->backward ? units : 0)) * of_weights * (int64_t)sizeof(float));
        if (scratch == NULL) {
            hc_unlock(context);
            return HC_OUT_OF_MEMORY;
        }
        job->weights = scratch;
        job->totals = scratch + of_weights;
        job->sums = job->backward ? scratch + 2 * of_weights : NULL;
        job->all.weights = job->weights;
        split_weights(job);
    }
    hc_team_run(context->team, hc_threads_for(context, job->blocks.n * job->blocks.t * 3 * job->blocks.d), rotate, job);
    hc_unlock(context);
    return HC_OK;
}

/* Return the number of elements of qkv, or -1 if sizes, tables or weights are inconsistent. */
static int64_t elements_of(const hc_context *context, int64_t n, int64_t t, int64_t h, int64_t k, const float *cos,
                           const float *sin, const float *query_weight, const float *key_weight) {
    const int64_t of_token = hc_count(3, h, k);
    if (!hc_is_context(context) || of_token <= 0 || (cos == NULL) != (sin == NULL) || (cos != NULL && k % 2 != 0) ||
        (query_weight == NULL) != (key_weight == NULL)) {
        return -1;
    }
    return hc_count(n, t, of_token);
}

int hc_rotate_heads_forward(hc_context *context, int64_t n, int64_t t, int64_t h, int64_t k, float eps, const float *cos,
                            const float *sin, const float *query_weight, const float *key_weight, const void *qkv, void *out,
                            int type) {
    const int64_t count = elements_of(context, n, t, h, k, cos, sin, query_weight, key_weight);
    if (count < 0 || !hc_is_array(qkv, count, type) || !hc_is_array(out, count, type)) {
        return HC_BAD_ARGUMENT;
    }
    if (count == 0) {
        return HC_OK;
    }
    rotate_job job = {.blocks = hc_blocks_of(n, t, h * k), .of_query = query_weight, .of_key = key_weight};
    job.all = (hc_rotate_block){.heads = h, .width = k, .eps = eps, .type = type, .cos = cos, .sin = sin, .qkv = qkv, .out = out};
    return run(context, &job);
}

int hc_rotate_heads_backward(hc_context *context, int64_t n, int64_t t, int64_t h, int64_t k, float eps, const float *cos,
                             const float *sin, const float *query_weight, const float *key_weight, const void *dout,
                             const void *qkv, void *out_dqkv, int type, float *out_dquery_weight, float *out_dkey_weight) {
    const int64_t count = elements_of(context, n, t, h, k, cos, sin, query_weight, key_weight);
    const int with_norm = query_weight != NULL;
    if (count < 0 || !hc_is_array(dout, count, type) || !hc_is_array(out_dqkv, count, type) ||
        (with_norm && (!hc_is_array(qkv, count, type) || out_dquery_weight == NULL || out_dkey_weight == NULL))) {
        return HC_BAD_ARGUMENT;
    }
    if (count == 0 && !with_norm) {
        return HC_OK;
    }
    rotate_job job = {.blocks = hc_blocks_of(n, t, h * k), .backward = 1, .of_query = query_weight, .of_key = key_weight,
                      .out_dquery_weight = out_dquery_weight, .out_dkey_weight = out_dkey_weight};
    job.all = (hc_rotate_block){.heads = h, .width = k, .eps = eps, .type = type, .cos = cos, .sin = sin,
                                .qkv = with_norm ? qkv : NULL, .dout = dout, .out = out_dqkv};
    return run(context, &job);
}
