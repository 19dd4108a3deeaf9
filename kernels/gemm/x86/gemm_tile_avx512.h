/* Block function of products with fp32 panels, shared by the AVX-512 kernels that use these panels. */
#ifndef HC_GEMM_TILE_AVX512_H
#define HC_GEMM_TILE_AVX512_H

#include "gemm/gemm_kernel.h"

/* A tile of 8 x 48 sums uses 24 of the 32 registers. 3 registers contain a row of the panel of B, 1 the element of A.
 * The rest allows loads to run ahead. One depth is 24 multiply-adds, 12 cycles on two units, and 11 loads, 5.5 cycles.
 * 24 sums hide a latency of 4 cycles 3 times. 8 and 48 divide the widths and the numbers of tokens of all DiT models.
 * 12 x 32 (14 loads) measured 2% slower. 14 x 32 spills registers. */
#define TILE_MR 8
#define TILE_VECTORS 3
#define TILE_NR (16 * TILE_VECTORS)

void hc_gemm_block_f32_avx512(int64_t m, int64_t n, int64_t k, const void *a_panels, const void *b_panels, void *c,
                              int64_t ldc, const void *bias, int add);
void hc_gemm_block_prefetch_f32_avx512(int64_t m, int64_t n, int64_t k, const void *a_panels, const void *b_panels,
                                       void *c, int64_t ldc, const void *bias, int add, hc_gemm_prefetch *prefetch);

#endif
