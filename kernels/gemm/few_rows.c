/* Products with few rows or small depth, for instance of a layer on one vector per image: their selection, and the
 * partition among threads. Packing would cost more than the multiply-adds. Instead, the one large matrix is read
 * once. */
#include "gemm/few_rows_job.h"

#include <string.h>

#include "array.h"

/* Limits up to which reading B once is faster than packing it. (Xeon with AVX-512 and hidden AMX: layers of DiT-S on
 * 16, 32 and 48 images, where both are equal, of DiT-XL on 16 and 32. Not measured with AMX or SME.) */
#define MAX_ROWS 32
#define MAX_DEPTH 32

/* Columns of C per call of the dot-product kernel. They are finished while they are cached. */
#define DOT_COLUMNS 256
/* Rows of C for which A is converted at a time. */
#define DEPTH_ROWS 64
/* Granularity of the partition: columns in complete cache lines, rows in the register blocks of four of the kernel. */
#define COLUMNS_TOGETHER 64
#define ROWS_TOGETHER 4

typedef struct {
    const hc_gemm_job *gemm;
    hc_few_form form;
    float *a, *sums;
    int64_t sums_stride;
} few_job;

hc_few_form hc_few_form_of(const hc_gemm_arguments *x) {
    const hc_blocking *b = &x->blocking;
    const int is_requested = b->mc || b->nc || b->kc || b->row_cuts || b->column_cuts || b->cluster_cut;
    if (x->compute == HC_F64 || x->k == 0 || is_requested) {
        return HC_FEW_NONE;
    }
    const int lines_are_rows = x->b.column_stride == 1, lines_are_columns = x->b.row_stride == 1;
    if (hc_order_rows(x) <= MAX_ROWS) {
        return lines_are_rows ? HC_FEW_SUMS : lines_are_columns ? HC_FEW_DOTS : HC_FEW_NONE;
    }
    const int is_plain = x->out_c.dtype == HC_F32 && x->epilogue.bias == NULL && !hc_finishes(&x->epilogue);
    return x->k <= MAX_DEPTH && lines_are_rows && is_plain ? HC_FEW_DEPTHS : HC_FEW_NONE;
}

static int threads_for(const hc_context *context, const hc_gemm_arguments *x, hc_few_form form) {
    const int threads = hc_threads_for(context, form == HC_FEW_DEPTHS ? x->m * x->n : x->n * x->k);
    return x->blocking.num_threads > 0 ? (int)hc_min_i64(threads, x->blocking.num_threads) : threads;
}

static void part_of(const hc_gemm_arguments *x, hc_few_form form, int thread, int num_threads, int64_t *out_start,
                    int64_t *out_stop) {
    if (form == HC_FEW_DEPTHS) {
        hc_part(x->m, ROWS_TOGETHER, thread, num_threads, out_start, out_stop);
    } else {
        hc_part(x->n, COLUMNS_TOGETHER, thread, num_threads, out_start, out_stop);
    }
}

void hc_few_cut(const hc_context *context, const hc_gemm_arguments *x, hc_few_form form, int thread, int64_t *out_part) {
    const int num_threads = threads_for(context, x, form);
    int64_t start = 0, stop = 0;
    if (thread < num_threads) {
        part_of(x, form, thread, num_threads, &start, &stop);
    }
    if (start < stop) {
        const int by_rows = form == HC_FEW_DEPTHS;
        const int64_t found[] = {by_rows ? start : 0, by_rows ? stop : x->m, by_rows ? 0 : start, by_rows ? x->n : stop};
        memcpy(out_part, found, sizeof(found));
    }
}

/* Round to bf16, to nearest even, and widen to fp32. A nan stays nan. */
static float rounded_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    bits = value != value ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u);
    bits &= 0xffff0000u;
    memcpy(&value, &bits, sizeof(bits));
    return value;
}

/* Load `count` elements of A as fp32, from (row, depth) on with a distance of `stride` elements. */
static void load_a(const hc_gemm_arguments *x, int64_t row, int64_t depth, int64_t stride, int64_t count, float *out) {
    const void *at = hc_element(&x->a, row, depth);
    if (x->a.dtype == HC_F32) {
        const float *from = at;
        for (int64_t i = 0; i < count; i++) {
            out[i] = from[i * stride];
        }
    } else {
        const uint16_t *from = at;
        for (int64_t i = 0; i < count; i++) {
            const uint32_t bits = (uint32_t)from[i * stride] << 16;
            memcpy(out + i, &bits, sizeof(bits));
        }
    }
}

/* Load elements of A as operands: like take, but rounded if products are bf16. */
static void load_operands(const hc_gemm_arguments *x, int64_t row, int64_t depth, int64_t stride, int64_t count,
                          float *out) {
    load_a(x, row, depth, stride, count, out);
    for (int64_t i = 0; x->compute == HC_BF16 && x->a.dtype == HC_F32 && i < count; i++) {
        out[i] = rounded_to_bf16(out[i]);
    }
}

/* Compute the row sums of at most DEPTH_ROWS rows. Each is summed over k in order. */
static void sum_rows(const hc_gemm_arguments *x, int64_t row, int64_t rows) {
    float sums[DEPTH_ROWS] = {0}, column[DEPTH_ROWS];
    if (x->out_row_sum_a == NULL) {
        return;
    }
    for (int64_t p = 0; p < x->k; p++) {
        load_a(x, row, p, x->a.row_stride, rows, column);
        for (int64_t i = 0; i < rows; i++) {
            sums[i] += column[i];
        }
    }
    for (int64_t i = 0; i < rows; i++) {
        x->out_row_sum_a[row + i] = sums[i] + (x->accumulate ? x->out_row_sum_a[row + i] : 0.0f);
    }
}

