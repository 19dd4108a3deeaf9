/* fp32 matrix product on the tile unit AMX, which multiplies bf16. Every number is split into three bf16 parts.
 *
 * With x = x1 + x2 + x3 and y = y1 + y2 + y3 (pack_f32_amx.h), x1y1, x1y2, x2y1, x2y2, x1y3 and x3y1 are summed in
 * fp32. The omitted terms x2y3, x3y2 and x3y3 are less than 2^-25 |x||y|. Six bf16 products reach 550 GFLOP/s on a unit
 * of 3.3 TFLOP/s. FMA of AVX-512 reaches 230 GFLOP/s.
 *
 * TDPBF16PS treats denormal operands as zero and flushes denormal sums, so parts and sums below 2^-126 are lost. The
 * parts of inf are inf and NaN, and numbers near the largest fp32 round to inf. hc_gemm therefore computes the largest
 * magnitudes, and uses the kernel of the vector unit for products out of range. */
#if !defined(__AMX_TILE__) || !defined(__AMX_BF16__) || !defined(__AVX512BF16__) || !defined(__AVX512BW__)
#error "compile this file for AMX with BF16, and AVX-512 with BW and BF16"
#endif

#include <immintrin.h>

#include "gemm/gemm_kernel.h"
#include "gemm/x86/pack_f32_amx.h"
#include "minmax.h"
#include "simd/tiles_amx.h"

#define MR 32 /* two tiles of 16 rows */
#define NR 32 /* two tiles of 16 columns */
#define KR 32 /* a row of a tile is 64 bytes */
#define A_STRIDE 64
#define B_STRIDE (NR * 4)
#define PART HC_SPLIT_PART_BYTES

/* Depth of a block. 192, 384, 512 and 768 reached 169, 174, 173 and 164 GFLOP/s over nine products of DiT, each with
 * its best blocks of rows and columns. With a smaller depth, sums pass more often through the caches. With a larger
 * depth, fewer rows and columns fit there. */
#define MAX_DEPTH 384
#define SPLIT_DEPTH 384

/* Steps of a panel of A, 6 KB each, that may stay in the L1 cache. The other tiles are loaded with a non-temporal
 * hint. */
#define STEPS_TO_KEEP 5

/* Deferred store of the sums of one pair of panels. A few rows are stored per step while the next pair is multiplied,
 * so that the tile unit does not wait for cache lines of C. */
typedef struct {
    const float *sums; /* 32 x 32 */
    int64_t num_rows;
    __mmask32 columns;
    float *c;
    int64_t ldc;
    const float *bias; /* or NULL */
    int add;
} deferred_store;

static void store_rows(const deferred_store *store, int64_t from, int64_t to) {
    const __mmask16 low = (__mmask16)store->columns, high = (__mmask16)(store->columns >> 16);
    /* Adding -0 does not change a sum. */
    __m512 bias0 = _mm512_set1_ps(-0.0f), bias1 = bias0;
    if (store->bias) {
        bias0 = _mm512_maskz_loadu_ps(low, store->bias);
        bias1 = _mm512_maskz_loadu_ps(high, store->bias + 16);
    }
    const int64_t stop = hc_min_i64(to, store->num_rows);
    const float *sums = store->sums + from * NR;
    float *c = store->c + from * store->ldc;
    for (int64_t i = from; i < stop; ++i, sums += NR, c += store->ldc) {
        __m512 sum0 = _mm512_add_ps(bias0, _mm512_load_ps(sums)), sum1 = _mm512_add_ps(bias1, _mm512_load_ps(sums + 16));
        if (store->add) {
            sum0 = _mm512_add_ps(sum0, _mm512_maskz_loadu_ps(low, c));
            sum1 = _mm512_add_ps(sum1, _mm512_maskz_loadu_ps(high, c + 16));
        }
        _mm512_mask_storeu_ps(c, low, sum0);
        _mm512_mask_storeu_ps(c + 16, high, sum1);
    }
}

#define LOAD_A(load, part) \
    load(4, a + (part) * PART, A_STRIDE); \
    load(5, a + (part) * PART + 16 * A_STRIDE, A_STRIDE)

#define LOAD_B(part) \
    hc_tile_load_once(6, b + (part) * PART, B_STRIDE); \
    hc_tile_load_once(7, b + (part) * PART + 64, B_STRIDE)

