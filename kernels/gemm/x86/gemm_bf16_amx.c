/* bf16 matrix product on the tile unit AMX. A step of 32 along k multiplies two tiles of A by two tiles of B, for 32 x
 * 32 sums in four tiles.
 *
 * TDPBF16PS treats denormal operands as zero and flushes denormal sums. inf and nan propagate. */
#if !defined(__AMX_TILE__) || !defined(__AMX_BF16__) || !defined(__AVX512BF16__) || !defined(__AVX512BW__)
#error "compile this file for AMX with BF16, and AVX-512 with BW and BF16"
#endif

#include <immintrin.h>

#include "gemm/gemm_kernel.h"
#include "gemm/x86/pack_bf16_avx512bf16.h"
#include "minmax.h"
#include "simd/tiles_amx.h"

#define MR 32 /* two tiles of 16 rows */
#define NR 32 /* two tiles of 16 columns */
#define KR 32 /* a row of a tile is 64 bytes */
#define STEP_BYTES 2048
#define B_STRIDE (NR * 4)

/* Depth of a block. A k of up to MAX_DEPTH is not split, so that each sum is stored once, and as bf16 for a bf16 C.
 * With a larger k, sums of a chunk of C pass through the L2 cache. More rows and columns of C then gain more than a
 * larger depth, because A and B come from L3 once per chunk. Measured on dW of DiT-XL/2 (k = 4,096): 1,520, 1,820 and
 * 1,860 GFLOP/s at depths of 2,048, 768 and 512. */
#define MAX_DEPTH 1536
#define SPLIT_DEPTH 576

/* Deferred store of the sums of one pair of panels. A few rows are stored per step while the next pair is multiplied,
 * so that the tile unit does not wait for cache lines of C or for conversions. */
typedef struct deferred_store {
    void (*rows)(const struct deferred_store *store, int64_t from, int64_t to);
    const float *sums; /* 32 x 32 */
    int64_t num_rows;
    __mmask32 columns;
    char *c;
    int64_t c_stride;
    const float *bias; /* or NULL */
} deferred_store;

/* One product of a block. See gemm_kernel.h for the fields. */
typedef struct {
    int64_t m, n, steps;
    const char *a, *b;
    int64_t a_panel, a_step, a_stride; /* bytes to the next 32 rows, the next 32 of k, the next row */
    char *c;
    int64_t c_stride; /* bytes */
    int c_dtype;
    const float *bias;
    int add;
    hc_gemm_prefetch *prefetch;
    int64_t lines_per_step; /* lines to prefetch */
} product;

typedef enum { TO_C, ADD_TO_C, TO_BF16 } target;

/* Store rows from..to of 32 x 32 sums with few instructions. They share the out-of-order window in which the CPU issues
 * the next tile loads. */
__attribute__((always_inline)) static inline void store_rows(const deferred_store *store, int64_t from, int64_t to,
                                                             target where) {
    const __mmask16 low = (__mmask16)store->columns, high = (__mmask16)(store->columns >> 16);
    /* Adding -0 does not change a sum. */
    __m512 bias0 = _mm512_set1_ps(-0.0f), bias1 = bias0;
    if (store->bias) {
        bias0 = _mm512_maskz_loadu_ps(low, store->bias);
        bias1 = _mm512_maskz_loadu_ps(high, store->bias + 16);
    }
    const int64_t stop = hc_min_i64(to, store->num_rows);
    const float *sums = store->sums + from * NR;
    char *c = store->c + from * store->c_stride;
    for (int64_t i = from; i < stop; ++i, sums += NR, c += store->c_stride) {
        __m512 sum0 = _mm512_add_ps(bias0, _mm512_load_ps(sums)), sum1 = _mm512_add_ps(bias1, _mm512_load_ps(sums + 16));
        if (where == TO_BF16) {
            _mm512_mask_storeu_epi16(c, store->columns, (__m512i)_mm512_cvtne2ps_pbh(sum1, sum0));
            continue;
        }
        if (where == ADD_TO_C) {
            sum0 = _mm512_add_ps(sum0, _mm512_maskz_loadu_ps(low, c));
            sum1 = _mm512_add_ps(sum1, _mm512_maskz_loadu_ps(high, c + 64));
        }
        _mm512_mask_storeu_ps(c, low, sum0);
        _mm512_mask_storeu_ps(c + 64, high, sum1);
    }
}

