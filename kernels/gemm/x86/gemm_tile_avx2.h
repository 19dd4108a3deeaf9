/* Block function of products with fp32 panels, shared by the AVX2 kernels that use these panels. */
#ifndef HC_GEMM_TILE_AVX2_H
#define HC_GEMM_TILE_AVX2_H

#include <stdint.h>

/* A tile of 6 x 16 sums uses 12 of the 16 registers, 2 for a row of the panel of B, and 2 for elements of A. One depth
 * is 12 multiply-adds, 6 cycles on two units, and 8 loads, 4 cycles. */
#define TILE_MR 6
#define TILE_NR 16

void hc_gemm_block_f32_avx2(int64_t m, int64_t n, int64_t k, const void *a_panels, const void *b_panels, void *c, int64_t ldc,
                            const void *bias, int add);

#endif