#define MULTIPLY \
    hc_tile_multiply_bf16(0, 4, 6); \
    hc_tile_multiply_bf16(1, 4, 7); \
    hc_tile_multiply_bf16(2, 5, 6); \
    hc_tile_multiply_bf16(3, 5, 7)

/* Multiply up to step `steps`. `load_a` loads the tiles of A. Consecutive products share one operand. B, which comes
 * from a more distant cache, is loaded once: 14 tiles for 24 products. The largest product is added last. */
#define ADD_PRODUCTS(steps, load_a) \
    for (const int64_t stop = (steps); step < stop; ++step) { \
        LOAD_A(load_a, 0); \
        LOAD_B(2); \
        MULTIPLY; \
        LOAD_B(1); \
        MULTIPLY; \
        LOAD_A(load_a, 1); \
        MULTIPLY; \
        LOAD_B(0); \
        MULTIPLY; \
        LOAD_A(load_a, 2); \
        MULTIPLY; \
        LOAD_A(load_a, 0); \
        MULTIPLY; \
        a += HC_SPLIT_STEP_BYTES; \
        b += HC_SPLIT_STEP_BYTES; \
        if (previous) { \
            store_rows(previous, step * rows_per_step, (step + 1) * rows_per_step); \
        } \
    }

/* Multiply two panels. Tiles 0 to 3 are rows 0-15 and 16-31 by columns 0-15 and 16-31, stored as 32 x 32 at `sums`. */
static void multiply_panels(int64_t steps, const char *a, const char *b, float *sums, const deferred_store *previous) {
    const int64_t rows_per_step = (MR + steps - 1) / steps;
    int64_t step = 0;
    hc_tile_zero(0);
    hc_tile_zero(1);
    hc_tile_zero(2);
    hc_tile_zero(3);
    ADD_PRODUCTS(hc_min_i64(steps, STEPS_TO_KEEP), hc_tile_load)
    ADD_PRODUCTS(steps, hc_tile_load_once)
    hc_tile_store(0, sums, NR * 4);
    hc_tile_store(1, sums + 16, NR * 4);
    hc_tile_store(2, sums + 16 * NR, NR * 4);
    hc_tile_store(3, sums + 16 * NR + 16, NR * 4);
}

/* Compute a block in row order of C: for each panel of A, multiply all panels of B, from the L2 cache. */
static void block(int64_t m, int64_t n, int64_t k, const void *a_panels, const void *b_panels, void *c, int64_t ldc,
                  const void *bias, int add) {
    _Alignas(64) float sums[MR * NR];
    deferred_store stores[2];
    int64_t count = 0;
    const int64_t steps = (k + KR - 1) / KR;
    hc_configure_tiles();
    for (int64_t i = 0; i < m; i += MR) {
        const char *a = (const char *)a_panels + i / MR * steps * HC_SPLIT_STEP_BYTES;
        for (int64_t j = 0; j < n; j += NR, ++count) {
            const char *b = (const char *)b_panels + j / NR * steps * HC_SPLIT_STEP_BYTES;
            stores[count % 2] = (deferred_store){
                .sums = sums,
                .num_rows = hc_min_i64(MR, m - i),
                .columns = n - j >= NR ? 0xffffffffu : (1u << (n - j)) - 1u,
                .c = (float *)c + i * ldc + j,
                .ldc = ldc,
                .bias = bias ? (const float *)bias + j : NULL,
                .add = add,
            };
            multiply_panels(steps, a, b, sums, count ? &stores[(count + 1) % 2] : NULL);
        }
    }
    if (count) {
        store_rows(&stores[(count + 1) % 2], 0, MR);
    }
    hc_tiles_release();
}

static int64_t mr(void) {
    return MR;
}

static int64_t nr(void) {
    return NR;
}

const hc_gemm_kernel hc_gemm_f32_amx = {
    .name = "gemm_f32_amx", .isa = HC_ISA_AMX_FP32, .dtype = HC_F32, .mr = mr, .nr = nr, .kr = KR,
    .element_bytes = 2 * HC_SPLIT_PARTS, .pack_a = hc_split_pack_a, .pack_b = hc_split_pack_b, .block = block,
    .most_depth = MAX_DEPTH, .split_depth = SPLIT_DEPTH, .largest = hc_split_largest,
    .pack_a_max = hc_split_pack_a_max, .pack_b_max = hc_split_pack_b_max,
    .near_block = hc_near_block_f32_amx, .near_tail_a = hc_near_tail_a_f32_amx, .near_tail_b = hc_near_tail_b_f32_amx,
};
