/* Computation of a matrix product, independent of the instruction set: memory, packing by all threads, and loops over
 * blocks.
 *
 * The threads pack B together, once, into panels that all threads of a cluster read. Each thread packs its own rows of
 * A. A thread processes a block of mc rows, chunk by chunk of columns. It sums all of k into a chunk of C while the
 * chunk is in the L2 cache, and applies the epilogue there. If A is read in place and k is not split, the thread processes
 * all its rows for a chunk of columns of B, which stays in the L2 cache (hc_gemm_plan_by_columns). */
#include "gemm/gemm_job.h"

#include <string.h>

#include "gemm/gemm_range.h"
#include "gemm/packed.h"
#include "team/shares.h"

#define LINE_BYTES 64

/* Return the address of the packed block at depth p and panel `panel` of this round. The order is by blocks of depth,
 * then by panels of all columns start..stop. */
static char *b_block(const hc_gemm_job *job, const hc_gemm_part *part, int64_t p, int64_t panel, int64_t panels) {
    const int64_t deep = hc_min_i64(job->plan.kc, job->padded_k - p);
    return job->b_panels + part->cluster * job->b_stride +
           (p * panels + panel * deep) * job->plan.nr * job->kernel->element_bytes;
}

static void pack_b(hc_gemm_job *job, int64_t deep, int64_t columns, const hc_matrix *b, char *panels) {
    if (job->kernel->largest) {
        hc_gemm_raise_largest(&job->largest_b, job->kernel->pack_b_max(deep, columns, b, panels));
    } else {
        job->kernel->pack_b(deep, columns, b, panels);
    }
}

static void pack_share_of_b(hc_gemm_job *job, const hc_gemm_part *part, int thread, int64_t start, int64_t stop) {
    const hc_gemm_plan *plan = &job->plan;
    const int64_t panels = (stop - start + plan->nr - 1) / plan->nr;
    int64_t first, last;
    hc_part(panels, 1, thread - part->first_of_cluster, part->cluster_threads, &first, &last);
    if (first == last || job->packed) {
        return;
    }
    for (int64_t p = 0; p < plan->k; p += plan->kc) {
        const int64_t deep = hc_min_i64(plan->kc, plan->k - p);
        const int64_t from_column = first * plan->nr, columns = hc_min_i64(last * plan->nr, stop - start) - from_column;
        const hc_matrix b = hc_from(&job->arguments->b, p, start + from_column);
        pack_b(job, deep, columns, &b, b_block(job, part, p, first, panels));
    }
}

static void pack_block_of_a(hc_gemm_job *job, int64_t row, int64_t rows, int64_t p, char *panels, int sums_rows) {
    const int64_t deep = hc_min_i64(job->plan.kc, job->plan.k - p);
    const hc_matrix a = hc_from(&job->arguments->a, row, p);
    float *row_sum = NULL;
    if (sums_rows && job->arguments->out_row_sum_a) {
        const int64_t bytes = job->kernel->dtype == HC_F64 ? 8 : 4;
        row_sum = (float *)(void *)((char *)job->arguments->out_row_sum_a + row * bytes);
        if (p == 0 && !job->arguments->accumulate) {
            memset(row_sum, 0, (size_t)(rows * bytes));
        }
    }
    if (job->kernel->largest) {
        hc_gemm_raise_largest(&job->largest_a, job->kernel->pack_a_max(rows, deep, &a, 1.0f, panels, row_sum));
    } else {
        job->kernel->pack_a(rows, deep, &a, 1.0f, panels, row_sum);
    }
}

/* Return the memory for the sums of a chunk of C: C itself, or scratch memory. */
static char *sums_at(const hc_gemm_job *job, int thread, int64_t row, int64_t column, int64_t *out_stride) {
    *out_stride = job->sums_in_scratch ? job->plan.chunk : job->arguments->out_c.row_stride;
    return job->sums_in_scratch ? job->sums + thread * job->sums_stride
                                : hc_element(&job->arguments->out_c, row, column);
}

