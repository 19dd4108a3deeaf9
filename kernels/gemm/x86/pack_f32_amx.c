/* Packing of fp32 matrices into panels of three bf16 per number.
 *
 * The unit of work is a block of 32 lines of 32 elements. A line is contiguous in memory. If the panel requires the
 * other order, the numbers are transposed before they are split (A), or their parts are interleaved (B). */
#if !defined(__AVX512BF16__) || !defined(__AVX512BW__) || !defined(__AVX512VL__)
#error "compile this file for AVX-512 with BW, VL and BF16"
#endif

#include "gemm/x86/pack_f32_amx.h"

#include <immintrin.h>

#include "gemm/x86/transpose_avx512.h"
#include "minmax.h"

#define BLOCK 32
#define LINE_BYTES 64 /* bytes of a line of one part */

/* A matrix as lines. */
typedef struct {
    const char *data;
    int64_t stride; /* bytes, distance of lines */
    int64_t bytes;  /* bytes per element */
    float scale;
} lines;

static lines lines_of(const hc_matrix *matrix, int64_t stride, float scale) {
    const int64_t bytes = matrix->dtype == HC_BF16 ? 2 : 4;
    return (lines){matrix->data, stride * bytes, bytes, scale};
}

static inline __mmask32 first(int64_t count) {
    return count >= 32 ? 0xffffffffu : count <= 0 ? 0u : (1u << count) - 1u;
}

static inline __m512 widen(__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

/* Load up to 32 elements as two vectors of fp32. Masked lanes are zero. */
static inline void load_floats(const char *at, int64_t bytes, __mmask32 mask, __m512 *low, __m512 *high) {
    if (bytes == 2) {
        const __m512i x = _mm512_maskz_loadu_epi16(mask, at);
        *low = widen(_mm512_castsi512_si256(x));
        *high = widen(_mm512_extracti64x4_epi64(x, 1));
    } else {
        *low = _mm512_maskz_loadu_ps((__mmask16)mask, at);
        *high = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), at + 64);
    }
}

/* Store the parts of 32 numbers, one line each, at out, out + HC_SPLIT_PART_BYTES, ... */
static inline void split_line(__m512 low, __m512 high, char *out) {
    for (int part = 0; part < HC_SPLIT_PARTS; ++part) {
        const __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(high, low);
        _mm512_store_si512(out + part * HC_SPLIT_PART_BYTES, rounded);
        low = _mm512_sub_ps(low, widen(_mm512_castsi512_si256(rounded)));
        high = _mm512_sub_ps(high, widen(_mm512_extracti64x4_epi64(rounded, 1)));
    }
}

/* Return the nearest bf16 as fp32. Ties round away from zero, with the same error. Not valid for nan, which is out of
 * range. */
static inline __m512 nearest(__m512 x) {
    const __m512i up = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
    return _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32((int)0xffff0000u)));
}

/* Interleave bf16: low halves from `even`, high halves from `odd`. Bits beyond a bf16 are truncated. */
static inline __m512i interleave(__m512 even, __m512 odd) {
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
    /* 0xea: (mask and odd) or low */
    return _mm512_ternarylogic_epi32(_mm512_set1_epi32((int)0xffff0000u), _mm512_castps_si512(odd), low, 0xea);
}

/* Split 16 numbers at even and 16 at odd positions, and interleave their parts. This avoids the conversion instruction,
 * which takes twice as long with its shuffles. The last part has no more bits than a bf16. */
static inline void split_interleaved(__m512 even, __m512 odd, __m512i out[HC_SPLIT_PARTS]) {
    for (int part = 0; part < HC_SPLIT_PARTS - 1; ++part) {
        const __m512 even_part = nearest(even), odd_part = nearest(odd);
        out[part] = interleave(even_part, odd_part);
        even = _mm512_sub_ps(even, even_part);
        odd = _mm512_sub_ps(odd, odd_part);
    }
    out[HC_SPLIT_PARTS - 1] = interleave(even, odd);
}

static inline __m512i max_magnitude(__m512i largest, __m512 low, __m512 high) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    largest = _mm512_max_epu32(largest, _mm512_and_si512(magnitude, _mm512_castps_si512(low)));
    return _mm512_max_epu32(largest, _mm512_and_si512(magnitude, _mm512_castps_si512(high)));
}

/* Block to pack: its address, its valid size, and the address of the next block. */
typedef struct {
    const char *at, *next;
    int64_t num_lines, num_elements; /* values above 32 mean 32, values below 1 mean 0 */
} block_place;

/* Load line i of the block as two scaled vectors of fp32, zero outside. Update *largest with the unscaled
 * magnitudes. */
static inline void read_line(const lines *source, const block_place *block, int64_t i, __m512 *low, __m512 *high,
                             __m512i *largest) {
    const __mmask32 mask = i < block->num_lines ? first(block->num_elements) : 0;
    load_floats(block->at + i * source->stride, source->bytes, mask, low, high);
    *largest = max_magnitude(*largest, *low, *high);
    const __m512 scale = _mm512_set1_ps(source->scale);
    *low = _mm512_mul_ps(*low, scale);
    *high = _mm512_mul_ps(*high, scale);
}

