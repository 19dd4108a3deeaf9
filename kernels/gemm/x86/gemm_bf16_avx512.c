/* Products of operands rounded to bf16 with AVX-512 alone. Packing rounds; panels and multiply-adds are fp32. */
#include "gemm/x86/gemm_lanes_avx512.h"
#include "gemm/x86/gemm_tile_avx512.h"

#define PACK_MR TILE_MR
#define PACK_NR TILE_NR
#define PACK_ROUND(v) pack_round_bf16(v)
#include "gemm/gemm_pack.h"

static int64_t mr(void) {
    return TILE_MR;
}

static int64_t nr(void) {
    return TILE_NR;
}

const hc_gemm_kernel hc_gemm_bf16_avx512 = {
    .name = "gemm_bf16_avx512", .isa = HC_ISA_AVX512, .dtype = HC_BF16, .mr = mr, .nr = nr, .kr = 1,
    .element_bytes = sizeof(float), .pack_a = pack_a, .pack_b = pack_b, .block = hc_gemm_block_f32_avx512, .b_group = 1,
    .block_prefetch = hc_gemm_block_prefetch_f32_avx512,
};
