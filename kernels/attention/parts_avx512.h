/* Store probabilities and their gradients as panels of three bf16 per number, for products of fp32 on a bf16 matrix
 * unit (gemm/x86/pack_f32_amx.h). The functions write the layouts of panels of B and of A from registers.
 *
 * x = x1 + x2 + x3 exactly. x1 is x rounded to 8 bits, x2 is the remainder truncated to 8 bits, x3 is the rest. The
 * input must be finite and below 2^127. Heads with other numbers use another kernel (attention_range.c). */
#ifndef HC_PARTS_AVX512_H
#define HC_PARTS_AVX512_H

#include "attention/attention.h"
#include "simd/math.h"
#include "simd/simd.h"

#define PARTS 3
#define PART_BYTES 2048 /* 32 x 32 bf16 */
#define STEP_BYTES (PARTS * PART_BYTES)
#define UPPER_HALVES _mm512_set1_epi32((int)0xffff0000)

/* The upper half of each 32-bit word is the bf16. */
typedef struct {
    __m512i part[PARTS];
} hc_parts;

HC_INLINE hc_parts hc_split_in_parts(hc_vf x) {
    hc_parts parts;
    parts.part[0] = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000)), UPPER_HALVES);
    const __m512 rest = _mm512_sub_ps(x, _mm512_castsi512_ps(parts.part[0]));
    parts.part[1] = _mm512_and_si512(_mm512_castps_si512(rest), UPPER_HALVES);
    parts.part[2] = _mm512_castps_si512(_mm512_sub_ps(rest, _mm512_castsi512_ps(parts.part[1])));
    return parts;
}

/* Store 16 columns of two rows to a panel of B: [k / 32][3 parts][16 pairs][2 x 16 columns][2 of k]. */
HC_INLINE void hc_store_parts_b(char *block, int64_t panel_bytes, int64_t row, int64_t column, const hc_parts *even,
                                const hc_parts *odd) {
    char *out = block + column / 32 * panel_bytes + row / 32 * STEP_BYTES + row % 32 * 64 + column % 32 * 4;
    for (int part = 0; part < PARTS; part++) {
        const __m512i low = _mm512_srli_epi32(even->part[part], 16);
        _mm512_storeu_si512(out + part * PART_BYTES, _mm512_mask_blend_epi16(0xaaaaaaaau, low, odd->part[part]));
    }
}

/* Store 32 columns of a row to a panel of A: [k / 32][3 parts][32 rows][32 of k]. Columns from `valid` on are stored as
 * 0. */
HC_INLINE void hc_store_parts_a(char *out, int64_t valid, const hc_parts *low, const hc_parts *high) {
    const __m512i upper = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23,
                                           21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    const __mmask32 mask = valid >= 32 ? 0xffffffffu : (1u << valid) - 1u;
    for (int part = 0; part < PARTS; part++) {
        const __m512i row = _mm512_maskz_permutex2var_epi16(mask, low->part[part], upper, high->part[part]);
        _mm512_storeu_si512(out + part * PART_BYTES, row);
    }
}

/* Compute 16 columns of two rows. Store P and dS to their panels of B and return dS in parts. A last row without a
 * partner is paired with zeros. */
HC_INLINE void hc_gradient_of_columns(const hc_attention_rows *block, int64_t i, int64_t j, hc_parts *out_even,
                                      hc_parts *out_odd) {
    const int64_t next = i + 1 < block->rows ? 1 : 0, even_at = i * block->width + j, odd_at = even_at + next * block->width;
    const hc_vf scale = hc_set(block->scale), log2_e = hc_set(HC_LOG2_E);
    const hc_vf even_score = hc_fma(hc_load(block->scores + even_at), scale, hc_set(-block->lse[i]));
    const hc_vf odd_score = hc_fma(hc_load(block->scores + odd_at), scale, hc_set(-block->lse[i + next]));
    const hc_vf even_p = hc_exp2(hc_mul(even_score, log2_e));
    const hc_vf odd_p = next ? hc_exp2(hc_mul(odd_score, log2_e)) : hc_zero();
    const hc_vf even_ds = hc_mul(even_p, hc_sub(hc_load(block->dp + even_at), hc_set(block->delta[i])));
    const hc_vf odd_ds = hc_mul(odd_p, hc_sub(hc_load(block->dp + odd_at), hc_set(block->delta[i + next])));
    const hc_parts even = hc_split_in_parts(even_p), odd = hc_split_in_parts(odd_p);
    hc_store_parts_b((char *)block->out_p, block->panel_bytes, i, j, &even, &odd);
    *out_even = hc_split_in_parts(even_ds);
    *out_odd = hc_split_in_parts(odd_ds);
    hc_store_parts_b((char *)block->out_ds, block->panel_bytes, i, j, out_even, out_odd);
}

HC_INLINE void hc_gradient_in_parts(const hc_attention_rows *block) {
    const int64_t row_panel_bytes = (block->keys + 31) / 32 * STEP_BYTES;
    for (int64_t i = 0; i < block->rows; i += 2) {
        char *row = (char *)block->out_ds_rows + i / 32 * row_panel_bytes + i % 32 * 64;
        for (int64_t j = 0; j < block->columns; j += 32) {
            hc_parts even[2], odd[2];
            hc_gradient_of_columns(block, i, j, &even[0], &odd[0]);
            hc_gradient_of_columns(block, i, j + 16, &even[1], &odd[1]);
            hc_store_parts_a(row + j / 32 * STEP_BYTES, block->keys - j, &even[0], &even[1]);
            hc_store_parts_a(row + j / 32 * STEP_BYTES + 64, block->keys - j, &odd[0], &odd[1]);
        }
    }
}

#undef UPPER_HALVES

#endif