/* Prefetch line i of the next block. Lines are far apart, on separate pages, where hardware prefetching ends. */
static inline void prefetch_line(const lines *source, const block_place *block, int64_t i) {
    const char *next = block->next + i * source->stride;
    _mm_prefetch(next, _MM_HINT_T0);
    _mm_prefetch(next + 64, _MM_HINT_T0);
}

/* Store a block of A with lines along k: lines become rows of tiles. */
static inline void put_a_along(const lines *source, const block_place *block, char *out, __m512i *largest) {
    for (int64_t i = 0; i < BLOCK; ++i) {
        __m512 low, high;
        read_line(source, block, i, &low, &high, largest);
        prefetch_line(source, block, i);
        split_line(low, high, out + i * LINE_BYTES);
    }
}

/* Store a block of A with lines across k: lines become columns of tiles. The numbers are transposed through `stage`. */
static inline void put_a_across(const lines *source, const block_place *block, char *out, __m512i *largest) {
    _Alignas(64) float stage[BLOCK * BLOCK];
    for (int64_t i = 0; i < BLOCK; ++i) {
        __m512 low, high;
        read_line(source, block, i, &low, &high, largest);
        _mm512_store_ps(stage + i * BLOCK, low);
        _mm512_store_ps(stage + i * BLOCK + 16, high);
    }
    const int64_t stride = sizeof(float) * BLOCK;
    for (int64_t row = 0; row < BLOCK; row += 4) {
        __m512i even[4], odd[4], parts[HC_SPLIT_PARTS];
        hc_transpose_pairs((const char *)(stage + row), 2 * stride, even);
        hc_transpose_pairs((const char *)(stage + row) + stride, 2 * stride, odd);
        for (int i = 0; i < 4; ++i) {
            prefetch_line(source, block, row + i);
            split_interleaved(_mm512_castsi512_ps(even[i]), _mm512_castsi512_ps(odd[i]), parts);
            for (int part = 0; part < HC_SPLIT_PARTS; ++part) {
                _mm512_store_si512(out + (row + i) * LINE_BYTES + part * HC_SPLIT_PART_BYTES, parts[part]);
            }
        }
    }
}

/* Store a block of B with lines along k: lines become columns. The pairs of their parts are transposed. */
static inline void put_b_along(const lines *source, const block_place *block, char *out, __m512i *largest) {
    _Alignas(64) char stage[HC_SPLIT_STEP_BYTES];
    put_a_along(source, block, stage, largest);
    for (int part = 0; part < HC_SPLIT_PARTS; ++part, out += HC_SPLIT_PART_BYTES) {
        for (int half = 0; half < 2; ++half) {
            const char *at = stage + part * HC_SPLIT_PART_BYTES + half * 16 * LINE_BYTES;
            for (int pair = 0; pair < BLOCK / 2; pair += 4) {
                __m512i x[4];
                hc_transpose_pairs(at + pair * 4, LINE_BYTES, x);
                for (int i = 0; i < 4; ++i) {
                    _mm512_store_si512(out + (pair + i) * 2 * LINE_BYTES + half * LINE_BYTES, x[i]);
                }
            }
        }
    }
}

/* Store a block of B with lines across k: lines are rows of B. Adjacent lines are interleaved; 16 columns of a pair of
 * lines are a row of a tile. */
static inline void put_b_across(const lines *source, const block_place *block, char *out, __m512i *largest) {
    for (int64_t pair = 0; pair < BLOCK / 2; ++pair, out += 2 * LINE_BYTES) {
        __m512 even[2], odd[2];
        read_line(source, block, 2 * pair, &even[0], &even[1], largest);
        prefetch_line(source, block, 2 * pair);
        read_line(source, block, 2 * pair + 1, &odd[0], &odd[1], largest);
        prefetch_line(source, block, 2 * pair + 1);
        for (int half = 0; half < 2; ++half) {
            __m512i parts[HC_SPLIT_PARTS];
            split_interleaved(even[half], odd[half], parts);
            for (int part = 0; part < HC_SPLIT_PARTS; ++part) {
                _mm512_store_si512(out + part * HC_SPLIT_PART_BYTES + half * LINE_BYTES, parts[part]);
            }
        }
    }
}

/* Add the sums of rows along k to sums[0..m). */
static void add_sums_along(const lines *source, int64_t m, int64_t k, float *sums) {
    for (int64_t i = 0; i < m; ++i) {
        __m512 sum0 = _mm512_setzero_ps(), sum1 = sum0, low, high;
        for (int64_t p = 0; p < k; p += BLOCK) {
            load_floats(source->data + i * source->stride + p * source->bytes, source->bytes, first(k - p), &low, &high);
            sum0 = _mm512_add_ps(sum0, low);
            sum1 = _mm512_add_ps(sum1, high);
        }
        sums[i] += source->scale * _mm512_reduce_add_ps(_mm512_add_ps(sum0, sum1));
    }
}

