/* Sums over the tokens of each image: blocks of rows as units of work, their partial sums, and the ordered sum of the
 * partial sums. */
#ifndef HC_BLOCKS_H
#define HC_BLOCKS_H

#include "array.h"
#include "context.h"

/* Columns of one image per unit of the final sum: 64 cache lines per row. */
#define HC_SUM_COLUMNS 1024

typedef struct {
    int64_t n, t, d;
    int64_t blocks; /* per image */
} hc_blocks;

static inline hc_blocks hc_blocks_of(int64_t n, int64_t t, int64_t d) {
    return (hc_blocks){n, t, d, (t + HC_BLOCK_ROWS - 1) / HC_BLOCK_ROWS};
}

/* Return the image, the first row (among all images) and the number of rows of a unit of work. */
static inline void hc_block_rows(const hc_blocks *b, int64_t unit, int64_t *out_image, int64_t *out_row, int64_t *out_rows) {
    const int64_t first = unit % b->blocks * HC_BLOCK_ROWS, left = b->t - first;
    *out_image = unit / b->blocks;
    *out_row = *out_image * b->t + first;
    *out_rows = left < HC_BLOCK_ROWS ? left : HC_BLOCK_ROWS;
}

/* Compute this thread's part of out[image, :] = sum over blocks of sums[image, block, :]. The sums of blocks have a
 * distance of `stride`. */
static inline void hc_add_blocks(const hc_kernels *kernels, const hc_blocks *b, int64_t stride, const float *sums, void *out,
                                 int type, int thread, int num_threads) {
    const int64_t parts = (b->d + HC_SUM_COLUMNS - 1) / HC_SUM_COLUMNS;
    int64_t start, stop;
    hc_part(b->n * parts, 1, thread, num_threads, &start, &stop);
    for (int64_t unit = start; unit < stop; unit++) {
        const int64_t image = unit / parts, first = unit % parts * HC_SUM_COLUMNS, left = b->d - first;
        kernels->add_blocks(b->blocks, stride, left < HC_SUM_COLUMNS ? left : HC_SUM_COLUMNS,
                            sums + image * b->blocks * stride + first, hc_out_at(out, image * b->d + first, type), type);
    }
}

#endif