/* Return the memory for a thread's packed rows of A from depth p on. */
static char *a_at(const hc_gemm_job *job, int thread, int64_t padded_rows, int64_t p) {
    return job->a_panels + thread * job->a_stride + padded_rows * p * job->kernel->element_bytes;
}

/* Return the bias for the first block of depth, otherwise NULL. */
static const void *bias_at(const hc_gemm_job *job, int64_t column, int64_t p) {
    return job->bias && p == 0 ? (const char *)job->bias + column * job->c_bytes : NULL;
}

/* Describe the part of A that is packed next as runs of lines to prefetch. A run that does not start at a line boundary
 * may miss its last line. */
static hc_gemm_prefetch prefetch_of(const hc_matrix *a, int64_t row, int64_t rows, int64_t p, int64_t deep) {
    const int64_t bytes = hc_size_of(a->dtype);
    const int is_by_rows = a->column_stride == 1;
    const int64_t run = (is_by_rows ? deep : rows) * bytes, runs = is_by_rows ? rows : deep;
    const int64_t stride = (is_by_rows ? a->row_stride : a->column_stride) * bytes;
    const int64_t lines = (run + LINE_BYTES - 1) / LINE_BYTES;
    return (hc_gemm_prefetch){.next = hc_element(a, row, p), .left = lines, .lines = lines,
                              .jump = stride - lines * LINE_BYTES, .remaining = lines * runs, .share = lines * runs};
}

static void multiply_block(const hc_gemm_job *job, int64_t rows, int64_t columns, int64_t deep, const char *a, const char *b,
                           char *sums, int64_t sums_stride, const void *bias, int add, hc_gemm_prefetch *prefetch) {
    if (job->kernel->wide_block) {
        const hc_gemm_block x = {
            .m = rows,
            .n = columns,
            .k = deep,
            .a = a,
            .a_row_bytes = job->in_place ? job->arguments->a.row_stride * hc_size_of(HC_BF16) : 0,
            .b_panels = b,
            .c = sums,
            .ldc = sums_stride,
            .c_dtype = job->rounds ? HC_BF16 : HC_F32,
            .bias = bias,
            .add = add,
            .prefetch = job->in_place ? NULL : prefetch,
        };
        job->kernel->wide_block(&x);
    } else if (job->kernel->block_prefetch && prefetch->share > 0) {
        job->kernel->block_prefetch(rows, columns, deep, a, b, sums, sums_stride, bias, add, prefetch);
    } else {
        job->kernel->block(rows, columns, deep, a, b, sums, sums_stride, bias, add);
    }
}

/* Compute rows row..row + rows of columns start..stop of a part. This round has packed B from column `packed_start`
 * on. */
static void multiply_rows(hc_gemm_job *job, const hc_gemm_part *part, int thread, int64_t row, int64_t rows, int64_t start,
                          int64_t stop, int64_t packed_start, int64_t panels) {
    const hc_gemm_plan *plan = &job->plan;
    const hc_gemm_arguments *arguments = job->arguments;
    const int64_t padded_rows = hc_round_up(rows, plan->mr);
    const int64_t next_rows = hc_min_i64(plan->mc, part->row_stop - row - rows);
    /* With one chunk of columns, each block of A is read once. All blocks are then packed to the same memory, which
     * stays cached. */
    const int is_read_again = stop - start > plan->chunk;
    for (int64_t j = start; j < stop; j += plan->chunk) {
        const int64_t columns = hc_min_i64(plan->chunk, stop - j);
        int64_t sums_stride;
        char *sums = sums_at(job, thread, row, j, &sums_stride);
        for (int64_t p = 0; p < plan->k; p += plan->kc) {
            const int64_t deep = hc_min_i64(plan->kc, plan->k - p), next_p = p + plan->kc;
            char *a = job->in_place ? hc_element(&arguments->a, row, p) : a_at(job, thread, padded_rows, is_read_again ? p : 0);
            if (j == start && !job->in_place) {
                pack_block_of_a(job, row, rows, p, a, part->sums_rows && start == part->column_start);
            }
            hc_gemm_prefetch prefetch = {0};
            if (j == start && next_p < plan->k) {
                prefetch = prefetch_of(&arguments->a, row, rows, next_p, hc_min_i64(plan->kc, plan->k - next_p));
            } else if (j + columns == stop && next_p >= plan->k && next_rows > 0) {
                prefetch = prefetch_of(&arguments->a, row + rows, next_rows, 0, hc_min_i64(plan->kc, plan->k));
            }
            const char *b = job->packed ? hc_packed_b_at(job->packed, p, j)
                                        : b_block(job, part, p, (j - packed_start) / plan->nr, panels);
            multiply_block(job, rows, columns, deep, a, b, sums, sums_stride, bias_at(job, j, p),
                           p > 0 || arguments->accumulate, &prefetch);
        }
        if (job->finish) {
            job->finish(row, j, rows, columns, sums, sums_stride, &arguments->out_c, &arguments->epilogue);
        }
    }
}

