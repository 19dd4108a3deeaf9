/* Packing of fp32 and bf16 matrices into panels of bf16 pairs, with AVX-512.
 *
 * The unit of work is a block of 32 lines of 32 elements. A line is contiguous in memory. Lines run either along k (A
 * by rows, B by columns) or across k (A by columns, B by rows), which gives four rearrangements. Each reads complete
 * bf16 blocks directly from the source, and other blocks from a copy on the stack. */
#if !defined(__AVX512BF16__) || !defined(__AVX512BW__) || !defined(__AVX512VL__)
#error "compile this file for AVX-512 with BW, VL and BF16"
#endif

#include "gemm/x86/pack_bf16_avx512bf16.h"

#include <immintrin.h>

#include "gemm/x86/transpose_avx512.h"
#include "minmax.h"

#define BLOCK 32      /* lines and elements of a block; a line of bf16 is 64 bytes, the depth of a tile */
/* rows per panel of A for VDPBF16PS: 12 x 2 sums, 2 vectors of B and spare registers fill the 32 registers */
#define PAIR_ROWS 12

/* A matrix as lines. */
typedef struct {
    const char *data;
    int64_t stride; /* bytes, distance of lines */
    int64_t bytes;  /* bytes per element */
    float scale;
    int plain; /* bf16 that is copied without conversion */
} lines;

static lines lines_of(const hc_matrix *matrix, int64_t stride, float scale) {
    const int64_t bytes = matrix->dtype == HC_BF16 ? 2 : 4;
    const lines result = {matrix->data, stride * bytes, bytes, scale, matrix->dtype == HC_BF16 && scale == 1.0f};
    return result;
}

static inline __mmask32 first(int64_t count) {
    return count >= 32 ? 0xffffffffu : count <= 0 ? 0u : (1u << count) - 1u;
}

/* Load up to 32 elements of a line as two vectors of fp32. Masked lanes are zero. */
static inline void load_floats(const lines *source, const char *at, __mmask32 mask, __m512 *low, __m512 *high) {
    if (source->bytes == 2) {
        const __m512i x = _mm512_maskz_loadu_epi16(mask, at);
        *low = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(x)), 16));
        *high = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(x, 1)), 16));
    } else {
        *low = _mm512_maskz_loadu_ps((__mmask16)mask, at);
        *high = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), at + 64);
    }
}

/* Load up to 32 elements of a line, scaled and rounded to bf16. */
static inline __m512i load_line(const lines *source, const char *at, __mmask32 mask) {
    if (source->plain) {
        return _mm512_maskz_loadu_epi16(mask, at);
    }
    __m512 low, high;
    load_floats(source, at, mask, &low, &high);
    const __m512 scale = _mm512_set1_ps(source->scale);
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(high, scale), _mm512_mul_ps(low, scale));
}

/* Return the lines of a block and their stride: the source itself, or a copy in `stage`, padded with zeros. */
static inline const char *block_lines(const lines *source, int64_t line, int64_t element, int64_t num_lines,
                                      int64_t num_elements, char *stage, int64_t *out_stride) {
    const char *at = source->data + line * source->stride + element * source->bytes;
    if (source->plain && num_lines >= BLOCK && num_elements >= BLOCK) {
        *out_stride = source->stride;
        return at;
    }
    const __mmask32 mask = first(num_elements);
    for (int64_t i = 0; i < BLOCK; ++i) {
        const __m512i x = i < num_lines ? load_line(source, at + i * source->stride, mask) : _mm512_setzero_si512();
        _mm512_store_si512(stage + i * 64, x);
    }
    *out_stride = 64;
    return stage;
}

/* Prefetch the lines of the next block. Their distance is too large for the hardware prefetcher. */
static inline void prefetch_lines(const lines *source, int64_t line, int64_t element, int64_t num_lines) {
    const char *at = source->data + line * source->stride + element * source->bytes;
    for (int64_t i = 0; i < hc_min_i64(BLOCK, num_lines); ++i) {
        _mm_prefetch(at + i * source->stride, _MM_HINT_T0);
        if (source->bytes == 4) {
            _mm_prefetch(at + i * source->stride + 64, _MM_HINT_T0);
        }
    }
}