/* Return 1 if elements of A are operands without conversion. */
static int is_operand(const hc_gemm_arguments *x) {
    return x->a.dtype == HC_F32 && x->compute == HC_F32;
}

static hc_few_rows rows_of_b(const hc_gemm_arguments *x, hc_few_form form) {
    const int kind = x->b.dtype == HC_BF16 ? HC_B_BF16 : x->compute == HC_BF16 ? HC_B_F32_ROUNDED : HC_B_F32;
    const int64_t stride = form == HC_FEW_DOTS ? x->b.column_stride : x->b.row_stride;
    return (hc_few_rows){.m = x->m, .k = x->k, .b_stride = stride, .b_kind = kind, .add = x->accumulate};
}

static void run_few_rows(const few_job *job, int64_t start, int64_t stop) {
    const hc_gemm_arguments *x = job->gemm->arguments;
    const hc_kernels *kernels = job->gemm->context->kernels;
    const float *bias = job->gemm->bias;
    hc_few_rows part = rows_of_b(x, job->form);
    part.a = job->a ? job->a : x->a.data;
    part.a_stride = job->a ? x->k : x->a.row_stride;
    part.a_step = 1;
    const int64_t together = job->form == HC_FEW_DOTS ? DOT_COLUMNS : stop - start;
    for (int64_t j = start; j < stop; j += together) {
        part.n = hc_min_i64(together, stop - j);
        part.b = hc_element(&x->b, 0, j);
        part.c = job->sums ? job->sums + j : hc_element(&x->out_c, 0, j);
        part.c_stride = job->sums ? job->sums_stride : x->out_c.row_stride;
        (job->form == HC_FEW_DOTS ? kernels->few_rows_dots : kernels->few_rows_sums)(&part);
        for (int64_t i = 0; i < x->m && bias; i++) {
            for (int64_t column = 0; column < part.n; column++) {
                part.c[i * part.c_stride + column] += bias[j + column];
            }
        }
        if (job->gemm->finish) {
            job->gemm->finish(0, j, x->m, part.n, part.c, part.c_stride, &x->out_c, &x->epilogue);
        }
    }
}

static void run_few_depths(const few_job *job, int64_t start, int64_t stop) {
    const hc_gemm_arguments *x = job->gemm->arguments;
    const hc_context *context = job->gemm->context;
    float a[MAX_DEPTH * DEPTH_ROWS]; /* columns of A */
    hc_few_rows part = rows_of_b(x, job->form);
    part.a_stride = is_operand(x) ? x->a.row_stride : 1;
    part.a_step = is_operand(x) ? x->a.column_stride : DEPTH_ROWS;
    part.n = x->n;
    part.b = x->b.data;
    part.c_stride = x->out_c.row_stride;
    part.stream = !x->accumulate && (uintptr_t)x->out_c.data % 64 == 0 && x->out_c.row_stride % 16 == 0 &&
                  hc_pass_caches(context, x->m * x->n * (int64_t)sizeof(float));
    for (int64_t row = start; row < stop; row += DEPTH_ROWS) {
        part.m = hc_min_i64(DEPTH_ROWS, stop - row);
        for (int64_t p = 0; !is_operand(x) && p < x->k; p++) {
            load_operands(x, row, p, x->a.row_stride, part.m, a + p * DEPTH_ROWS);
        }
        part.a = is_operand(x) ? hc_element(&x->a, row, 0) : a;
        sum_rows(x, row, part.m);
        part.c = hc_element(&x->out_c, row, 0);
        context->kernels->few_depths(&part);
    }
}

static void run(void *arguments, int thread, int num_threads) {
    const few_job *job = arguments;
    const hc_gemm_arguments *x = job->gemm->arguments;
    int64_t start, stop;
    if (job->a) {
        hc_part(x->k, COLUMNS_TOGETHER, thread, num_threads, &start, &stop);
        for (int64_t row = 0; row < x->m && start < stop; row++) {
            load_operands(x, row, start, x->a.column_stride, stop - start, job->a + row * x->k + start);
        }
        hc_team_barrier(job->gemm->context->team);
    }
    for (int64_t row = 0; thread == 0 && job->form != HC_FEW_DEPTHS && row < x->m; row += DEPTH_ROWS) {
        sum_rows(x, row, hc_min_i64(DEPTH_ROWS, x->m - row));
    }
    part_of(x, job->form, thread, num_threads, &start, &stop);
    if (start < stop) {
        (job->form == HC_FEW_DEPTHS ? run_few_depths : run_few_rows)(job, start, stop);
    }
}

int hc_few_run(hc_context *context, hc_gemm_job *gemm, hc_few_form form) {
    const hc_gemm_arguments *x = gemm->arguments;
    few_job job = {.gemm = gemm, .form = form, .sums_stride = hc_round_up(x->n, 16)};
    const int lies_by_rows = is_operand(x) && (x->a.column_stride == 1 || x->k == 1);
    const int64_t num_a = lies_by_rows || form == HC_FEW_DEPTHS ? 0 : hc_round_up(x->m * x->k, 16);
    const int64_t num_sums = gemm->sums_in_scratch ? x->m * job.sums_stride : 0, num_bias = hc_round_up(x->n, 16);
    float *scratch = hc_scratch(context, (num_a + num_sums + num_bias) * (int64_t)sizeof(float));
    if (scratch == NULL) {
        return HC_OUT_OF_MEMORY;
    }
    gemm->bias = hc_widen_bias(&x->epilogue, x->n, scratch);
    job.a = num_a > 0 ? scratch + num_bias : NULL;
    job.sums = num_sums > 0 ? scratch + num_bias + num_a : NULL;
    hc_team_run(context->team, threads_for(context, x, form), run, &job);
    return HC_OK;
}