/* Compute a part if A is small: all rows of the thread's columns. No other thread needs that part of B. */
static void multiply_small_a(hc_gemm_job *job, const hc_gemm_part *part, int thread) {
    const hc_gemm_plan *plan = &job->plan;
    const hc_gemm_arguments *arguments = job->arguments;
    const int64_t rows = plan->m, padded_rows = hc_round_up(rows, plan->mr);
    char *own = job->b_panels + thread * job->b_stride;
    for (int64_t p = 0; p < plan->k && part->column_start < part->column_stop && !job->in_place; p += plan->kc) {
        pack_block_of_a(job, 0, rows, p, a_at(job, thread, padded_rows, p), part->sums_rows);
    }
    for (int64_t j = part->column_start; j < part->column_stop; j += plan->chunk) {
        const int64_t columns = hc_min_i64(plan->chunk, part->column_stop - j);
        int64_t sums_stride;
        char *sums = sums_at(job, thread, 0, j, &sums_stride);
        for (int64_t p = 0; p < plan->k; p += plan->kc) {
            const int64_t deep = hc_min_i64(plan->kc, plan->k - p);
            const hc_matrix part_of_b = hc_from(&arguments->b, p, j);
            hc_gemm_prefetch no_prefetch = {0};
            const char *a = job->in_place ? hc_element(&arguments->a, 0, p) : a_at(job, thread, padded_rows, p);
            if (!job->packed) {
                pack_b(job, deep, columns, &part_of_b, own);
            }
            const char *b = job->packed ? hc_packed_b_at(job->packed, p, j) : own;
            multiply_block(job, rows, columns, deep, a, b, sums, sums_stride,
                           bias_at(job, j, p), p > 0 || arguments->accumulate, &no_prefetch);
        }
        if (job->finish) {
            job->finish(0, j, rows, columns, sums, sums_stride, &arguments->out_c, &arguments->epilogue);
        }
    }
}

/* Return the number of blocks of rows of a part. */
static int64_t blocks_of(const hc_gemm_plan *plan, const hc_gemm_part *part) {
    return (part->row_stop - part->row_start + plan->mc - 1) / plan->mc;
}

/* Compute the remaining rows of the part of thread `owner` on `thread`, block by block, in the round of columns from
 * `done` on. */
