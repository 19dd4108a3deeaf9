/* fp32 matrix products by SME outer products (FMOPA) on all four ZA tiles, for any streaming vector length.
 *
 * kernels/test/instructions_per_product.py counts the executed instructions per outer product: 2.125 in the loop over k
 * (fp32 and bf16: 4 loads and 4 products per step, and 4 loop instructions per 8 steps), and 1.875 for fp64. The lower
 * limits with single-vector loads are 2.00 and 1.75. */
#include <string.h>

#include "gemm/arm/block_sme.h"

#define FMOPA(tile, rows, columns) "fmopa za" #tile ".s, %[all]/m, %[all]/m, z" #rows ".s, z" #columns ".s\n"
HC_DEFINE_MULTIPLY(FMOPA)

/* Load a vector of fp32 or bf16 elements as fp32. A bf16 is the upper half of an fp32. */
static inline svfloat32_t read_f32(svbool_t lanes, const void *data, int64_t index, int dtype) HC_SME_HELPER {
    if (dtype == HC_F32) {
        return svld1_f32(lanes, (const float *)data + index);
    }
    return svreinterpret_f32(svlsl_x(lanes, svld1uh_u32(lanes, (const uint16_t *)data + index), 16));
}

static inline float read_one_f32(const void *data, int64_t index, int dtype) {
    if (dtype == HC_F32) {
        return ((const float *)data)[index];
    }
    const uint32_t bits = (uint32_t)((const uint16_t *)data)[index] << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

#define HC_ELEMENT float
#define HC_VECTOR svfloat32_t
#define HC_LANES svcntw
#define HC_STREAMING_LANES svcntsw
#define HC_SOME_LANES svwhilelt_b32_s64
#define HC_ALL_LANES svptrue_b32
#define HC_SET svdup_f32
#define HC_READ read_f32
#define HC_READ_ONE read_one_f32
#define HC_WRITE_ROW svwrite_hor_za32_f32_m
#define HC_READ_COLUMN svread_ver_za32_f32_m
#include "gemm/arm/pack_sme.h"

static void pack_a(int64_t m, int64_t k, const hc_matrix *a, float scale, void *out_panels, float *row_sum) {
    pack(&(hc_packing){m, k, a->data, a->row_stride, a->column_stride, a->dtype, scale, row_sum, 2, out_panels});
}

static void pack_b(int64_t k, int64_t n, const hc_matrix *b, void *out_panels) {
    pack(&(hc_packing){n, k, b->data, b->column_stride, b->row_stride, b->dtype, 1.0f, NULL, 2, out_panels});
}

static void block_f32(int64_t m, int64_t n, int64_t k, const void *a_panels, const void *b_panels, void *c, int64_t ldc,
                      const void *bias, int add) {
    block(m, n, k, a_panels, b_panels, c, ldc, bias, add);
}

/* Largest depth of a block. SME units that cores share load from the L2 cache, so panels need not fit the L1 cache.
 * With vectors of 512 bits, a panel of this depth is 64 KB. */
#define MAX_DEPTH 512

const hc_gemm_kernel hc_gemm_f32_sme = {
    .name = "gemm_f32_sme",
    .isa = HC_ISA_SME,
    .dtype = HC_F32,
    .mr = two_vectors,
    .nr = two_vectors,
    .kr = 1,
    .element_bytes = sizeof(float),
    .pack_a = pack_a,
    .pack_b = pack_b,
    .block = block_f32,
    .b_group = 1,
    .most_depth = MAX_DEPTH,
    .split_depth = MAX_DEPTH,
};
