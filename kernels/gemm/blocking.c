/* Rule for the partition and the block sizes of a product without tuning. */
#include "gemm/blocking.h"

#include <stddef.h>

#include "minmax.h"

/* Starting a second thread costs some microseconds. A core computes about this many operations in that time. */
#define FLOP_PER_THREAD 1000000

/* Packing a row of A, or reading a column of B through the caches, costs about as much as multiplying this many columns
 * (rows): 4 elements per cycle against 32 multiply-adds per cycle. */
#define PACKING_COLUMNS 8

/* Reading a column of B, or a row of A, from the memory of another cluster is assumed to cost half as much as packing
 * it. The clusters of a die differ little. `dithc tune-kernels` measures both partitions. */
#define FAR_COLUMNS 4

/* Up to this many rows, packing B costs more than the multiply-adds: 1 to 3 cycles per element including memory access,
 * against 1/32 of a cycle per row. */
#define FEW_ROWS 64

/* Bounds of the memory for packed B. Below the first bound, A would be repacked too often. The second bound holds
 * all of the largest weights of DiT-XL/2 (1,152 x 6,912). */
#define MIN_B_BYTES (4 << 20)
#define MAX_B_BYTES (32 << 20)

static int64_t parts_of(int64_t count, int64_t size) {
    return (count + size - 1) / size;
}

static int64_t round_up(int64_t count, int64_t multiple) {
    return parts_of(count, multiple) * multiple;
}

/* Return the size of blocks that divide `count` as evenly as possible. The size is a multiple of `multiple` and at most
 * `limit`, but at least one `multiple`. */
static int64_t even_blocks(int64_t count, int64_t limit, int64_t multiple) {
    const int64_t blocks = parts_of(hc_max_i64(count, 1), hc_max_i64(limit / multiple * multiple, multiple));
    return round_up(parts_of(hc_max_i64(count, 1), blocks), multiple);
}

/* Select the grid with the lowest cost of its largest part. The cost counts multiply-adds of complete tiles and the
 * packing of each part. */
static void choose_grid(const hc_gemm_plan *plan, int64_t m, int64_t n, int threads, int *out_rows, int *out_columns) {
    const int64_t row_tiles = parts_of(m, plan->mr), column_tiles = parts_of(n, plan->nr);
    int64_t best = INT64_MAX;
    for (int rows = 1; rows <= threads; rows++) {
        const int columns = threads / rows;
        const int64_t tall = parts_of(row_tiles, rows) * plan->mr, wide = parts_of(column_tiles, columns) * plan->nr;
        const int64_t cost = tall * wide + PACKING_COLUMNS * (tall + wide);
        if (cost < best) {
            best = cost;
            *out_rows = rows;
            *out_columns = columns;
        }
    }
}

/* Return the cost per k of the largest part if C is divided among clusters. If rows are divided, a cluster packs its
 * rows of A and all of B. Its rows are in near memory, because a cluster owns the rows of its activations. The other
 * clusters' share of B is in far memory. If columns are divided, a cluster packs all of A and its columns of B. Its
 * columns are in near memory, because a cluster owns the columns of its weights. */
static int64_t cluster_cost(const hc_gemm_plan *plan, int cuts_rows) {
    const int clusters = plan->num_clusters;
    const int64_t row_tiles = parts_of(plan->m, plan->mr), column_tiles = parts_of(plan->n, plan->nr);
    const int64_t tall = (cuts_rows ? parts_of(row_tiles, clusters) : row_tiles) * plan->mr;
    const int64_t wide = (cuts_rows ? column_tiles : parts_of(column_tiles, clusters)) * plan->nr;
    const int64_t shared = cuts_rows ? wide : tall;
    return tall * wide + PACKING_COLUMNS * (tall + wide) + FAR_COLUMNS * (shared - parts_of(shared, clusters));
}

/* Return 1 if all clusters share one packed operand. With one memory node no memory is far, so packing an operand once
 * per cluster has no benefit. (Two clusters on one node, DiT-B/2 in fp32: a training step takes 6.2 s with separate
 * packing, 5.8 s with shared packing.) */
static int pack_together(const hc_context *context, const hc_blocking *requested) {
    return requested->cluster_cut == HC_CUT_BY_COST && context->nodes == NULL;
}

