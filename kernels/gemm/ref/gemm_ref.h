/* Reference matrix kernel in plain C, included once per type. The including file defines pack_element (float or
 * double), REF_ROUND(v) (the rounding of operands), REF_NAME (the name of the descriptor without hc_) and REF_DTYPE. */
#include <string.h>

#include "gemm/gemm_kernel.h"

/* 4 x 8 sums are 8 registers of 4 fp32, half of the registers of the smallest 64-bit processors. */
#define PACK_MR 4
#define PACK_NR 8

/* Vectors have one element. */
#define PACK_LANES 1
#define PACK_ROUND(v) REF_ROUND(v)
typedef pack_element pack_vector;

static inline float widen_bf16(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof(value));
    return value;
}

static inline pack_element pack_zero(void) {
    return 0;
}

static inline pack_element pack_add(pack_element a, pack_element b) {
    return a + b;
}

static inline pack_element pack_scale(pack_element v, pack_element scale) {
    return v * scale;
}

static inline pack_element pack_total(pack_element v) {
    return v;
}

static inline pack_element pack_load(const char *from, int dtype, int64_t count) {
    (void)count;
    if (dtype == HC_F64) {
        return (pack_element)*(const double *)(const void *)from;
    }
    return dtype == HC_F32 ? *(const float *)(const void *)from : widen_bf16(*(const uint16_t *)(const void *)from);
}

static inline void pack_store(pack_element *to, int64_t count, pack_element v) {
    (void)count;
    *to = v;
}

static inline void pack_transpose(pack_element *square) {
    (void)square;
}

#include "gemm/gemm_pack.h"

/* Compute a complete tile, and store m x n of it. */
static void compute(int64_t m, int64_t n, int64_t k, const pack_element *a, const pack_element *b, pack_element *c, int64_t ldc,
                    const pack_element *bias, int add) {
    pack_element sum[PACK_MR][PACK_NR] = {{0}};
    for (int64_t p = 0; p < k; p++) {
        for (int i = 0; i < PACK_MR; i++) {
            for (int j = 0; j < PACK_NR; j++) {
                sum[i][j] += a[p * PACK_MR + i] * b[p * PACK_NR + j];
            }
        }
    }
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            const pack_element with_bias = bias ? sum[i][j] + bias[j] : sum[i][j];
            c[i * ldc + j] = add ? with_bias + c[i * ldc + j] : with_bias;
        }
    }
}

static void block(int64_t m, int64_t n, int64_t k, const void *a_panels, const void *b_panels, void *c, int64_t ldc,
                  const void *bias, int add) {
    for (int64_t j = 0; j < n; j += PACK_NR) {
        for (int64_t i = 0; i < m; i += PACK_MR) {
            compute(pack_min(PACK_MR, m - i), pack_min(PACK_NR, n - j), k, (const pack_element *)a_panels + i * k,
                    (const pack_element *)b_panels + j * k, (pack_element *)c + i * ldc + j, ldc,
                    bias ? (const pack_element *)bias + j : NULL, add);
        }
    }
}

static int64_t mr(void) {
    return PACK_MR;
}

static int64_t nr(void) {
    return PACK_NR;
}

#define REF_JOIN_(name) hc_##name
#define REF_JOIN(name) REF_JOIN_(name)
#define REF_TEXT_(name) #name
#define REF_TEXT(name) REF_TEXT_(name)
const hc_gemm_kernel REF_JOIN(REF_NAME) = {
    .name = REF_TEXT(REF_NAME), .isa = HC_ISA_REF, .dtype = REF_DTYPE, .mr = mr, .nr = nr, .kr = 1,
    .element_bytes = sizeof(pack_element), .pack_a = pack_a, .pack_b = pack_b, .block = block, .b_group = 1,
};
