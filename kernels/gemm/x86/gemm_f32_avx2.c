/* fp32 products with AVX2: tiles of 6 x 16 sums in registers. */
#include "gemm/x86/gemm_lanes_avx2.h"
#include "gemm/x86/gemm_tile_avx2.h"

#define PACK_MR TILE_MR
#define PACK_NR TILE_NR
#define PACK_ROUND(v) (v)
#include "gemm/gemm_pack.h"

/* Operands of a tile. The masks are zero for columns that are not stored. */
typedef struct {
    const float *a, *b, *bias;
    float *c;
    int64_t k, ldc;
    __m256i mask[2];
    int add;
} tile;

/* Compute a tile. rows and vectors are constants in every call, so that the sums are registers. */
LANES_INLINE void compute(const tile *t, const int rows, const int vectors) {
    __m256 sum[TILE_MR][2];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++) {
            sum[i][j] = _mm256_setzero_ps();
            /* Prefetch the tile of C, which is needed after the last depth. */
            _mm_prefetch((const char *)(t->c + i * t->ldc + 8 * j), _MM_HINT_T0);
        }
    const float *a = t->a, *b = t->b;
    int64_t p = 0;
    for (; p + PACK_LANES <= t->k; p += PACK_LANES) {
        for (int half = 0; half < 2; half++) {
#pragma GCC unroll 4
            for (int q = 0; q < 4; q++) {
                __m256 row[2];
#pragma GCC unroll 2
                for (int j = 0; j < vectors; j++) row[j] = _mm256_load_ps(b + q * TILE_NR + 8 * j);
#pragma GCC unroll 8
                for (int i = 0; i < rows; i++) {
                    const __m256 element = _mm256_set1_ps(a[i * PACK_LANES + q]);
#pragma GCC unroll 2
                    for (int j = 0; j < vectors; j++) sum[i][j] = _mm256_fmadd_ps(element, row[j], sum[i][j]);
                }
            }
            a += 4;
            b += 4 * TILE_NR;
        }
        a += (TILE_MR - 1) * PACK_LANES;
    }
    const int64_t depth = t->k - p;
    for (int64_t q = 0; q < depth; q++, b += TILE_NR) {
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const __m256 element = _mm256_set1_ps(a[i * depth + q]);
#pragma GCC unroll 2
            for (int j = 0; j < vectors; j++) sum[i][j] = _mm256_fmadd_ps(element, _mm256_load_ps(b + 8 * j), sum[i][j]);
        }
    }
#pragma GCC unroll 2
    for (int j = 0; j < vectors; j++) {
        const __m256 bias = t->bias ? _mm256_maskload_ps(t->bias + 8 * j, t->mask[j]) : _mm256_setzero_ps();
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            float *c = t->c + i * t->ldc + 8 * j;
            __m256 v = sum[i][j];
            if (t->bias) v = _mm256_add_ps(v, bias);
            if (t->add) v = _mm256_add_ps(v, _mm256_maskload_ps(c, t->mask[j]));
            _mm256_maskstore_ps(c, t->mask[j], v);
        }
    }
}

#define TILE_OF(rows)                                                                                                         \
    static void compute_##rows##_1(const tile *t) { compute(t, rows, 1); }                                                    \
    static void compute_##rows##_2(const tile *t) { compute(t, rows, 2); }
TILE_OF(1) TILE_OF(2) TILE_OF(3) TILE_OF(4) TILE_OF(5) TILE_OF(6)

#define BOTH(rows) {compute_##rows##_1, compute_##rows##_2}
static void (*const TILES[TILE_MR][2])(const tile *) = {BOTH(1), BOTH(2), BOTH(3), BOTH(4), BOTH(5), BOTH(6)};

/* Compute a block: all tiles of a panel of B, then the next panel. The panel stays in the L1 cache while the block of A
 * streams from L2. */
void hc_gemm_block_f32_avx2(int64_t m, int64_t n, int64_t k, const void *a_panels, const void *b_panels, void *c,
                              int64_t ldc, const void *bias, int add) {
    for (int64_t j = 0; j < n; j += TILE_NR) {
        tile t = {.b = (const float *)b_panels + j * k, .bias = bias ? (const float *)bias + j : 0, .k = k, .ldc = ldc,
                  .add = add, .mask = {pack_first(n - j), pack_first(n - j - 8)}};
        for (int64_t i = 0; i < m; i += TILE_MR) {
            t.a = (const float *)a_panels + i * k;
            t.c = (float *)c + i * ldc + j;
            TILES[pack_min(TILE_MR, m - i) - 1][n - j > 8](&t);
        }
    }
}

static int64_t mr(void) {
    return TILE_MR;
}

static int64_t nr(void) {
    return TILE_NR;
}

const hc_gemm_kernel hc_gemm_f32_avx2 = {
    .name = "gemm_f32_avx2", .isa = HC_ISA_AVX2, .dtype = HC_F32, .mr = mr, .nr = nr, .kr = 1,
    .element_bytes = sizeof(float), .pack_a = pack_a, .pack_b = pack_b, .block = hc_gemm_block_f32_avx2, .b_group = 1,
};