static int cut_among_threads(const hc_context *context, const hc_blocking *requested, hc_gemm_plan *plan) {
    const int max_threads = (int)hc_min_i64(requested->num_threads > 0 ? requested->num_threads : context->num_threads,
                                            context->num_threads);
    const double flop = 2.0 * (double)plan->m * (double)plan->n * (double)plan->k;
    const int is_requested = requested->row_cuts > 0 || requested->column_cuts > 0;
    plan->num_threads = !is_requested && flop < (double)FLOP_PER_THREAD * max_threads ? 1 : max_threads;
    plan->num_clusters =
        plan->num_threads == context->num_threads && !pack_together(context, requested) ? context->num_clusters : 1;
    if (is_requested || (requested->cluster_cut == HC_CUT_ROWS && plan->num_clusters > 1)) {
        plan->a_is_small = 0;
    }
    plan->clusters_cut_rows = requested->cluster_cut != HC_CUT_BY_COST ? requested->cluster_cut == HC_CUT_ROWS
                                                                   : cluster_cost(plan, 1) <= cluster_cost(plan, 0);
    plan->clusters_cut_rows = plan->clusters_cut_rows && !plan->a_is_small;
    const int in_cluster = plan->num_threads / plan->num_clusters;
    if (plan->a_is_small) {
        plan->row_cuts = 1;
        plan->column_cuts = in_cluster;
        return HC_OK;
    }
    const int64_t m = plan->clusters_cut_rows ? parts_of(plan->m, plan->num_clusters) : plan->m;
    const int64_t n = plan->clusters_cut_rows ? plan->n : parts_of(plan->n, plan->num_clusters);
    if (!is_requested) {
        choose_grid(plan, m, n, in_cluster, &plan->row_cuts, &plan->column_cuts);
        return HC_OK;
    }
    plan->row_cuts = requested->row_cuts > 0 ? requested->row_cuts
                                             : (int)hc_max_i64(1, in_cluster / requested->column_cuts);
    plan->column_cuts = requested->column_cuts > 0 ? requested->column_cuts
                                                   : (int)hc_max_i64(1, in_cluster / requested->row_cuts);
    return (int64_t)plan->row_cuts * plan->column_cuts > in_cluster ? HC_BAD_ARGUMENT : HC_OK;
}

/* Rule for zeros in `requested`:
 *
 * kc: the depth for which a panel of B, kc x nr, fits a sixteenth of the L2 cache, and a panel of A, kc x mr, fits half
 * of the L1 cache. If the kernel sets most_depth: all of k up to this depth, else split_depth. The panel of B streams
 * from L2 once per panel of A. With a larger kc, the panel of A exceeds L1. With a smaller kc, C is read and stored
 * more often.
 *
 * mc: the rows for which a block of A, mc x kc, fits an eighth of L2. The block is read once per panel of B, next to
 * the source of the next block, which is prefetched meanwhile. (AVX-512, 2 MB L2: an eighth, 96 to 170 rows, was within
 * the noise of a twentieth, and 5% faster than a quarter.)
 *
 * chunk: the columns for which mc x chunk sums of C fit three eighths of L2. They stay in L2 until all of k is summed
 * and the epilogue is applied. (AVX-512, 1 MB L2, two threads: weight gradients are 6% faster than with a quarter. A
 * quarter cut DiT-B's 768 columns in two, so that blocks of A as deep as all tokens were read again from L3. Other
 * products are within 1%.)
 *
 * If packed A fits a quarter of L2, every thread packs all of A. No two threads then need the same part of B. Each
 * thread packs its part in blocks of kc x chunk just before it multiplies them. B passes from memory to cache once. */