/* Add the sums of rows across the lines at `at` to sums[0..m), m <= 32. */
static void add_sums_across(const lines *source, const char *at, int64_t m, int64_t k, float *sums) {
    const __mmask32 mask = first(m);
    __m512 sum0 = _mm512_setzero_ps(), sum1 = sum0, low, high;
    for (int64_t p = 0; p < k; ++p) {
        load_floats(at + p * source->stride, source->bytes, mask, &low, &high);
        sum0 = _mm512_add_ps(sum0, low);
        sum1 = _mm512_add_ps(sum1, high);
    }
    const __m512 scale = _mm512_set1_ps(source->scale);
    load_floats((const char *)sums, 4, mask, &low, &high);
    _mm512_mask_storeu_ps(sums, (__mmask16)mask, _mm512_fmadd_ps(sum0, scale, low));
    _mm512_mask_storeu_ps(sums + 16, (__mmask16)(mask >> 16), _mm512_fmadd_ps(sum1, scale, high));
}

typedef void put_block(const lines *source, const block_place *block, char *out, __m512i *largest);

/* Pack all blocks of `count` rows of A or columns of B, and return the largest magnitude. along: lines run along k.
 * sums: NULL, or `count` sums over k. */
static inline uint32_t pack(const lines *source, int along, int64_t count, int64_t k, put_block *put, char *out_panels,
                            float *sums) {
    const int64_t steps = (k + BLOCK - 1) / BLOCK, panels = (count + BLOCK - 1) / BLOCK, blocks = steps * panels;
    __m512i largest = _mm512_setzero_si512();
    block_place block = {.next = source->data};
    for (int64_t number = 0; number < blocks; ++number) {
        /* The inner loop runs along the lines. */
        const int64_t following = number + 1 < blocks ? number + 1 : number;
        const int64_t panel = along ? number / steps : number % panels, step = along ? number % steps : number / panels;
        const int64_t in_line = along ? steps : panels, line = following / in_line, element = following % in_line;
        block.at = block.next;
        block.next = source->data + BLOCK * (line * source->stride + element * source->bytes);
        block.num_lines = along ? count - panel * BLOCK : k - step * BLOCK;
        block.num_elements = along ? k - step * BLOCK : count - panel * BLOCK;
        put(source, &block, out_panels + (panel * steps + step) * HC_SPLIT_STEP_BYTES, &largest);
        if (sums && !along) {
            add_sums_across(source, block.at, hc_min_i64(BLOCK, block.num_elements), hc_min_i64(BLOCK, block.num_lines),
                            sums + panel * BLOCK);
        }
    }
    if (sums && along) {
        add_sums_along(source, count, k, sums);
    }
    return _mm512_reduce_max_epu32(largest);
}

uint32_t hc_split_pack_a_max(int64_t m, int64_t k, const hc_matrix *a, float scale, void *out_panels, float *row_sum) {
    const int along = a->column_stride == 1 || k == 1;
    const lines source = lines_of(a, along ? a->row_stride : a->column_stride, scale);
    return along ? pack(&source, 1, m, k, put_a_along, out_panels, row_sum)
                 : pack(&source, 0, m, k, put_a_across, out_panels, row_sum);
}

uint32_t hc_split_pack_b_max(int64_t k, int64_t n, const hc_matrix *b, void *out_panels) {
    const int along = b->row_stride == 1 || k == 1;
    const lines source = lines_of(b, along ? b->column_stride : b->row_stride, 1.0f);
    return along ? pack(&source, 1, n, k, put_b_along, out_panels, NULL)
                 : pack(&source, 0, n, k, put_b_across, out_panels, NULL);
}

void hc_split_pack_a(int64_t m, int64_t k, const hc_matrix *a, float scale, void *out_panels, float *row_sum) {
    hc_split_pack_a_max(m, k, a, scale, out_panels, row_sum);
}

void hc_split_pack_b(int64_t k, int64_t n, const hc_matrix *b, void *out_panels) {
    hc_split_pack_b_max(k, n, b, out_panels);
}

uint32_t hc_split_largest(int64_t rows, int64_t columns, const hc_matrix *x) {
    const int by_rows = x->column_stride == 1 || columns == 1;
    const int64_t num_lines = by_rows ? rows : columns, length = by_rows ? columns : rows;
    const lines source = lines_of(x, by_rows ? x->row_stride : x->column_stride, 1.0f);
    __m512i largest = _mm512_setzero_si512();
    for (int64_t i = 0; i < num_lines; ++i) {
        const char *at = source.data + i * source.stride;
        for (int64_t j = 0; j < length; j += BLOCK) {
            __m512 low, high;
            load_floats(at + j * source.bytes, source.bytes, first(length - j), &low, &high);
            largest = max_magnitude(largest, low, high);
        }
    }
    return _mm512_reduce_max_epu32(largest);
}