/* Transpose eight elements of 32 lines across k. Row i of the 8 rows at `out` is element i of every line. Lane l of
 * vector t contains line 8 l + t. */
static inline void transpose_elements(const char *at, int64_t stride, char *out) {
    __m512i x[8], y[8];
    for (int t = 0; t < 8; ++t) {
        x[t] = hc_gather_lanes(at + t * stride, 8 * stride);
    }
    for (int t = 0; t < 4; ++t) {
        y[t] = _mm512_unpacklo_epi16(x[2 * t], x[2 * t + 1]);
        y[t + 4] = _mm512_unpackhi_epi16(x[2 * t], x[2 * t + 1]);
    }
    for (int t = 0; t < 2; ++t) {
        x[4 * t + 0] = _mm512_unpacklo_epi32(y[4 * t], y[4 * t + 1]);
        x[4 * t + 1] = _mm512_unpackhi_epi32(y[4 * t], y[4 * t + 1]);
        x[4 * t + 2] = _mm512_unpacklo_epi32(y[4 * t + 2], y[4 * t + 3]);
        x[4 * t + 3] = _mm512_unpackhi_epi32(y[4 * t + 2], y[4 * t + 3]);
    }
    for (int t = 0; t < 4; ++t) {
        const int from = (t >> 1) * 4 + (t & 1);
        _mm512_store_si512(out + (2 * t) * 64, _mm512_unpacklo_epi64(x[from], x[from + 2]));
        _mm512_store_si512(out + (2 * t + 1) * 64, _mm512_unpackhi_epi64(x[from], x[from + 2]));
    }
}

/* Targets of a block of 32 columns of B: one per 16 columns, or NULL, with `stride` bytes between pairs. */
typedef struct {
    char *half[2];
    int64_t stride;
} b_places;

/* Store a block of B with lines along k, one per column. */
static inline void put_b_along(const char *at, int64_t stride, int64_t pairs, const b_places *out) {
    for (int half = 0; half < 2; ++half) {
        for (int64_t pair = 0; pair < pairs && out->half[half]; pair += 4) {
            __m512i x[4];
            hc_transpose_pairs(at + half * 16 * stride + pair * 4, stride, x);
            for (int64_t i = 0; i < hc_min_i64(4, pairs - pair); ++i) {
                _mm512_store_si512(out->half[half] + (pair + i) * out->stride, x[i]);
            }
        }
    }
}

/* Store a block of B with lines across k. Adjacent lines are interleaved. Unpacking puts columns 0-3, 8-11, ... in
 * `low` and the rest in `high`, with two columns per 64 bits. */
static inline void put_b_across(const char *at, int64_t stride, int64_t pairs, const b_places *out) {
    const __m512i order0 = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), order1 = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    for (int64_t pair = 0; pair < pairs; ++pair) {
        const __m512i even = _mm512_loadu_si512(at + 2 * pair * stride), odd = _mm512_loadu_si512(at + (2 * pair + 1) * stride);
        const __m512i low = _mm512_unpacklo_epi16(even, odd), high = _mm512_unpackhi_epi16(even, odd);
        _mm512_store_si512(out->half[0] + pair * out->stride, _mm512_permutex2var_epi64(low, order0, high));
        if (out->half[1]) {
            _mm512_store_si512(out->half[1] + pair * out->stride, _mm512_permutex2var_epi64(low, order1, high));
        }
    }
}

