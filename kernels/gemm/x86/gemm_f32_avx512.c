/* fp32 products with AVX-512: tiles of 8 x 48 sums in registers. */
#include "gemm/x86/gemm_lanes_avx512.h"
#include "gemm/x86/gemm_tile_avx512.h"

#define PACK_MR TILE_MR
#define PACK_NR TILE_NR
#define PACK_ROUND(v) (v)
#include "gemm/gemm_pack.h"

/* A panel of B has TILE_NR cache lines per 16 depths. Each tile prefetches 4 of them, so that 12 tiles, 96 rows,
 * prefetch the next panel. */
#define NEXT_B_LINES 4
#define NEXT_B_SHARES (TILE_NR / NEXT_B_LINES)

/* Operands of a tile. The masks are zero for columns that are not stored. The tile prefetches its share of the next
 * panel of B (next_b) and the next tile of C (next_c). */
typedef struct {
    const float *a, *b, *bias, *next_b, *next_c;
    float *c;
    int64_t k, ldc;
    __mmask16 mask[TILE_VECTORS];
    int add;
    hc_gemm_prefetch *prefetch;
    int64_t rate; /* lines to prefetch per PACK_LANES depths */
} tile;

/* Compute a tile. rows and vectors are constants in every call, so that the sums are registers. */
LANES_INLINE void compute(const tile *t, const int rows, const int vectors) {
    __m512 sum[TILE_MR][TILE_VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 3
        for (int j = 0; j < vectors; j++) sum[i][j] = _mm512_setzero_ps();
    const float *a = t->a, *b = t->b, *next_b = t->next_b, *next_c = t->next_c;
    int64_t p = 0;
    for (; p + PACK_LANES <= t->k; p += PACK_LANES) {
        if (p < TILE_MR * PACK_LANES) {
#pragma GCC unroll 3
            for (int j = 0; j < vectors; j++) _mm_prefetch((const char *)(next_c + 16 * j), _MM_HINT_T0);
            next_c += t->ldc;
        }
#pragma GCC unroll 4
        for (int line = 0; line < NEXT_B_LINES; line++) _mm_prefetch((const char *)(next_b + 16 * line), _MM_HINT_T1);
        next_b += 16 * NEXT_B_LINES;
        hc_gemm_prefetch_lines(t->prefetch, t->rate);
#pragma GCC unroll 16
        for (int q = 0; q < PACK_LANES; q++) {
            __m512 row[TILE_VECTORS];
#pragma GCC unroll 3
            for (int j = 0; j < vectors; j++) row[j] = _mm512_load_ps(b + q * TILE_NR + 16 * j);
#pragma GCC unroll 16
            for (int i = 0; i < rows; i++) {
                const __m512 element = _mm512_set1_ps(a[i * PACK_LANES + q]);
#pragma GCC unroll 3
                for (int j = 0; j < vectors; j++) sum[i][j] = _mm512_fmadd_ps(element, row[j], sum[i][j]);
            }
        }
        a += TILE_MR * PACK_LANES;
        b += TILE_NR * PACK_LANES;
    }
    const int64_t depth = t->k - p;
    for (int64_t q = 0; q < depth; q++, b += TILE_NR) {
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            const __m512 element = _mm512_set1_ps(a[i * depth + q]);
#pragma GCC unroll 3
            for (int j = 0; j < vectors; j++) sum[i][j] = _mm512_fmadd_ps(element, _mm512_load_ps(b + 16 * j), sum[i][j]);
        }
    }
#pragma GCC unroll 3
    for (int j = 0; j < vectors; j++) {
        const __m512 bias = t->bias ? _mm512_maskz_loadu_ps(t->mask[j], t->bias + 16 * j) : _mm512_setzero_ps();
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            float *c = t->c + i * t->ldc + 16 * j;
            __m512 v = sum[i][j];
            if (t->bias) v = _mm512_add_ps(v, bias);
            if (t->add) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(t->mask[j], c));
            _mm512_mask_storeu_ps(c, t->mask[j], v);
        }
    }
}

#define TILE_OF(rows)                                                                                                         \
    static void compute_##rows##_1(const tile *t) { compute(t, rows, 1); }                                                    \
    static void compute_##rows##_2(const tile *t) { compute(t, rows, 2); }                                                    \
    static void compute_##rows##_3(const tile *t) { compute(t, rows, 3); }
TILE_OF(1) TILE_OF(2) TILE_OF(3) TILE_OF(4) TILE_OF(5) TILE_OF(6) TILE_OF(7) TILE_OF(8)

#define EACH(rows) {compute_##rows##_1, compute_##rows##_2, compute_##rows##_3}
static void (*const TILES[TILE_MR][TILE_VECTORS])(const tile *) = {EACH(1), EACH(2), EACH(3), EACH(4),
                                                                   EACH(5), EACH(6), EACH(7), EACH(8)};

static __mmask16 first_lanes(int64_t count) {
    return count >= 16 ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
}

/* Compute a block: all tiles of a panel of B, then the next panel. Each tile prefetches a share of the next panel. */
void hc_gemm_block_prefetch_f32_avx512(int64_t m, int64_t n, int64_t k, const void *a_panels, const void *b_panels,
                                       void *c, int64_t ldc, const void *bias, int add, hc_gemm_prefetch *prefetch) {
    const int64_t tiles = (m + TILE_MR - 1) / TILE_MR * ((n + TILE_NR - 1) / TILE_NR), slots = tiles * (k / PACK_LANES);
    const int64_t rate = slots > 0 ? (prefetch->share + slots - 1) / slots : 0;
    for (int64_t j = 0; j < n; j += TILE_NR) {
        tile t = {.b = (const float *)b_panels + j * k, .bias = bias ? (const float *)bias + j : 0, .k = k, .ldc = ldc,
                  .add = add, .mask = {first_lanes(n - j), first_lanes(n - j - 16), first_lanes(n - j - 32)},
                  .prefetch = prefetch, .rate = rate};
        const int64_t vectors = pack_min(TILE_VECTORS, (n - j + 15) / 16);
        for (int64_t i = 0; i < m; i += TILE_MR) {
            t.a = (const float *)a_panels + i * k;
            t.c = (float *)c + i * ldc + j;
            t.next_b = t.b + (TILE_NR + i / TILE_MR % NEXT_B_SHARES * NEXT_B_LINES) * k;
            t.next_c = i + TILE_MR < m ? t.c + TILE_MR * ldc : (float *)c + j + TILE_NR;
            TILES[pack_min(TILE_MR, m - i) - 1][vectors - 1](&t);
        }
    }
}

void hc_gemm_block_f32_avx512(int64_t m, int64_t n, int64_t k, const void *a_panels, const void *b_panels, void *c,
                              int64_t ldc, const void *bias, int add) {
    hc_gemm_prefetch no_prefetch = {0};
    hc_gemm_block_prefetch_f32_avx512(m, n, k, a_panels, b_panels, c, ldc, bias, add, &no_prefetch);
}

static int64_t mr(void) {
    return TILE_MR;
}

static int64_t nr(void) {
    return TILE_NR;
}

const hc_gemm_kernel hc_gemm_f32_avx512 = {
    .name = "gemm_f32_avx512", .isa = HC_ISA_AVX512, .dtype = HC_F32, .mr = mr, .nr = nr, .kr = 1,
    .element_bytes = sizeof(float), .pack_a = pack_a, .pack_b = pack_b, .block = hc_gemm_block_f32_avx512, .b_group = 1,
    .block_prefetch = hc_gemm_block_prefetch_f32_avx512,
};