static void multiply_remaining(hc_gemm_job *job, int owner, int thread, int64_t done) {
    const hc_gemm_plan *plan = &job->plan;
    const hc_gemm_part part = hc_gemm_part_of(plan, owner);
    const int64_t packed_start = part.cluster_column_start + done;
    const int64_t packed_stop = hc_min_i64(packed_start + plan->nc, part.cluster_column_stop);
    const int64_t panels = (packed_stop - packed_start + plan->nr - 1) / plan->nr;
    const int64_t start = part.column_start > packed_start ? part.column_start : packed_start;
    const int64_t stop = hc_min_i64(part.column_stop, packed_stop);
    /* Only complete blocks: B passes through the caches once per block, so shorter blocks would cost more than waiting
     * for a complete block. */
    const int64_t blocks = blocks_of(plan, &part);
    int64_t taken;
    while (start < stop && hc_share_take(&job->shares[owner], 1, 1, &taken) > 0) {
        const int64_t row = part.row_start + taken % blocks * plan->mc, rows = hc_min_i64(plan->mc, part.row_stop - row);
        int64_t first = start, last = stop;
        if (job->by_columns) {
            first += taken / blocks * plan->chunk;
            last = hc_min_i64(first + plan->chunk, stop);
        }
        multiply_rows(job, &part, thread, row, rows, first, last, packed_start, panels);
    }
}

/* Take over rows of other threads of the same cluster, which read the same packed B, starting with the next thread. */
static void help_cluster(hc_gemm_job *job, int thread, int64_t done) {
    const hc_gemm_part own = hc_gemm_part_of(&job->plan, thread);
    for (int i = 1; i < own.cluster_threads; i++) {
        const int place = (thread - own.first_of_cluster + i) % own.cluster_threads;
        multiply_remaining(job, own.first_of_cluster + place, thread, done);
    }
}

/* Compute the part of one thread of the plan: packing and, after a barrier, the products, in rounds of nc columns of B.
 * If a run has fewer threads than the plan, each thread computes several parts. Rows are assigned in advance, so that a
 * thread's rows stay in near memory. Idle threads help. */
static void run_job(void *arguments, int thread, int num_threads) {
    hc_gemm_job *job = arguments;
    const hc_gemm_plan *plan = &job->plan;
    if (plan->a_is_small) {
        for (int planned = thread; planned < plan->num_threads; planned += num_threads) {
            const hc_gemm_part part = hc_gemm_part_of(plan, planned);
            multiply_small_a(job, &part, planned);
        }
        return;
    }
    const hc_gemm_part largest = hc_gemm_part_of(plan, 0);
    const int64_t max_columns = largest.cluster_column_stop - largest.cluster_column_start;
    for (int64_t done = 0; done < max_columns; done += plan->nc) {
        for (int planned = thread; planned < plan->num_threads; planned += num_threads) {
            const hc_gemm_part part = hc_gemm_part_of(plan, planned);
            const int64_t start = part.cluster_column_start + done;
            pack_share_of_b(job, &part, planned, start, hc_min_i64(start + plan->nc, part.cluster_column_stop));
            const int64_t chunks = job->by_columns ? (plan->nc + plan->chunk - 1) / plan->chunk : 1;
            hc_share_fill(&job->shares[planned], 0, chunks * blocks_of(plan, &part));
        }
        hc_team_barrier(job->context->team);
        for (int planned = thread; planned < plan->num_threads; planned += num_threads) {
            multiply_remaining(job, planned, planned, done);
        }
        help_cluster(job, thread, done);
        if (done + plan->nc < max_columns) {
            hc_team_barrier(job->context->team);
        }
    }
}

/* Set C = bias, and the row sums of an empty A. */
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

const void *hc_widen_bias(const hc_epilogue *epilogue, int64_t n, float *out_wide) {
    if (epilogue->bias == NULL || epilogue->bias_type != HC_BF16) {
        return epilogue->bias;
    }
    for (int64_t j = 0; j < n; j++) {
        const uint32_t bits = (uint32_t)((const uint16_t *)epilogue->bias)[j] << 16;
        memcpy(out_wide + j, &bits, sizeof(bits));
    }
    return out_wide;
}

/* Largest row stride of an unpacked A. With a longer stride, the rows of a tile map to few sets of the L1 cache, and
 * each row is on a separate page. */
#define MAX_BYTES_IN_PLACE 4096

