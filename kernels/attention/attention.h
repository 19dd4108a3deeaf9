/* Types of the attention kernels, which are compiled once per instruction set.
 *
 * The kernels work on blocks of `columns` columns, a multiple of the vector length. A block is stored as rows of fp32
 * with a distance of `width` elements. The matrix kernel writes a block. If width equals its panel width nr, the matrix
 * kernel also reads the block as a panel. scale is 1 / sqrt(K). */
#ifndef HC_ATTENTION_H
#define HC_ATTENTION_H

#include <stdint.h>

#include "each_isa.h"
#include "hcops.h"

/* Format of the rows of a block, which the matrix kernel reads as a panel of B or packs. */
typedef enum {
    HC_PANEL_F32 = 0,     /* rows of fp32 */
    HC_PANEL_ROUNDED = 1, /* rows of fp32 with values representable in bf16 */
    HC_PANEL_PAIRS = 2,   /* bf16; rows 2i and 2i + 1 are interleaved; an odd last row is paired with zeros */
    /* HC_PANEL_PAIRS for each of three bf16 per number (parts_avx512.h); a panel of B per 32 columns */
    HC_PANEL_PARTS = 3
} hc_panel;

/* Return the number of lanes of a vector of this instruction set. */
typedef int64_t hc_attention_lanes_kernel(void);

/* Compute the online softmax (Milakov & Gimelshein 2018) of a chunk of keys (rows) and a block of queries (columns).
 * Replace scores by p = exp((scores - max) * scale), in place (out_p is scores) or, for HC_PANEL_PARTS, in panels of
 * `panel_bytes`. Update the running max (of scores) and sum, and write the factor that rescales earlier sums to the new
 * max. first: 1 for the first chunk; max, sum and factor are then only written. */
typedef void hc_attention_softmax_kernel(int64_t rows, int64_t columns, int64_t width, float scale, int first, int panel,
                                         float *scores, void *out_p, int64_t panel_bytes, float *max, float *sum,
                                         float *out_factor);

/* After the last chunk, compute lse = max * scale + log(sum), and replace sum by 1 / sum. */
typedef void hc_attention_finish_kernel(int64_t columns, float scale, const float *max, float *sum, float *out_lse);

/* Compute block[i, j] *= factor[j]. */
typedef void hc_attention_rescale_kernel(int64_t rows, int64_t columns, int64_t width, const float *factor, float *block);

/* Compute out[i] = sum over the columns of x[i, :] * y[i, :]. Both arrays have the row stride `stride`. */
typedef void hc_attention_delta_kernel(int64_t rows, int64_t columns, const void *x, int x_type, const void *y, int y_type,
                                       int64_t stride, float *out);

/* Block of queries (rows) times keys (columns). The number of rows is even, except in the last rows of a panel of B. */
typedef struct {
    int64_t rows, columns, width;
    float scale;
    int panel;               /* hc_panel, of out_p and out_ds */
    const float *lse, *delta; /* per row */
    const float *scores;
    float *dp;               /* dP; for HC_PANEL_PAIRS replaced by dS, as rows of fp32 */
    void *out_p, *out_ds;    /* panels of B */
    int64_t panel_bytes;     /* HC_PANEL_PARTS: distance of panels of 32 columns */
    int64_t keys;            /* HC_PANEL_PARTS: valid columns */
    void *out_ds_rows;       /* HC_PANEL_PARTS: dS as panels of A of depth `keys` */
} hc_attention_rows;

/* Compute p = exp(scores * scale - lse[i]) and ds = p * (dp - delta[i]). */
typedef void hc_attention_gradient_kernel(const hc_attention_rows *block);

/* Compute out[i, j] = factor * source[i, j]. */
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
