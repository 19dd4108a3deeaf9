/* Packing for the bf16 matrix kernels of x86. VDPBF16PS and TDPBF16PS both read pairs of adjacent k.
 *
 * VCVTNE2PS2BF16 rounds fp32 to nearest even and treats denormals as zero, as both multiply instructions do. For every
 * other value, the result equals torch's .bfloat16(). */
#ifndef HC_PACK_BF16_H
#define HC_PACK_BF16_H

#include <stdint.h>

#include "hcops.h"

/* Pack B for both instructions. A panel is [k / 2][16 tiles columns][2 of k], with k padded to a multiple of kr (2 to
 * 32, even). */
void hc_pack_bf16_b(int64_t k, int64_t n, const hc_matrix *b, int64_t kr, int64_t tiles, void *out_panels);

/* Pack A for TDPBF16PS. A panel is [k / 32][32 rows][32 of k], so that 16 rows of 32 are one tile of 1,024 consecutive
 * bytes. */
void hc_pack_bf16_a_tiles(int64_t m, int64_t k, const hc_matrix *a, float scale, void *out_panels, float *row_sum);

/* Pack A for VDPBF16PS. A panel is [k / 2][12 rows][2 of k]. */
void hc_pack_bf16_a_pairs(int64_t m, int64_t k, const hc_matrix *a, float scale, void *out_panels, float *row_sum);

#endif
