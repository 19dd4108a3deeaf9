/* Matrix products: the half that knows no instruction set. Checks, plan, packing shared among threads, loops over blocks.
 *
 * Threads pack B together, once, into panels that all threads of a cluster read; each thread packs its own rows of A. A
 * thread then takes a block of mc rows, and in it one chunk of columns after the other: all of k is summed into a chunk of C
 * while that is in the second-level cache, and there it is finished by the epilogue. */
#include <string.h>

#include "context.h"
#include "gemm/blocking.h"
#include "gemm/epilogue.h"

#define LINE_BYTES 64

typedef struct {
    const hc_context *context;
    const hc_gemm_arguments *arguments;
    const hc_gemm_kernel *kernel;
    hc_epilogue_kernel *finish; /* NULL: C is complete once it is summed */
    hc_gemm_plan plan;
    int64_t whole_k;     /* k rounded up to kr */
    int64_t c_bytes;     /* of an element of a sum */
    int in_place;        /* 1: A is not packed */
    int rounds;          /* 1: the kernel rounds its sums to C's bf16 */
    int sums_apart;      /* 1: sums are kept in scratch, because C is bf16 or the epilogue reads what C overwrites */
    char *b_panels, *a_panels, *sums;               /* of cluster or thread 0; the next one's lie as many bytes further: */
    int64_t b_stride, a_stride, sums_stride;
    const void *bias; /* in the type of the sums */
    uint32_t largest_a, largest_b; /* magnitudes of the operands so far, where the kernel is of a limited range */
} gemm_job;

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t round_up(int64_t count, int64_t multiple) {
    return (count + multiple - 1) / multiple * multiple;
}

static int64_t size_of(int dtype) {
    return dtype == HC_F64 ? 8 : dtype == HC_F32 ? 4 : 2;
}

static void *element(const hc_matrix *x, int64_t row, int64_t column) {
    return (char *)x->data + (row * x->row_stride + column * x->column_stride) * size_of(x->dtype);
}

static hc_matrix from(const hc_matrix *x, int64_t row, int64_t column) {
    hc_matrix part = *x;
    part.data = element(x, row, column);
    return part;
}

/* ------------------------------------------------------------------------------------------------------------- the job */

