/* Types of the attention kernels that are compiled once per instruction set.
 *
 * They work on blocks of `columns` columns, a multiple of the vector length, stored as rows of fp32 that are `width`
 * apart: what the matrix kernel wrote, and, where width is its panel width nr, what it reads next. scale is 1 /
 * sqrt(K). */
#ifndef HC_ATTENTION_H
#define HC_ATTENTION_H

#include <stdint.h>

#include "each_isa.h"
#include "hcops.h"

/* How the rows of a block are left for the matrix kernel, as its panel of B or for its pack function. */
typedef enum {
    HC_PANEL_F32 = 0,     /* rows of fp32 */
    HC_PANEL_ROUNDED = 1, /* rows of fp32 that hold values of bf16 */
    HC_PANEL_PAIRS = 2,   /* bf16; rows 2i and 2i + 1 interleaved; an odd last row is paired with zeros */
    /* the same of each of three bf16 a number (parts_avx512.h), a panel of B for every 32 columns */
    HC_PANEL_PARTS = 3
} hc_panel;

/* The number of lanes of this instruction set's vectors. */
typedef int64_t hc_attention_lanes_kernel(void);

/* A chunk of keys (rows) of a block of queries (columns), online softmax (Milakov & Gimelshein 2018). Replaces
 * scores by p = exp((scores - max) * scale), in place (out_p is scores) or, for HC_PANEL_PARTS, in panels of
 * `panel_bytes`. Updates the running max (of scores) and sum, and returns the factor that rescales earlier sums to
 * the new max. first: no earlier chunk exists, and max, sum and factor are only written. */
typedef void hc_attention_softmax_kernel(int64_t rows, int64_t columns, int64_t width, float scale, int first, int panel,
                                         float *scores, void *out_p, int64_t panel_bytes, float *max, float *sum,
                                         float *out_factor);

/* After the last chunk: lse = max * scale + log(sum), and sum = 1 / sum in place. */
typedef void hc_attention_finish_kernel(int64_t columns, float scale, const float *max, float *sum, float *out_lse);

/* block[i, j] *= factor[j] */
typedef void hc_attention_rescale_kernel(int64_t rows, int64_t columns, int64_t width, const float *factor, float *block);

/* out[i] = sum over the columns of x[i, :] * y[i, :]; both of row stride `stride`. */
typedef void hc_attention_delta_kernel(int64_t rows, int64_t columns, const void *x, int x_type, const void *y, int y_type,
                                       int64_t stride, float *out);

/* Queries (rows) times a block of keys (columns). The number of rows is even, except for the last rows of a panel of
 * B. */
typedef struct {
    int64_t rows, columns, width;
    float scale;
    int panel;               /* hc_panel, of out_p and out_ds */
    const float *lse, *delta; /* of each row */
    const float *scores;
    float *dp;               /* for HC_PANEL_PAIRS it becomes ds, as rows of fp32 */
    void *out_p, *out_ds;    /* panels of B */
    int64_t panel_bytes;     /* HC_PANEL_PARTS: from one panel of 32 columns to the next; */
    int64_t keys;            /* columns that exist; */
    void *out_ds_rows;       /* ds also as panels of A of depth `keys` */
} hc_attention_rows;

/* p = exp(scores * scale - lse[i]) and ds = p * (dp - delta[i]) */
typedef void hc_attention_gradient_kernel(const hc_attention_rows *block);

/* out[i, j] = factor * source[i, j] */
typedef void hc_attention_store_kernel(int64_t rows, int64_t columns, float factor, const float *source,
                                       int64_t source_stride, void *out, int out_type, int64_t out_stride);

#define HC_DECLARE(isa)                                                                                                    \
    hc_attention_lanes_kernel hc_attention_lanes_##isa;                                                                    \
    hc_attention_softmax_kernel hc_attention_softmax_##isa;                                                                \
    hc_attention_finish_kernel hc_attention_finish_##isa;                                                                  \
    hc_attention_rescale_kernel hc_attention_rescale_##isa;                                                                \
    hc_attention_delta_kernel hc_attention_delta_##isa;                                                                    \
    hc_attention_gradient_kernel hc_attention_gradient_##isa;                                                              \
    hc_attention_store_kernel hc_attention_store_##isa;
HC_EACH_ISA(HC_DECLARE)
#undef HC_DECLARE

#endif