void hc_pack_bf16_b(int64_t k, int64_t n, const hc_matrix *b, int64_t kr, int64_t tiles, void *out_panels) {
    _Alignas(64) char stage[BLOCK * 64];
    const int64_t depth = (k + kr - 1) / kr * kr, all_tiles = (n + 16 * tiles - 1) / (16 * tiles) * tiles;
    const int64_t blocks = (all_tiles + 1) / 2, steps = (depth + BLOCK - 1) / BLOCK;
    const int along = b->row_stride == 1 || k == 1;
    const lines source = lines_of(b, along ? b->column_stride : b->row_stride, 1.0f);
    /* The inner loop runs along the lines. */
    for (int64_t at_block = 0; at_block < blocks * steps; ++at_block) {
        const int64_t j = BLOCK * (along ? at_block / steps : at_block % blocks);
        const int64_t p = BLOCK * (along ? at_block % steps : at_block / blocks);
        const int64_t pairs = hc_min_i64(BLOCK, depth - p) / 2;
        b_places out = {.stride = tiles * 64};
        for (int half = 0; half < 2; ++half) {
            const int64_t tile = j / 16 + half;
            if (tile < all_tiles) {
                out.half[half] = (char *)out_panels + tile / tiles * depth * tiles * 32 + tile % tiles * 64 + p / 2 * out.stride;
            }
        }
        int64_t stride;
        if (along) {
            const char *at = block_lines(&source, j, p, n - j, k - p, stage, &stride);
            put_b_along(at, stride, pairs, &out);
        } else {
            if (p + BLOCK < k && j < n) {
                prefetch_lines(&source, p + BLOCK, j, k - p - BLOCK);
            }
            const char *at = block_lines(&source, p, j, k - p, n - j, stage, &stride);
            put_b_across(at, stride, pairs, &out);
        }
    }
}

/* Add the sums of m rows over k, in the order of k and times the scale, to sums[0..m). m is at most 32 unless lines run
 * along k. */
static void add_row_sums(const lines *source, int along, int64_t row, int64_t m, int64_t k, float *sums) {
    if (along) {
        for (int64_t i = 0; i < m; ++i) {
            __m512 sum0 = _mm512_setzero_ps(), sum1 = sum0, low, high;
            for (int64_t p = 0; p < k; p += BLOCK) {
                load_floats(source, source->data + (row + i) * source->stride + p * source->bytes, first(k - p), &low, &high);
                sum0 = _mm512_add_ps(sum0, low);
                sum1 = _mm512_add_ps(sum1, high);
            }
            sums[i] += source->scale * _mm512_reduce_add_ps(_mm512_add_ps(sum0, sum1));
        }
        return;
    }
    __m512 sum0 = _mm512_setzero_ps(), sum1 = sum0, low, high;
    for (int64_t p = 0; p < k; ++p) {
        load_floats(source, source->data + p * source->stride + row * source->bytes, first(m), &low, &high);
        sum0 = _mm512_add_ps(sum0, low);
        sum1 = _mm512_add_ps(sum1, high);
    }
    const __m512 scale = _mm512_set1_ps(source->scale);
    const __mmask16 mask0 = (__mmask16)first(m), mask1 = (__mmask16)(first(m) >> 16);
    _mm512_mask_storeu_ps(sums, mask0, _mm512_fmadd_ps(sum0, scale, _mm512_maskz_loadu_ps(mask0, sums)));
    _mm512_mask_storeu_ps(sums + 16, mask1, _mm512_fmadd_ps(sum1, scale, _mm512_maskz_loadu_ps(mask1, sums + 16)));
}