static void store_to_c(const deferred_store *store, int64_t from, int64_t to) {
    store_rows(store, from, to, TO_C);
}

static void store_add_to_c(const deferred_store *store, int64_t from, int64_t to) {
    store_rows(store, from, to, ADD_TO_C);
}

static void store_to_bf16(const deferred_store *store, int64_t from, int64_t to) {
    store_rows(store, from, to, TO_BF16);
}

/* Steps of a panel of A with tiles that may stay in the L1 cache: 32 of its 48 KB. All other tiles are loaded with a
 * non-temporal hint. A step reads 4 KB in the 64 cycles of its tile products, more than the L2 cache delivers in
 * practice. Plain loads evict every panel of A before the next panel of B needs it. Measured on operands of zeros in
 * L2, with 24 and 36 steps: 47 and 57% of the unit's peak without hints, 65 and 66% with them (repeats differ by up to
 * a fifth). Splitting k so that a complete slice stays cached was not faster: 60% of peak against 63% at 256 x 1,152 x
 * 1,152, because sums then pass through memory once per slice. */
#define STEPS_TO_KEEP 16

/* Multiply up to step `steps`. `load_a` loads the tiles of A. */
#define ADD_PRODUCTS(steps, load_a) \
    for (const int64_t stop = (steps); step < stop; ++step) { \
        load_a(4, a, stride); \
        hc_tile_load_once(6, b, B_STRIDE); \
        if (two_rows) { \
            load_a(5, a + 16 * stride, stride); \
        } \
        if (two_columns) { \
            hc_tile_load_once(7, b + 64, B_STRIDE); \
        } \
        hc_tile_multiply_bf16(0, 4, 6); \
        if (two_rows) { \
            hc_tile_multiply_bf16(2, 5, 6); \
        } \
        if (two_columns) { \
            hc_tile_multiply_bf16(1, 4, 7); \
        } \
        if (two_rows && two_columns) { \
            hc_tile_multiply_bf16(3, 5, 7); \
        } \
        a += p->a_step; \
        b += STEP_BYTES; \
        if (p->lines_per_step) { \
            hc_gemm_prefetch_lines(p->prefetch, p->lines_per_step); \
        } \
        if (previous) { \
            previous->rows(previous, step * rows_per_step, (step + 1) * rows_per_step); \
        } \
    }

/* Multiply two panels. Tiles 0 to 3 are rows 0-15 and 16-31 by columns 0-15 and 16-31, stored as 32 x 32 at `sums`. */
__attribute__((always_inline)) static inline void multiply_tiles(int two_rows, int two_columns, const product *p,
                                                                 const char *a, const char *b, float *sums,
                                                                 const deferred_store *previous) {
    const int64_t stride = p->a_stride, rows_per_step = (MR + p->steps - 1) / p->steps;
    int64_t step = 0;
    hc_tile_zero(0);
    hc_tile_zero(1);
    hc_tile_zero(2);
    hc_tile_zero(3);
    ADD_PRODUCTS(hc_min_i64(p->steps, STEPS_TO_KEEP), hc_tile_load)
    ADD_PRODUCTS(p->steps, hc_tile_load_once)
    hc_tile_store(0, sums, NR * 4);
    if (two_rows) {
        hc_tile_store(2, sums + 16 * NR, NR * 4);
    }
    if (two_columns) {
        hc_tile_store(1, sums + 16, NR * 4);
    }
    if (two_rows && two_columns) {
        hc_tile_store(3, sums + 16 * NR + 16, NR * 4);
    }
}

static void multiply_panels(int64_t rows, int64_t columns, const product *p, const char *a, const char *b, float *sums,
                            const deferred_store *previous) {
    if (rows > 16 && columns > 16) {
        multiply_tiles(1, 1, p, a, b, sums, previous);
    } else if (rows > 16) {
        multiply_tiles(1, 0, p, a, b, sums, previous);
    } else if (columns > 16) {
        multiply_tiles(0, 1, p, a, b, sums, previous);
    } else {
        multiply_tiles(0, 0, p, a, b, sums, previous);
    }
}