/* Return 1 if the kernel can read A without packing. */
static int can_stay(const hc_gemm_arguments *x, const hc_gemm_kernel *kernel, const hc_gemm_plan *plan) {
    const int64_t rows = kernel->rows_in_place;
    return rows > 0 && x->a.dtype == HC_BF16 && x->a.column_stride == 1 && x->m % rows == 0 && plan->mr % rows == 0 &&
           x->k % kernel->kr == 0 && x->out_row_sum_a == NULL && x->a.row_stride > 0 && /* 0 means packed panels */
           x->a.row_stride * 2 <= MAX_BYTES_IN_PLACE;
}

int hc_gemm_run(hc_context *context, hc_gemm_job *job) {
    const hc_gemm_arguments *x = job->arguments;
    const int status = hc_gemm_make_plan(context, job->kernel, x->m, x->n, x->k, &x->blocking, &job->plan);
    if (status != HC_OK) {
        return status;
    }
    const hc_gemm_plan *plan = &job->plan;
    job->in_place = can_stay(x, job->kernel, plan);
    job->by_columns = job->in_place && plan->kc >= x->k && !plan->a_is_small && x->blocking.mc == 0;
    if (job->by_columns) {
        hc_gemm_plan_by_columns(context, job->kernel, &job->plan);
    }
    job->rounds = job->kernel->wide_block && x->out_c.dtype == HC_BF16 && !hc_finishes(&x->epilogue) &&
                  plan->kc >= x->k && x->k > 0;
    if (job->rounds) {
        job->sums_in_scratch = 0;
        job->finish = NULL;
    }
    if (hc_packed_b_serves(x->packed_b, job)) {
        job->packed = x->packed_b;
        job->largest_b = job->packed->largest;
    }
    const int64_t page = 4096, bytes = job->kernel->element_bytes;
    job->padded_k = hc_round_up(x->k, job->kernel->kr);
    const int64_t num_b = job->packed ? 0 : plan->a_is_small ? plan->num_threads : plan->num_clusters;
    job->b_stride = hc_round_up((plan->a_is_small ? plan->kc : job->padded_k) * hc_round_up(plan->nc, plan->nr) * bytes,
                                page);
    job->a_stride = hc_round_up(job->padded_k * hc_round_up(plan->mc, plan->mr) * bytes, page);
    job->sums_stride =
        !job->sums_in_scratch ? 0 : hc_round_up((x->k == 0 ? x->n : plan->mc * plan->chunk) * job->c_bytes, page);
    const int64_t bias_bytes = hc_round_up(x->n * job->c_bytes, page);
    const int64_t share_bytes = hc_round_up(plan->num_threads * (int64_t)sizeof(hc_share), page);
    char *scratch = hc_scratch(context, share_bytes + bias_bytes + job->b_stride * num_b +
                                            (job->a_stride + job->sums_stride) * plan->num_threads);
    if (scratch == NULL) {
        return HC_OUT_OF_MEMORY;
    }
    job->shares = (hc_share *)(void *)scratch;
    job->bias = hc_widen_bias(&x->epilogue, x->n, (float *)(void *)(scratch + share_bytes));
    job->b_panels = scratch + share_bytes + bias_bytes;
    job->a_panels = job->b_panels + job->b_stride * num_b;
    job->sums = job->a_panels + job->a_stride * plan->num_threads;
    if (x->k > 0) {
        hc_team_run(context->team, plan->num_threads, run_job, job);
        return HC_OK;
    }
    /* If the sums are in scratch memory, one row of sums serves all rows. */
    fill_without_depth(x, job->bias, job->c_bytes, job->sums_in_scratch ? job->sums : x->out_c.data,
                       job->sums_in_scratch ? 0 : x->out_c.row_stride);
    if (job->finish) {
        job->finish(0, 0, x->m, x->n, job->sums_in_scratch ? job->sums : x->out_c.data,
                    job->sums_in_scratch ? 0 : x->out_c.row_stride, &x->out_c, &x->epilogue);
    }
    return HC_OK;
}