int hc_gemm_make_plan(const hc_context *context, const hc_gemm_kernel *kernel, int64_t m, int64_t n, int64_t k,
                      const hc_blocking *requested, hc_gemm_plan *out_plan) {
    hc_gemm_plan plan = {.m = m, .n = n, .k = k, .mr = kernel->mr(), .nr = kernel->nr()};
    const int64_t padded_k = round_up(hc_max_i64(k, 1), kernel->kr);
    plan.a_is_small = m <= FEW_ROWS && round_up(m, plan.mr) * padded_k * kernel->element_bytes <= context->l2_bytes / 4;
    const int status = cut_among_threads(context, requested, &plan);
    if (status != HC_OK) {
        return status;
    }
    /* Packed elements fill complete cache lines for every kr. */
    const int64_t line = 64 / kernel->element_bytes, depth = kernel->kr % line == 0 ? kernel->kr : kernel->kr * line;
    const int64_t in_l2 = context->l2_bytes / 16 / (plan.nr * kernel->element_bytes);
    const int64_t in_l1 = context->l1_bytes / 2 / (plan.mr * kernel->element_bytes);
    const int64_t fits = hc_min_i64(in_l2, in_l1);
    const int64_t most_depth = kernel->most_depth == 0 ? fits : k <= kernel->most_depth ? k : kernel->split_depth;
    plan.kc = requested->kc > 0 ? round_up(hc_min_i64(requested->kc, padded_k), depth)
                                : even_blocks(k, most_depth, depth);
    plan.kc = hc_min_i64(plan.kc, padded_k);

    const int64_t cluster_m = plan.clusters_cut_rows ? parts_of(m, plan.num_clusters) : m;
    const int64_t cluster_n = plan.clusters_cut_rows ? n : parts_of(n, plan.num_clusters);
    const int64_t share = context->l3_bytes / 2 * plan.num_threads / plan.num_clusters;
    const int64_t b_bytes = hc_min_i64(hc_max_i64(share, MIN_B_BYTES), MAX_B_BYTES);
    plan.nc = requested->nc > 0 ? round_up(hc_min_i64(requested->nc, cluster_n), plan.nr)
                            : even_blocks(cluster_n, b_bytes / (padded_k * kernel->element_bytes), plan.nr);
    if (plan.nc < cluster_n && !plan.a_is_small && requested->row_cuts == 0 && requested->column_cuts == 0) {
        /* Columns are processed in rounds. A thread that owns only columns of one round would idle in the other
         * rounds. */
        plan.row_cuts *= plan.column_cuts;
        plan.column_cuts = 1;
    }
    const int64_t block_bytes = kernel->largest ? context->l2_bytes / 8 * 3 : context->l2_bytes / 8;
    const int64_t part_m = round_up(parts_of(cluster_m, plan.row_cuts), plan.mr);
    plan.mc = requested->mc > 0 ? round_up(hc_min_i64(requested->mc, part_m), plan.mr)
                            : even_blocks(part_m, block_bytes / (plan.kc * kernel->element_bytes), plan.mr);
    if (plan.a_is_small) {
        plan.mc = round_up(m, plan.mr);
        plan.nc = plan.chunk = even_blocks(cluster_n, context->l2_bytes / 4 / (plan.kc * kernel->element_bytes), plan.nr);
        *out_plan = plan;
        return HC_OK;
    }
    const int64_t c_bytes = kernel->dtype == HC_F64 ? 8 : 4;
    const int64_t sums_bytes = kernel->largest ? context->l2_bytes / 2 : context->l2_bytes / 8 * 3;
    const int64_t chunk_bytes = kernel->largest ? context->l2_bytes / 16 * 7 : context->l2_bytes / 4;
    int64_t chunk = sums_bytes / (plan.mc * c_bytes);
    if (kernel->most_depth > 0) {
        chunk = hc_min_i64(chunk, chunk_bytes / (plan.kc * kernel->element_bytes));
    }
    plan.chunk = even_blocks(n, chunk, plan.nr);
    *out_plan = plan;
    return HC_OK;
}

/* Rows of a block. Their sums share the L2 cache with the columns of B. (AMX, 2 MB L2, DiT-B/2: forward products are 2
 * to 16% faster than with blocks of A in the outer loop, and half of L2 for B is up to 20% slower than five eighths.) */
#define ROWS_BY_COLUMNS 128

void hc_gemm_plan_by_columns(const hc_context *context, const hc_gemm_kernel *kernel, hc_gemm_plan *plan) {
    const int clusters = plan->num_clusters;
    const int64_t m = plan->clusters_cut_rows ? parts_of(plan->m, clusters) : plan->m;
    const int64_t n = plan->clusters_cut_rows ? plan->n : parts_of(plan->n, clusters);
    plan->mc = even_blocks(parts_of(m, plan->row_cuts), ROWS_BY_COLUMNS, plan->mr);
    const int64_t of_b = context->l2_bytes / 8 * 5 / (plan->kc * kernel->element_bytes);
    const int64_t of_sums = context->l2_bytes / 8 * 3 / (plan->mc * (int64_t)sizeof(float));
    plan->chunk = even_blocks(parts_of(n, plan->column_cuts), hc_min_i64(of_b, of_sums), plan->nr);
}

hc_gemm_part hc_gemm_part_of(const hc_gemm_plan *plan, int thread) {
    hc_gemm_part part = {0};
    int64_t start = 0, stop = 0;
    for (part.cluster = 0; part.cluster < plan->num_clusters; part.cluster++) {
        hc_part(plan->num_threads, 1, part.cluster, plan->num_clusters, &start, &stop);
        if (thread < stop) {
            break;
        }
    }
    part.first_of_cluster = (int)start;
    part.cluster_threads = (int)(stop - start);

    int64_t row_start = 0, row_stop = plan->m;
    part.cluster_column_stop = plan->n;
    if (plan->clusters_cut_rows) {
        hc_part(plan->m, plan->mr, part.cluster, plan->num_clusters, &row_start, &row_stop);
    } else {
        hc_part(plan->n, plan->nr, part.cluster, plan->num_clusters, &part.cluster_column_start, &part.cluster_column_stop);
    }
    const int place = thread - part.first_of_cluster;
    if (place < plan->row_cuts * plan->column_cuts) {
        hc_part(row_stop - row_start, plan->mr, place / plan->column_cuts, plan->row_cuts, &part.row_start, &part.row_stop);
        hc_part(part.cluster_column_stop - part.cluster_column_start, plan->nr, place % plan->column_cuts, plan->column_cuts,
                &part.column_start, &part.column_stop);
        part.row_start += row_start;
        part.row_stop += row_start;
        part.column_start += part.cluster_column_start;
        part.column_stop += part.cluster_column_start;
        part.sums_rows = place % plan->column_cuts == 0 && (plan->clusters_cut_rows || part.cluster == 0);
    }
    return part;
}
