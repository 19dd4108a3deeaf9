/* Split fp32 products on the tile unit with operands in the nearest caches, for the blocks of attention. gemm_f32_amx.c
 * contains the blocks of large matrices, and documents the sums.
 *
 * With `add`, sums start from C. Tiles are stored directly to C. Only the last rows and columns of a C with incomplete
 * tiles pass through vector registers. */
#if !defined(__AMX_TILE__) || !defined(__AMX_BF16__) || !defined(__AVX512BF16__) || !defined(__AVX512BW__)
#error "compile this file for AMX with BF16, and AVX-512 with BW and BF16"
#endif

#include <immintrin.h>
#include <string.h>

#include "gemm/gemm_kernel.h"
#include "gemm/near_block.h"
#include "gemm/x86/pack_f32_amx.h"
#include "minmax.h"
#include "simd/tiles_amx.h"

#define PANEL 32 /* rows of A, columns of B and depth of a step: two tiles of 16; a row of a tile is 64 bytes */
#define A_STRIDE 64
#define B_STRIDE (PANEL * 4)
#define PART HC_SPLIT_PART_BYTES

#define LOAD_A0(part) hc_tile_load(4, a + (part) * PART, A_STRIDE)
#define LOAD_A1(part) \
    if (two_rows) { \
        hc_tile_load(5, a + (part) * PART + 16 * A_STRIDE, A_STRIDE); \
    }
#define LOAD_B0(part) hc_tile_load(6, b + (part) * PART, B_STRIDE)
#define LOAD_B1(part) \
    if (two_columns) { \
        hc_tile_load(7, b + (part) * PART + 64, B_STRIDE); \
    }
#define PRODUCT_00 hc_tile_multiply_bf16(0, 4, 6)
#define PRODUCT_01 \
    if (two_columns) { \
        hc_tile_multiply_bf16(1, 4, 7); \
    }
#define PRODUCT_10 \
    if (two_rows) { \
        hc_tile_multiply_bf16(2, 5, 6); \
    }
#define PRODUCT_11 \
    if (two_rows && two_columns) { \
        hc_tile_multiply_bf16(3, 5, 7); \
    }

/* Compute all products of two parts, and load the next part of B or A. Each tile is loaded directly after the last
 * product that reads its predecessor. */
#define MULTIPLY_THEN_B(part) \
    PRODUCT_00; PRODUCT_10 LOAD_B0(part); PRODUCT_01 PRODUCT_11 LOAD_B1(part) hc_gemm_prefetch_lines(prefetch, lines)
#define MULTIPLY_THEN_A(part) \
    PRODUCT_00; PRODUCT_01 LOAD_A0(part); PRODUCT_10 PRODUCT_11 LOAD_A1(part) hc_gemm_prefetch_lines(prefetch, lines)

/* Multiply two panels. Tiles 0 to 3 are rows 0-15 and 16-31 by columns 0-15 and 16-31. */
__attribute__((always_inline)) static inline void multiply_tiles(int two_rows, int two_columns, int add, int tail,
                                                                 int64_t steps,
                                                                 const char *a, const char *b, float *c, int64_t ldc,
                                                                 hc_gemm_prefetch *prefetch, int64_t lines) {
    if (add) {
        hc_tile_load(0, c, ldc * 4);
        if (two_columns) {
            hc_tile_load(1, c + 16, ldc * 4);
        }
        if (two_rows) {
            hc_tile_load(2, c + 16 * ldc, ldc * 4);
        }
        if (two_rows && two_columns) {
            hc_tile_load(3, c + 16 * ldc + 16, ldc * 4);
        }
    } else {
        hc_tile_zero(0);
        hc_tile_zero(1);
        hc_tile_zero(2);
        hc_tile_zero(3);
    }
    for (int64_t step = 0; step < steps; ++step, a += HC_SPLIT_STEP_BYTES, b += HC_SPLIT_STEP_BYTES) {
        LOAD_A0(0);
        LOAD_B0(2);
        LOAD_A1(0)
        LOAD_B1(2)
        MULTIPLY_THEN_B(1);
        MULTIPLY_THEN_A(1);
        MULTIPLY_THEN_B(0);
        MULTIPLY_THEN_A(2);
        MULTIPLY_THEN_A(0);
        PRODUCT_00;
        PRODUCT_01
        PRODUCT_10
        PRODUCT_11
    }
    if (tail) {
        LOAD_A0(0);
        LOAD_B0(0);
        LOAD_A1(0)
        LOAD_B1(0)
        PRODUCT_00;
        PRODUCT_01
        PRODUCT_10
        PRODUCT_11
        LOAD_A0(1);
        LOAD_B0(1);
        LOAD_A1(1)
        LOAD_B1(1)
        PRODUCT_00;
        PRODUCT_01
        PRODUCT_10
        PRODUCT_11
    }
    hc_tile_store(0, c, ldc * 4);
    if (two_columns) {
        hc_tile_store(1, c + 16, ldc * 4);
    }
    if (two_rows) {
        hc_tile_store(2, c + 16 * ldc, ldc * 4);
    }
    if (two_rows && two_columns) {
        hc_tile_store(3, c + 16 * ldc + 16, ldc * 4);
    }
}