/* Raises *to to the largest magnitude in rows x columns of `x`, just before they are packed: packing then finds them in cache. */
static void note_largest(const gemm_job *job, uint32_t *to, int64_t rows, int64_t columns, const hc_matrix *x) {
    if (job->kernel->largest == NULL) {
        return;
    }
    const uint32_t found = job->kernel->largest(rows, columns, x);
    uint32_t known = __atomic_load_n(to, __ATOMIC_RELAXED);
    while (found > known && !__atomic_compare_exchange_n(to, &known, found, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

/* Panels of the columns start..stop that are packed in this round: block by block of depth, in each all panels of all its
 * columns. */
static char *b_block(const gemm_job *job, const hc_gemm_part *part, int64_t p, int64_t panel, int64_t panels) {
    const int64_t deep = least(job->plan.kc, job->whole_k - p);
    return job->b_panels + part->cluster * job->b_stride +
           (p * panels + panel * deep) * job->plan.nr * job->kernel->element_bytes;
}

static void pack_share_of_b(gemm_job *job, const hc_gemm_part *part, int thread, int64_t start, int64_t stop) {
    const hc_gemm_plan *plan = &job->plan;
    const int64_t panels = (stop - start + plan->nr - 1) / plan->nr;
    int64_t first, last;
    hc_part(panels, 1, thread - part->first_of_cluster, part->cluster_threads, &first, &last);
    if (first == last) {
        return;
    }
    for (int64_t p = 0; p < plan->k; p += plan->kc) {
        const int64_t deep = least(plan->kc, plan->k - p);
        /* Where B is looked through first, so much at a time that packing finds it in the second-level cache. */
        const int64_t fit = job->context->l2_bytes / 4 / (deep * size_of(job->arguments->b.dtype) * plan->nr);
        const int64_t most = job->kernel->largest == NULL ? last - first : fit > 1 ? fit : 1;
        for (int64_t panel = first; panel < last; panel += most) {
            const int64_t from_column = panel * plan->nr;
            const int64_t columns = least(least(panel + most, last) * plan->nr, stop - start) - from_column;
            const hc_matrix b = from(&job->arguments->b, p, start + from_column);
            note_largest(job, &job->largest_b, deep, columns, &b);
            job->kernel->pack_b(deep, columns, &b, b_block(job, part, p, panel, panels));
        }
    }
}

static void pack_block_of_a(gemm_job *job, int64_t row, int64_t rows, int64_t p, char *panels, int sums_rows) {
    const int64_t deep = least(job->plan.kc, job->plan.k - p);
    const hc_matrix a = from(&job->arguments->a, row, p);
    float *row_sum = NULL;
    if (sums_rows && job->arguments->out_row_sum_a) {
        const int64_t bytes = job->kernel->dtype == HC_F64 ? 8 : 4;
        row_sum = (float *)(void *)((char *)job->arguments->out_row_sum_a + row * bytes);
        if (p == 0 && !job->arguments->accumulate) {
            memset(row_sum, 0, (size_t)(rows * bytes));
        }
    }
    note_largest(job, &job->largest_a, rows, deep, &a);
    job->kernel->pack_a(rows, deep, &a, 1.0f, panels, row_sum);
}

/* Where the sums of a chunk of C are kept: in C, or apart. */
static char *sums_at(const gemm_job *job, int thread, int64_t row, int64_t column, int64_t *out_stride) {
    *out_stride = job->sums_apart ? job->plan.chunk : job->arguments->out_c.row_stride;
    return job->sums_apart ? job->sums + thread * job->sums_stride : element(&job->arguments->out_c, row, column);
}

/* Where a thread packs its rows of A from depth p on. */
static char *a_at(const gemm_job *job, int thread, int64_t padded_rows, int64_t p) {
    return job->a_panels + thread * job->a_stride + padded_rows * p * job->kernel->element_bytes;
}

/* The bias is added with the first block of depth. */
static const void *bias_at(const gemm_job *job, int64_t column, int64_t p) {
    return job->bias && p == 0 ? (const char *)job->bias + column * job->c_bytes : NULL;
}

/* The part of A that is packed next, as runs of lines. A run that does not start with a line may miss its last one. */
static hc_gemm_ahead ahead_of(const hc_matrix *a, int64_t row, int64_t rows, int64_t p, int64_t deep) {
    const int64_t bytes = size_of(a->dtype);
    const int is_by_rows = a->column_stride == 1;
    const int64_t run = (is_by_rows ? deep : rows) * bytes, runs = is_by_rows ? rows : deep;
    const int64_t stride = (is_by_rows ? a->row_stride : a->column_stride) * bytes;
    const int64_t lines = (run + LINE_BYTES - 1) / LINE_BYTES;
    return (hc_gemm_ahead){.next = element(a, row, p), .left = lines, .lines = lines, .jump = stride - lines * LINE_BYTES,
                           .remaining = lines * runs, .share = lines * runs};
}

static void multiply_block(const gemm_job *job, int64_t rows, int64_t columns, int64_t deep, const char *a, const char *b,
                           char *sums, int64_t sums_stride, const void *bias, int add, hc_gemm_ahead *ahead) {
    if (job->kernel->wide_block) {
        const hc_gemm_block x = {
            .m = rows,
            .n = columns,
            .k = deep,
            .a = a,
            .a_row_bytes = job->in_place ? job->arguments->a.row_stride * size_of(HC_BF16) : 0,
            .b_panels = b,
            .c = sums,
            .ldc = sums_stride,
            .c_dtype = job->rounds ? HC_BF16 : HC_F32,
            .bias = bias,
            .add = add,
        };
        job->kernel->wide_block(&x);
    } else if (job->kernel->block_ahead && ahead->share > 0) {
        job->kernel->block_ahead(rows, columns, deep, a, b, sums, sums_stride, bias, add, ahead);
    } else {
        job->kernel->block(rows, columns, deep, a, b, sums, sums_stride, bias, add);
    }
}

/* Rows row..row + rows of the thread's columns start..stop, which are packed in this round from column `packed_start` on. */
static void multiply_rows(gemm_job *job, const hc_gemm_part *part, int thread, int64_t row, int64_t start, int64_t stop,
                          int64_t packed_start, int64_t panels) {
    const hc_gemm_plan *plan = &job->plan;
    const hc_gemm_arguments *arguments = job->arguments;
    const int64_t rows = least(plan->mc, part->row_stop - row), padded_rows = round_up(rows, plan->mr);
    const int64_t next_rows = least(plan->mc, part->row_stop - row - rows);
    /* With one chunk of columns each block of A is read once: all of them are packed to the same place, which stays in
     * cache. */
    const int is_read_again = stop - start > plan->chunk;
    for (int64_t j = start; j < stop; j += plan->chunk) {
        const int64_t columns = least(plan->chunk, stop - j);
        int64_t sums_stride;
        char *sums = sums_at(job, thread, row, j, &sums_stride);
        for (int64_t p = 0; p < plan->k; p += plan->kc) {
            const int64_t deep = least(plan->kc, plan->k - p), next_p = p + plan->kc;
            char *a = job->in_place ? element(&arguments->a, row, p) : a_at(job, thread, padded_rows, is_read_again ? p : 0);
            if (j == start && !job->in_place) {
                pack_block_of_a(job, row, rows, p, a, part->sums_rows && start == part->column_start);
            }
            hc_gemm_ahead ahead = {0};
            if (j == start && next_p < plan->k) {
                ahead = ahead_of(&arguments->a, row, rows, next_p, least(plan->kc, plan->k - next_p));
            } else if (j + columns == stop && next_p >= plan->k && next_rows > 0) {
                ahead = ahead_of(&arguments->a, row + rows, next_rows, 0, least(plan->kc, plan->k));
            }
            multiply_block(job, rows, columns, deep, a, b_block(job, part, p, (j - packed_start) / plan->nr, panels), sums,
                           sums_stride, bias_at(job, j, p), p > 0 || arguments->accumulate, &ahead);
        }
        if (job->finish) {
            job->finish(row, j, rows, columns, sums, sums_stride, &arguments->out_c, &arguments->epilogue);
        }
    }
}

/* The same where A is small: all of its rows, for the thread's columns, whose part of B nobody else needs. */
static void multiply_small_a(gemm_job *job, const hc_gemm_part *part, int thread) {
    const hc_gemm_plan *plan = &job->plan;
    const hc_gemm_arguments *arguments = job->arguments;
    const int64_t rows = plan->m, padded_rows = round_up(rows, plan->mr);
    char *b = job->b_panels + thread * job->b_stride;
    for (int64_t p = 0; p < plan->k && part->column_start < part->column_stop && !job->in_place; p += plan->kc) {
        pack_block_of_a(job, 0, rows, p, a_at(job, thread, padded_rows, p), part->sums_rows);
    }
    for (int64_t j = part->column_start; j < part->column_stop; j += plan->chunk) {
        const int64_t columns = least(plan->chunk, part->column_stop - j);
        int64_t sums_stride;
        char *sums = sums_at(job, thread, 0, j, &sums_stride);
        for (int64_t p = 0; p < plan->k; p += plan->kc) {
            const int64_t deep = least(plan->kc, plan->k - p);
            const hc_matrix part_of_b = from(&arguments->b, p, j);
            hc_gemm_ahead nothing = {0};
            const char *a = job->in_place ? element(&arguments->a, 0, p) : a_at(job, thread, padded_rows, p);
            note_largest(job, &job->largest_b, deep, columns, &part_of_b);
            job->kernel->pack_b(deep, columns, &part_of_b, b);
            multiply_block(job, rows, columns, deep, a, b, sums, sums_stride,
                           bias_at(job, j, p), p > 0 || arguments->accumulate, &nothing);
        }
        if (job->finish) {
            job->finish(0, j, rows, columns, sums, sums_stride, &arguments->out_c, &arguments->epilogue);
        }
    }
}

/* The product on one of the threads of the plan: packing and, after a barrier, the rest, in rounds of nc columns of B. In a
 * run with fewer threads than the plan has, each thread plays several. */
static void run_job(void *arguments, int thread, int num_threads) {
    gemm_job *job = arguments;
    const hc_gemm_plan *plan = &job->plan;
    if (plan->a_is_small) {
        for (int played = thread; played < plan->num_threads; played += num_threads) {
            const hc_gemm_part part = hc_gemm_part_of(plan, played);
            multiply_small_a(job, &part, played);
        }
        return;
    }
    const hc_gemm_part largest = hc_gemm_part_of(plan, 0);
    const int64_t most_columns = largest.cluster_column_stop - largest.cluster_column_start;
    for (int64_t done = 0; done < most_columns; done += plan->nc) {
        for (int played = thread; played < plan->num_threads; played += num_threads) {
            const hc_gemm_part part = hc_gemm_part_of(plan, played);
            const int64_t start = part.cluster_column_start + done;
            pack_share_of_b(job, &part, played, start, least(start + plan->nc, part.cluster_column_stop));
        }
        hc_team_barrier(job->context->team);
        for (int played = thread; played < plan->num_threads; played += num_threads) {
            const hc_gemm_part part = hc_gemm_part_of(plan, played);
            const int64_t packed_start = part.cluster_column_start + done;
            const int64_t packed_stop = least(packed_start + plan->nc, part.cluster_column_stop);
            const int64_t panels = (packed_stop - packed_start + plan->nr - 1) / plan->nr;
            const int64_t start = part.column_start > packed_start ? part.column_start : packed_start;
            const int64_t stop = least(part.column_stop, packed_stop);
            for (int64_t row = part.row_start; row < part.row_stop && start < stop; row += plan->mc) {
                multiply_rows(job, &part, played, row, start, stop, packed_start, panels);
            }
        }
        if (done + plan->nc < most_columns) {
            hc_team_barrier(job->context->team);
        }
    }
}

/* ------------------------------------------------------------------------------------------------------------ the door */

static int is_operand(int64_t rows, int64_t columns, const hc_matrix *x, int compute) {
    const int type_fits = compute == HC_F64 ? x->dtype == HC_F64 : x->dtype == HC_F32 || x->dtype == HC_BF16;
    const int runs = x->row_stride == 1 || x->column_stride == 1 || rows <= 1 || columns <= 1;
    return type_fits && runs && (x->data != NULL || rows == 0 || columns == 0);
}

static int takes_epilogue_type(int compute, int dtype) {
    return compute == HC_F64 ? dtype == HC_F64 : dtype == HC_F32 || dtype == HC_BF16;
}

static int finishes(const hc_epilogue *e) {
    return e->out_before != NULL || e->gelu || e->gelu_gradient_at != NULL || e->gate != NULL || e->residual != NULL;
}

static int is_wrong(const hc_gemm_arguments *x) {
    const hc_epilogue *e = &x->epilogue;
    const hc_blocking *b = &x->blocking;
    if (x->m < 0 || x->n < 0 || x->k < 0 || (x->compute != HC_F32 && x->compute != HC_BF16 && x->compute != HC_F64) ||
        !is_operand(x->m, x->k, &x->a, x->compute) || !is_operand(x->k, x->n, &x->b, x->compute) ||
        !is_operand(x->m, x->n, &x->out_c, x->compute) || (x->out_c.column_stride != 1 && x->n > 1)) {
        return 1;
    }
    if (x->accumulate && (x->out_c.dtype == HC_BF16 || e->bias != NULL || finishes(e))) {
        return 1;
    }
    if ((e->bias != NULL && !takes_epilogue_type(x->compute, e->bias_type)) ||
        (e->gate != NULL && (!takes_epilogue_type(x->compute, e->gate_type) || e->rows_per_gate < 1)) ||
        (e->residual != NULL && !takes_epilogue_type(x->compute, e->residual_type))) {
        return 1;
    }
    return b->mc < 0 || b->nc < 0 || b->kc < 0 || b->row_cuts < 0 || b->column_cuts < 0 || b->num_threads < 0;
}

/* C = bias, and the row sums of an empty A. */
static void fill_without_depth(const hc_gemm_arguments *x, const void *bias, int64_t c_bytes, char *sums, int64_t sums_stride) {
    for (int64_t i = 0; i < x->m && !x->accumulate; i++) {
        for (int64_t j = 0; j < x->n; j++) {
            char *at = sums + (i * sums_stride + j) * c_bytes;
            if (bias) {
                memcpy(at, (const char *)bias + j * c_bytes, (size_t)c_bytes);
            } else {
                memset(at, 0, (size_t)c_bytes);
            }
        }
    }
    if (x->out_row_sum_a && !x->accumulate) {
        memset(x->out_row_sum_a, 0, (size_t)(x->m * c_bytes));
    }
}

/* bf16 bias as fp32, in scratch memory. */
static const void *widen_bias(const hc_epilogue *epilogue, int64_t n, float *out_wide) {
    if (epilogue->bias == NULL || epilogue->bias_type != HC_BF16) {
        return epilogue->bias;
    }
    for (int64_t j = 0; j < n; j++) {
        const uint32_t bits = (uint32_t)((const uint16_t *)epilogue->bias)[j] << 16;
        memcpy(out_wide + j, &bits, sizeof(bits));
    }
    return out_wide;
}

/* A longer stride lets the rows of a tile fall on few sets of the first-level cache, and each on its own page. */
#define MOST_BYTES_IN_PLACE 4096

/* 1: the kernel reads A where it is. */
static int can_stay(const hc_gemm_arguments *x, const hc_gemm_kernel *kernel, const hc_gemm_plan *plan) {
    const int64_t rows = kernel->rows_in_place;
    return rows > 0 && x->a.dtype == HC_BF16 && x->a.column_stride == 1 && x->m % rows == 0 && plan->mr % rows == 0 &&
           x->k % kernel->kr == 0 && x->out_row_sum_a == NULL && x->a.row_stride * 2 <= MOST_BYTES_IN_PLACE;
}

static int run_locked(hc_context *context, gemm_job *job) {
    const hc_gemm_arguments *x = job->arguments;
    const int status = hc_gemm_make_plan(context, job->kernel, x->m, x->n, x->k, &x->blocking, &job->plan);
    if (status != HC_OK) {
        return status;
    }
    const hc_gemm_plan *plan = &job->plan;
    job->in_place = can_stay(x, job->kernel, plan);
    job->rounds = job->kernel->wide_block && x->out_c.dtype == HC_BF16 && !finishes(&x->epilogue) &&
                  plan->kc >= x->k && x->k > 0;
    if (job->rounds) {
        job->sums_apart = 0;
        job->finish = NULL;
    }
    const int64_t page = 4096, bytes = job->kernel->element_bytes;
    job->whole_k = round_up(x->k, job->kernel->kr);
    const int64_t num_b = plan->a_is_small ? plan->num_threads : plan->num_clusters;
    job->b_stride = round_up((plan->a_is_small ? plan->kc : job->whole_k) * round_up(plan->nc, plan->nr) * bytes, page);
    job->a_stride = round_up(job->whole_k * round_up(plan->mc, plan->mr) * bytes, page);
    job->sums_stride = !job->sums_apart ? 0 : round_up((x->k == 0 ? x->n : plan->mc * plan->chunk) * job->c_bytes, page);
    const int64_t bias_bytes = round_up(x->n * job->c_bytes, page);
    char *scratch = hc_scratch(context, bias_bytes + job->b_stride * num_b +
                                            (job->a_stride + job->sums_stride) * plan->num_threads);
    if (scratch == NULL) {
        return HC_OUT_OF_MEMORY;
    }
    job->bias = widen_bias(&x->epilogue, x->n, (float *)(void *)scratch);
    job->b_panels = scratch + bias_bytes;
    job->a_panels = job->b_panels + job->b_stride * num_b;
    job->sums = job->a_panels + job->a_stride * plan->num_threads;
    if (x->k > 0) {
        hc_team_run(context->team, plan->num_threads, run_job, job);
        return HC_OK;
    }
    /* One row of sums serves all rows when they are kept apart. */
    fill_without_depth(x, job->bias, job->c_bytes, job->sums_apart ? job->sums : x->out_c.data,
                       job->sums_apart ? 0 : x->out_c.row_stride);
    if (job->finish) {
        job->finish(0, 0, x->m, x->n, job->sums_apart ? job->sums : x->out_c.data, job->sums_apart ? 0 : x->out_c.row_stride,
                    &x->out_c, &x->epilogue);
    }
    return HC_OK;
}

/* Below this, packing, which writes half as much again as for fp32, and padding to tiles would cost what the products gain. */
#define LEAST_IN_PARTS 64

static int gains_from_parts(const hc_gemm_arguments *x) {
    return x->m >= LEAST_IN_PARTS && x->n >= LEAST_IN_PARTS && x->k >= LEAST_IN_PARTS;
}

/* 1: a product in parts keeps fp32's error, given the largest magnitudes. No sum of them overflows, and what is lost below 2^-126
 * is small beside the largest product, if not beside the smallest. */
static int is_in_range(uint32_t largest_a, uint32_t largest_b, int64_t k) {
    const int bias = 127, a = (int)(largest_a >> 23) - bias, b = (int)(largest_b >> 23) - bias;
    int depth = 0;
    while (k >> depth > 0) {
        depth++;
    }
    /* a and b are exponents: magnitudes are below 2^(a + 1) and 2^(b + 1). A part is rounded up by less than 2^-8. */
    if (a > 125 || b > 125 || a + b + depth + 3 > 127) {
        return 0;
    }
    return largest_a == 0 || largest_b == 0 || (a >= -100 && b >= -100 && a + b >= -90);
}

/* 1: a product that is found out of range cannot be done again, as it has overwritten what it reads. */
static int needs_operands_twice(const hc_gemm_arguments *x) {
    const hc_epilogue *e = &x->epilogue;
    return x->accumulate || e->residual == x->out_c.data || e->gelu_gradient_at == x->out_c.data;
}

/* Looks through both operands, by lines. */
static void find_largest(void *arguments, int thread, int num_threads) {
    gemm_job *job = arguments;
    const hc_gemm_arguments *x = job->arguments;
    int64_t start, stop;
    if (x->a.column_stride == 1) {
        hc_part(x->m, 1, thread, num_threads, &start, &stop);
        const hc_matrix a = from(&x->a, start, 0);
        note_largest(job, &job->largest_a, stop - start, x->k, &a);
    } else {
        hc_part(x->k, 1, thread, num_threads, &start, &stop);
        const hc_matrix a = from(&x->a, 0, start);
        note_largest(job, &job->largest_a, x->m, stop - start, &a);
    }
    if (x->b.column_stride == 1) {
        hc_part(x->k, 1, thread, num_threads, &start, &stop);
        const hc_matrix b = from(&x->b, start, 0);
        note_largest(job, &job->largest_b, stop - start, x->n, &b);
    } else {
        hc_part(x->n, 1, thread, num_threads, &start, &stop);
        const hc_matrix b = from(&x->b, 0, start);
        note_largest(job, &job->largest_b, x->k, stop - start, &b);
    }
}

static int has_parts_in_range(hc_context *context, const hc_gemm_kernel *split, const hc_gemm_arguments *x) {
    gemm_job job = {.context = context, .arguments = x, .kernel = split};
    hc_team_run(context->team, x->blocking.num_threads, find_largest, &job);
    return is_in_range(job.largest_a, job.largest_b, x->k);
}

static const hc_gemm_kernel *kernel_of(const hc_kernels *kernels, int compute) {
    return compute == HC_F64 ? kernels->gemm_f64 : compute == HC_BF16 ? kernels->gemm_bf16 : kernels->gemm_f32;
}

static gemm_job job_of(const hc_context *context, const hc_gemm_arguments *x, const hc_gemm_kernel *kernel) {
    const hc_epilogue *e = &x->epilogue;
    const int overwrites = e->residual == x->out_c.data || e->gelu_gradient_at == x->out_c.data;
    gemm_job job = {
        .context = context,
        .arguments = x,
        .kernel = kernel,
        .c_bytes = x->compute == HC_F64 ? 8 : 4,
        .sums_apart = x->out_c.dtype == HC_BF16 || overwrites,
    };
    if (finishes(e) || job.sums_apart) {
        job.finish = x->compute == HC_F64 ? hc_epilogue_f64 : context->kernels->epilogue;
    }
    return job;
}

int hc_gemm(hc_context *context, const hc_gemm_arguments *arguments) {
    if (context == NULL || arguments == NULL || is_wrong(arguments)) {
        return HC_BAD_ARGUMENT;
    }
    const hc_gemm_arguments *x = arguments;
    if (x->m == 0 || x->n == 0) {
        /* Row sums of A are asked for even where C has no columns. */
        return x->m > 0 && x->out_row_sum_a ? HC_BAD_ARGUMENT : HC_OK;
    }
    const hc_gemm_kernel *split = x->compute == HC_F32 && gains_from_parts(x) ? context->kernels->gemm_f32_split : NULL;
    hc_lock(context);
    int done = 0, status = HC_OK;
    if (split && (!needs_operands_twice(x) || has_parts_in_range(context, split, x))) {
        gemm_job job = job_of(context, x, split);
        status = run_locked(context, &job);
        done = status != HC_OK || is_in_range(job.largest_a, job.largest_b, x->k);
    }
    if (!done) {
        gemm_job job = job_of(context, x, kernel_of(context->kernels, x->compute));
        status = run_locked(context, &job);
    }
    hc_unlock(context);
    return status;
}
