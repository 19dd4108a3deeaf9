/* Packing of fp32 matrices into panels of three bf16 a number.
 *
 * The unit of work is a block of 32 lines of 32 elements, a line being what is contiguous in memory. It is split into its three
 * parts, and each of them packed as the bf16 that it is. */
#if !defined(__AVX512BF16__) || !defined(__AVX512BW__) || !defined(__AVX512VL__)
#error "compile this file for AVX-512 with BW, VL and BF16"
#endif

#include "gemm/pack_f32_amx.h"

#include <immintrin.h>

#include "gemm/pack_bf16_avx512bf16.h"

#define BLOCK 32
#define LINE_BYTES 64 /* of a line of a part */

/* A matrix seen as lines. */
typedef struct {
    const char *data;
    int64_t stride; /* bytes from a line to the next */
    int64_t bytes;  /* of an element */
    float scale;
} lines;

static lines lines_of(const hc_matrix *matrix, int64_t stride, float scale) {
    const int64_t bytes = matrix->dtype == HC_BF16 ? 2 : 4;
    return (lines){matrix->data, stride * bytes, bytes, scale};
}

static inline int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline __mmask32 first(int64_t count) {
    return count >= 32 ? 0xffffffffu : count <= 0 ? 0u : (1u << count) - 1u;
}

static inline __m512 widen(__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

/* Up to 32 elements as two vectors of fp32, those past the mask zero. */
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

/* The parts of 32 numbers: one line each at out, out + HC_SPLIT_PART_BYTES, ... */
static inline void split_line(__m512 low, __m512 high, char *out) {
    for (int part = 0; part < HC_SPLIT_PARTS; ++part) {
        const __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(high, low);
        _mm512_store_si512(out + part * HC_SPLIT_PART_BYTES, rounded);
        low = _mm512_sub_ps(low, widen(_mm512_castsi512_si256(rounded)));
        high = _mm512_sub_ps(high, widen(_mm512_extracti64x4_epi64(rounded, 1)));
    }
}

/* The parts of a block, padded with zeros: of each of the 32 lines one line at `out` and at each part. */
static inline void split_block(const lines *source, const char *at, int64_t num_lines, int64_t num_elements, char *out) {
    const __m512 scale = _mm512_set1_ps(source->scale);
    const __mmask32 mask = first(num_elements);
    const int64_t count = least(BLOCK, num_lines);
    for (int64_t i = 0; i < count; ++i) {
        __m512 low, high;
        load_floats(at + i * source->stride, source->bytes, mask, &low, &high);
        split_line(_mm512_mul_ps(low, scale), _mm512_mul_ps(high, scale), out + i * LINE_BYTES);
    }
    for (int64_t i = count; i < BLOCK; ++i) {
        split_line(_mm512_setzero_ps(), _mm512_setzero_ps(), out + i * LINE_BYTES);
    }
}

/* Adds to sums[0..m) the sums of rows that lie along k. */
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

/* Adds to sums[0..m), m <= 32, the sums of rows that lie across the lines at `at`. */
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

void hc_split_pack_a(int64_t m, int64_t k, const hc_matrix *a, float scale, void *out_panels, float *row_sum) {
    _Alignas(64) char stage[HC_SPLIT_STEP_BYTES];
    const int64_t steps = (k + BLOCK - 1) / BLOCK, panels = (m + BLOCK - 1) / BLOCK;
    const int along = a->column_stride == 1 || k == 1;
    const lines source = lines_of(a, along ? a->row_stride : a->column_stride, scale);
    for (int64_t block = 0; block < panels * steps; ++block) {
        /* The inner loop follows the lines. */
        const int64_t panel = along ? block / steps : block % panels, step = along ? block % steps : block / panels;
        const int64_t i = panel * BLOCK, p = step * BLOCK;
        char *out = (char *)out_panels + (panel * steps + step) * HC_SPLIT_STEP_BYTES;
        if (along) {
            split_block(&source, source.data + i * source.stride + p * source.bytes, m - i, k - p, out);
            continue;
        }
        const char *at = source.data + p * source.stride + i * source.bytes;
        split_block(&source, at, k - p, m - i, stage);
        for (int part = 0; part < HC_SPLIT_PARTS; ++part) {
            const hc_matrix rounded = {stage + part * HC_SPLIT_PART_BYTES, 1, BLOCK, HC_BF16};
            hc_pack_bf16_a_tiles(BLOCK, BLOCK, &rounded, 1.0f, out + part * HC_SPLIT_PART_BYTES, NULL);
        }
        if (row_sum) {
            add_sums_across(&source, at, least(BLOCK, m - i), least(BLOCK, k - p), row_sum + i);
        }
    }
    if (row_sum && along) {
        add_sums_along(&source, m, k, row_sum);
    }
}

void hc_split_pack_b(int64_t k, int64_t n, const hc_matrix *b, void *out_panels) {
    _Alignas(64) char stage[HC_SPLIT_STEP_BYTES];
    const int64_t steps = (k + BLOCK - 1) / BLOCK, panels = (n + BLOCK - 1) / BLOCK;
    const int along = b->row_stride == 1 || k == 1;
    const lines source = lines_of(b, along ? b->column_stride : b->row_stride, 1.0f);
    for (int64_t block = 0; block < panels * steps; ++block) {
        const int64_t panel = along ? block / steps : block % panels, step = along ? block % steps : block / panels;
        const int64_t j = panel * BLOCK, p = step * BLOCK;
        char *out = (char *)out_panels + (panel * steps + step) * HC_SPLIT_STEP_BYTES;
        const char *at = source.data + (along ? j : p) * source.stride + (along ? p : j) * source.bytes;
        split_block(&source, at, along ? n - j : k - p, along ? k - p : n - j, stage);
        for (int part = 0; part < HC_SPLIT_PARTS; ++part) {
            const hc_matrix rounded = {stage + part * HC_SPLIT_PART_BYTES, along ? 1 : BLOCK, along ? BLOCK : 1, HC_BF16};
            hc_pack_bf16_b(BLOCK, BLOCK, &rounded, BLOCK, 2, out + part * HC_SPLIT_PART_BYTES);
        }
    }
}

uint32_t hc_split_largest(int64_t rows, int64_t columns, const hc_matrix *x) {
    const int by_rows = x->column_stride == 1 || columns == 1;
    const int64_t num_lines = by_rows ? rows : columns, length = by_rows ? columns : rows;
    const lines source = lines_of(x, by_rows ? x->row_stride : x->column_stride, 1.0f);
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i most0 = _mm512_setzero_si512(), most1 = most0;
    for (int64_t i = 0; i < num_lines; ++i) {
        const char *at = source.data + i * source.stride;
        for (int64_t j = 0; j < length; j += BLOCK) {
            __m512 low, high;
            load_floats(at + j * source.bytes, source.bytes, first(length - j), &low, &high);
            most0 = _mm512_max_epu32(most0, _mm512_and_si512(magnitude, _mm512_castps_si512(low)));
            most1 = _mm512_max_epu32(most1, _mm512_and_si512(magnitude, _mm512_castps_si512(high)));
        }
    }
    return _mm512_reduce_max_epu32(_mm512_max_epu32(most0, most1));
}
