/* Packing of fp32 for the tile unit: every number as three bf16, x1 + x2 + x3.
 *
 * x1 = bf16(x), x2 = bf16(x - x1), x3 = bf16(x - x1 - x2). The differences are exact in fp32. 24 bits fit three times
 * 8, so the sum of the parts is also exact, unless a part is below 2^-126 and counts as zero. */
#ifndef HC_PACK_F32_AMX_H
#define HC_PACK_F32_AMX_H

#include <stdint.h>

#include "hcops.h"

#define HC_SPLIT_PARTS 3
#define HC_SPLIT_PART_BYTES 2048 /* 32 x 32 bf16: two tiles */
#define HC_SPLIT_STEP_BYTES (HC_SPLIT_PARTS * HC_SPLIT_PART_BYTES)

/* Pack A. A panel is [k / 32][3 parts][32 rows][32 of k]. */
void hc_split_pack_a(int64_t m, int64_t k, const hc_matrix *a, float scale, void *out_panels, float *row_sum);

/* Pack B. A panel is [k / 32][3 parts][16 pairs][2 tiles][16 columns][2 of k]. */
void hc_split_pack_b(int64_t k, int64_t n, const hc_matrix *b, void *out_panels);

/* Pack, and return the largest magnitude like hc_split_largest, without a separate pass. */
uint32_t hc_split_pack_a_max(int64_t m, int64_t k, const hc_matrix *a, float scale, void *out_panels, float *row_sum);
uint32_t hc_split_pack_b_max(int64_t k, int64_t n, const hc_matrix *b, void *out_panels);

/* Return the largest magnitude in a matrix, as fp32 bits without the sign. NaN is larger than inf, and inf is larger
 * than numbers. */
uint32_t hc_split_largest(int64_t rows, int64_t columns, const hc_matrix *x);

#endif