void hc_pack_bf16_a_tiles(int64_t m, int64_t k, const hc_matrix *a, float scale, void *out_panels, float *row_sum) {
    _Alignas(64) char stage[BLOCK * 64];
    const int64_t depth = (k + BLOCK - 1) / BLOCK * BLOCK, panels = (m + BLOCK - 1) / BLOCK;
    const int along = a->column_stride == 1 || k == 1;
    const lines source = lines_of(a, along ? a->row_stride : a->column_stride, scale);
    int64_t stride;
    if (along) {
        for (int64_t row = 0; row < panels * BLOCK; ++row) {
            char *out = (char *)out_panels + row / BLOCK * depth * BLOCK * 2 + row % BLOCK * 64;
            const char *at = source.data + row * source.stride;
            for (int64_t p = 0; p < depth; p += BLOCK) {
                _mm512_store_si512(out + p * 64, load_line(&source, at + p * source.bytes, row < m ? first(k - p) : 0));
            }
        }
        if (row_sum) {
            add_row_sums(&source, along, 0, m, k, row_sum);
        }
        return;
    }
    for (int64_t p = 0; p < k; p += BLOCK) {
        for (int64_t panel = 0; panel < panels; ++panel) {
            char *out = (char *)out_panels + (panel * depth + p) * BLOCK * 2;
            if (p + BLOCK < k) {
                prefetch_lines(&source, p + BLOCK, panel * BLOCK, k - p - BLOCK);
            }
            const char *at = block_lines(&source, p, panel * BLOCK, k - p, m - panel * BLOCK, stage, &stride);
            for (int rows = 0; rows < BLOCK; rows += 8) {
                transpose_elements(at + rows * 2, stride, out + rows * 64);
            }
            if (row_sum) {
                const lines part = {source.data + p * source.stride, source.stride, source.bytes, scale, source.plain};
                add_row_sums(&part, along, panel * BLOCK, hc_min_i64(BLOCK, m - panel * BLOCK),
                             hc_min_i64(BLOCK, k - p), row_sum + panel * BLOCK);
            }
        }
    }
}

/* Pack twelve rows of A with lines along k, one per row. `rows` of them exist. */
static void put_a_pairs_along(const lines *source, int64_t row, int64_t rows, int64_t k, char *out) {
    _Alignas(64) char stage[16 * 64];
    for (int64_t i = 0; i < 16; ++i) {
        _mm512_store_si512(stage + i * 64, _mm512_setzero_si512());
    }
    for (int64_t p = 0; p < k; p += BLOCK) {
        for (int64_t i = 0; i < rows; ++i) {
            const char *at = source->data + (row + i) * source->stride + p * source->bytes;
            _mm512_store_si512(stage + i * 64, load_line(source, at, first(k - p)));
        }
        const int64_t pairs = (hc_min_i64(BLOCK, k - p) + 1) / 2;
        for (int64_t pair = 0; pair < pairs; pair += 4) {
            __m512i x[4];
            hc_transpose_pairs(stage + pair * 4, 64, x);
            for (int64_t i = 0; i < hc_min_i64(4, pairs - pair); ++i) {
                _mm512_mask_storeu_epi32(out + (p / 2 + pair + i) * PAIR_ROWS * 4, 0xfff, x[i]);
            }
        }
    }
}

/* Pack twelve rows of A with lines across k. */
static void put_a_pairs_across(const lines *source, int64_t row, int64_t rows, int64_t k, char *out) {
    for (int64_t p = 0; p < k; p += 2) {
        const char *at = source->data + p * source->stride + row * source->bytes;
        const __m256i even = _mm512_castsi512_si256(load_line(source, at, first(rows)));
        __m512i pair = _mm512_cvtepu16_epi32(even);
        if (p + 1 < k) {
            const __m256i odd = _mm512_castsi512_si256(load_line(source, at + source->stride, first(rows)));
            pair = _mm512_or_si512(pair, _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
        }
        _mm512_mask_storeu_epi32(out + p / 2 * PAIR_ROWS * 4, 0xfff, pair);
    }
}

void hc_pack_bf16_a_pairs(int64_t m, int64_t k, const hc_matrix *a, float scale, void *out_panels, float *row_sum) {
    const int along = a->column_stride == 1 || k == 1;
    const lines source = lines_of(a, along ? a->row_stride : a->column_stride, scale);
    for (int64_t row = 0; row < m; row += PAIR_ROWS) {
        char *out = (char *)out_panels + row * ((k + 1) / 2) * 4;
        const int64_t rows = hc_min_i64(PAIR_ROWS, m - row);
        (along ? put_a_pairs_along : put_a_pairs_across)(&source, row, rows, k, out);
        if (row_sum) {
            add_row_sums(&source, along, row, rows, k, row_sum + row);
        }
    }
}