static void multiply_panels(int64_t rows, int64_t columns, int add, int tail, int64_t steps, const char *a, const char *b,
                            float *c, int64_t ldc, hc_gemm_prefetch *prefetch, int64_t lines) {
    if (rows > 16 && columns > 16) {
        multiply_tiles(1, 1, add, tail, steps, a, b, c, ldc, prefetch, lines);
    } else if (rows > 16) {
        multiply_tiles(1, 0, add, tail, steps, a, b, c, ldc, prefetch, lines);
    } else if (columns > 16) {
        multiply_tiles(0, 1, add, tail, steps, a, b, c, ldc, prefetch, lines);
    } else {
        multiply_tiles(0, 0, add, tail, steps, a, b, c, ldc, prefetch, lines);
    }
}

static void copy_rows(int64_t rows, int64_t columns, const float *from, int64_t from_stride, float *to, int64_t to_stride) {
    const __mmask32 mask = columns >= PANEL ? 0xffffffffu : (1u << columns) - 1u;
    const __mmask16 low = (__mmask16)mask, high = (__mmask16)(mask >> 16);
    for (int64_t i = 0; i < rows; ++i, from += from_stride, to += to_stride) {
        _mm512_mask_storeu_ps(to, low, _mm512_maskz_loadu_ps(low, from));
        _mm512_mask_storeu_ps(to + 16, high, _mm512_maskz_loadu_ps(high, from + 16));
    }
}

void hc_near_block_f32_amx(const hc_near_block *x) {
    _Alignas(64) float corner[PANEL * PANEL];
    const int64_t steps = (x->k + PANEL - 1) / PANEL - x->tail;
    hc_gemm_prefetch no_prefetch = {0}, *prefetch = x->prefetch ? x->prefetch : &no_prefetch;
    const int64_t slots = 5 * steps * ((x->m + PANEL - 1) / PANEL) * ((x->n + PANEL - 1) / PANEL);
    const int64_t lines = slots > 0 ? (prefetch->share + slots - 1) / slots : 0;
    hc_configure_tiles();
    for (int64_t i = 0; i < x->m; i += PANEL) {
        const char *a = (const char *)x->a_panels + i / PANEL * x->a_panel_bytes;
        for (int64_t j = 0; j < x->n; j += PANEL) {
            const char *b = (const char *)x->b_panels + j / PANEL * x->b_panel_bytes;
            const int64_t rows = hc_min_i64(PANEL, x->m - i), columns = hc_min_i64(PANEL, x->n - j);
            float *c = x->c + i * x->ldc + j;
            if (rows % 16 == 0 && columns % 16 == 0) {
                multiply_panels(rows, columns, x->add, x->tail, steps, a, b, c, x->ldc, prefetch, lines);
                continue;
            }
            if (x->add) {
                copy_rows(rows, columns, c, x->ldc, corner, PANEL);
                HC_BEFORE_TILES_READ(corner);
            }
            multiply_panels(rows, columns, x->add, x->tail, steps, a, b, corner, PANEL, prefetch, lines);
            copy_rows(rows, columns, corner, PANEL, c, x->ldc);
        }
    }
    hc_tiles_release();
}

/* A row of A is 64 bytes, so 8 of k are a quarter of it. */
void hc_near_tail_a_f32_amx(int64_t num_panels, int64_t k, void *panels) {
    const int64_t steps = (k + PANEL - 1) / PANEL;
    for (int64_t panel = 0; panel < num_panels; ++panel) {
        char *step = (char *)panels + (panel * steps + steps - 1) * HC_SPLIT_STEP_BYTES;
        for (int64_t row = 0; row < PANEL; ++row, step += A_STRIDE) {
            const __m512i x1 = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)step));
            const __m512i x2 = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)(step + PART)));
            const __m512i x3 = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)(step + 2 * PART)));
            _mm512_store_si512(step, _mm512_mask_blend_epi64(0xf0, x1, x2));
            _mm512_store_si512(step + PART, _mm512_maskz_mov_epi64(0x0f, _mm512_mask_blend_epi64(0x0c, x1, x3)));
        }
    }
}

/* A row of B is a pair of k, so 8 of k are four rows, 512 bytes. */
void hc_near_tail_b_f32_amx(int64_t num_panels, int64_t k, void *panels) {
    const int64_t steps = (k + PANEL - 1) / PANEL, quarter = PART / 4;
    for (int64_t panel = 0; panel < num_panels; ++panel) {
        char *step = (char *)panels + (panel * steps + steps - 1) * HC_SPLIT_STEP_BYTES;
        memcpy(step + quarter, step + PART, (size_t)quarter);
        memcpy(step + 2 * quarter, step, (size_t)(2 * quarter));
        memcpy(step + PART, step + 2 * PART, (size_t)quarter);
        memcpy(step + PART + quarter, step, (size_t)quarter);
    }
}
