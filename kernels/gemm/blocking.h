/* Partition of a product over clusters and threads, and into blocks that fit the caches. Pure functions of the
 * sizes. */
#ifndef HC_BLOCKING_H
#define HC_BLOCKING_H

#include <stdint.h>

#include "context.h"
#include "gemm/gemm_kernel.h"

typedef struct {
    int64_t m, n, k;
    int64_t mr, nr;
    int64_t mc, kc;       /* block of A; kc is a multiple of kr, or k */
    int64_t nc;           /* columns of B that each cluster packs per round */
    int64_t chunk;        /* columns of C per block, which is completed before the next */
    int num_threads, num_clusters;
    int clusters_cut_rows; /* 1: clusters divide the rows of C, 0: the columns */
    int row_cuts, column_cuts; /* within a cluster */
    int a_is_small; /* 1: each thread packs all of A, and its part of B in blocks of kc x chunk */
} hc_gemm_plan;

/* Rectangle of C and its thread. */
typedef struct {
    int cluster, first_of_cluster, cluster_threads; /* threads of the plan from first_of_cluster on */
    int64_t cluster_column_start, cluster_column_stop;
    int64_t row_start, row_stop, column_start, column_stop; /* empty if the grid does not use the thread */
    int sums_rows; /* 1: this thread computes the row sums of its rows */
} hc_gemm_part;

/* Make a plan. HC_BAD_ARGUMENT if the requested partition has more parts than threads. */
int hc_gemm_make_plan(const hc_context *context, const hc_gemm_kernel *kernel, int64_t m, int64_t n, int64_t k,
                      const hc_blocking *requested, hc_gemm_plan *out_plan);

/* Change the blocks of a plan for products whose A is read in place and whose k is not split: a chunk of columns of B
 * fills most of the L2 cache, and all blocks of rows are multiplied by it in turn. B is then read once, and A once per
 * chunk. */
void hc_gemm_plan_by_columns(const hc_context *context, const hc_gemm_kernel *kernel, hc_gemm_plan *plan);

hc_gemm_part hc_gemm_part_of(const hc_gemm_plan *plan, int thread);

#endif
