/* How a product is cut: over clusters, over threads, and into blocks that fit caches. Pure functions of sizes. */
#ifndef HC_BLOCKING_H
#define HC_BLOCKING_H

#include <stdint.h>

#include "context.h"
#include "gemm/gemm_kernel.h"

typedef struct {
    int64_t m, n, k;
    int64_t mr, nr;
    int64_t mc, kc;       /* block of A; kc is a multiple of kr */
    int64_t nc;           /* columns of B that are packed at a time, by each cluster */
    int64_t chunk;        /* columns of C that are finished at a time */
    int num_threads, num_clusters;
    int clusters_cut_rows; /* 1: clusters share out the rows of C, 0: the columns */
    int row_cuts, column_cuts; /* within a cluster */
    int a_is_small; /* 1: each thread packs all of A, and B for itself, a chunk of columns by kc at a time */
} hc_gemm_plan;

/* Rectangle of C and its thread. */
typedef struct {
    int cluster, first_of_cluster, cluster_threads; /* threads first_of_cluster ... of the plan */
    int64_t cluster_column_start, cluster_column_stop;
    int64_t row_start, row_stop, column_start, column_stop; /* empty for a thread that the grid leaves over */
    int sums_rows; /* 1: of the threads with these rows, the one that sums them */
} hc_gemm_part;

/* HC_BAD_ARGUMENT when the cuts asked for are more than the threads. */
int hc_gemm_make_plan(const hc_context *context, const hc_gemm_kernel *kernel, int64_t m, int64_t n, int64_t k,
                      const hc_blocking *asked, hc_gemm_plan *out_plan);

hc_gemm_part hc_gemm_part_of(const hc_gemm_plan *plan, int thread);

#endif