/* Return the deferred store of the sums of rows i.. and columns j... */
static deferred_store deferred_store_of(const product *p, int64_t i, int64_t j, const float *sums) {
    return (deferred_store){
        .rows = p->c_dtype == HC_BF16 ? store_to_bf16 : p->add ? store_add_to_c : store_to_c,
        .sums = sums,
        .num_rows = hc_min_i64(MR, p->m - i),
        .columns = p->n - j >= NR ? 0xffffffffu : (1u << (p->n - j)) - 1u,
        .c = p->c + i * p->c_stride + j * (p->c_dtype == HC_BF16 ? 2 : 4),
        .c_stride = p->c_stride,
        .bias = p->bias ? p->bias + j : NULL,
    };
}

/* Compute a block in row order of C: for each panel of A, multiply all panels of B, from the L2 cache. Each step
 * prefetches a few lines of the A that is packed next. Packing then takes half of the time, and weight gradients are 4
 * to 11% faster (DiT-S/2, DiT-B/2). */
static void multiply(const product *p) {
    _Alignas(64) float sums[MR * NR];
    deferred_store stores[2];
    int64_t count = 0;
    const int64_t row_panels = (p->m + MR - 1) / MR, column_panels = (p->n + NR - 1) / NR;
    hc_configure_tiles();
    for (int64_t i = 0; i < row_panels; ++i) {
        const char *a = p->a + i * p->a_panel;
        for (int64_t j = 0; j < column_panels; ++j, ++count) {
            stores[count % 2] = deferred_store_of(p, i * MR, j * NR, sums);
            multiply_panels(p->m - i * MR, p->n - j * NR, p, a, p->b + j * p->steps * STEP_BYTES, sums,
                            count ? &stores[(count + 1) % 2] : NULL);
        }
    }
    if (count) {
        stores[(count + 1) % 2].rows(&stores[(count + 1) % 2], 0, MR);
    }
    hc_tiles_release();
}

static void wide_block(const hc_gemm_block *x) {
    const int64_t steps = (x->k + KR - 1) / KR, in_place = x->a_row_bytes;
    const int64_t slots = ((x->m + MR - 1) / MR) * ((x->n + NR - 1) / NR) * steps;
    const product whole = {
        .m = x->m,
        .n = x->n,
        .steps = steps,
        .a = x->a,
        .b = x->b_panels,
        .a_panel = in_place ? MR * in_place : steps * STEP_BYTES,
        .a_step = in_place ? KR * 2 : STEP_BYTES,
        .a_stride = in_place ? in_place : KR * 2,
        .c = x->c,
        .c_stride = x->ldc * (x->c_dtype == HC_BF16 ? 2 : 4),
        .c_dtype = x->c_dtype,
        .bias = x->bias,
        .add = x->add,
        .prefetch = x->prefetch,
        .lines_per_step = x->prefetch ? (x->prefetch->share + slots - 1) / slots : 0,
    };
    multiply(&whole);
}

static void block(int64_t m, int64_t n, int64_t k, const void *a_panels, const void *b_panels, void *c, int64_t ldc,
                  const void *bias, int add) {
    wide_block(&(hc_gemm_block){.m = m, .n = n, .k = k, .a = a_panels, .b_panels = b_panels, .c = c, .ldc = ldc,
                                .c_dtype = HC_F32, .bias = bias, .add = add});
}

static void pack_b(int64_t k, int64_t n, const hc_matrix *b, void *out_panels) {
    hc_pack_bf16_b(k, n, b, KR, NR / 16, out_panels);
}

static int64_t mr(void) {
    return MR;
}

static int64_t nr(void) {
    return NR;
}

const hc_gemm_kernel hc_gemm_bf16_amx = {
    .name = "gemm_bf16_amx", .isa = HC_ISA_AMX, .dtype = HC_BF16, .mr = mr, .nr = nr, .kr = KR, .element_bytes = 2,
    .pack_a = hc_pack_bf16_a_tiles, .pack_b = pack_b, .block = block, .b_group = 2,
    .wide_block = wide_block, .rows_in_place = 16, .most_depth = MAX_DEPTH,
    .split_depth = SPLIT_DEPTH,
};
