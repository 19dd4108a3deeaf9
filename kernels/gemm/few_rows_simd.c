/* Products of few rows or of little depth, on B as it lies in memory. Every loop below waits for memory, not for multiply-adds,
 * as long as rows or depths are few: that is what few_rows.c asks for. */
#include "gemm/few_rows.h"
#include "simd/simd.h"

/* Numbers of the longest vector, 2,048 bits. */
#define MOST_LANES 64

HC_INLINE const char *line_of(const hc_few_rows *x, int64_t line, int kind) HC_STREAMING_OK {
    return (const char *)x->b + line * x->b_stride * (kind == HC_B_BF16 ? 2 : 4);
}

/* n numbers of a line of B from `at` on; zeros behind them. `kind` is a constant wherever this is called. */
HC_INLINE hc_vf load_b(const char *line, int64_t at, int64_t n, int kind) HC_STREAMING_OK {
    if (kind == HC_B_BF16) {
        const uint16_t *p = (const uint16_t *)(const void *)line + at;
        return n == hc_lanes() ? hc_load_bf16(p) : hc_load_bf16_n(p, n);
    }
    const float *p = (const float *)(const void *)line + at;
    const hc_vf v = n == hc_lanes() ? hc_load(p) : hc_load_n(p, n);
    if (kind == HC_B_F32) {
        return v;
    }
    uint16_t rounded[MOST_LANES];
    hc_store_bf16(rounded, v);
    return hc_load_bf16(rounded);
}

HC_INLINE hc_vf load_a(const float *p, int64_t n) HC_STREAMING_OK {
    return n == hc_lanes() ? hc_load(p) : hc_load_n(p, n);
}

HC_INLINE int64_t least(int64_t a, int64_t b) HC_STREAMING_OK {
    return a < b ? a : b;
}

/* ------------------------------------------------------------------------------------------------------------------ dots */

/* Four rows of A by four lines of B: 16 sums, four vectors of A and one of B stay in the 32 registers of most machines. */
#define EACH_SUM(DO) \
    DO(0, 0) DO(1, 0) DO(2, 0) DO(3, 0) DO(0, 1) DO(1, 1) DO(2, 1) DO(3, 1) DO(0, 2) DO(1, 2) DO(2, 2) DO(3, 2) DO(0, 3) \
    DO(1, 3) DO(2, 3) DO(3, 3)
#define DECLARE_SUM(i, j) hc_vf sum##i##j = hc_zero();
#define ADD_PRODUCT(i, j) sum##i##j = hc_fma(a##i, b##j, sum##i##j);
#define PUT_SUM(i, j)                                                          \
    if ((i) < rows && (j) < columns) {                                         \
        float *to = x->c + (row + (i)) * x->c_stride + column + (j);           \
        *to = hc_sum(sum##i##j) + (x->add ? *to : 0.0f);                       \
    }

HC_INLINE void dot_block(const hc_few_rows *x, int64_t row, int64_t column, int kind) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes(), rows = least(4, x->m - row), columns = least(4, x->n - column);
    /* Rows and lines that are not there are the last ones once more. */
    const float *p0 = x->a + row * x->a_stride, *p1 = rows > 1 ? p0 + x->a_stride : p0;
    const float *p2 = rows > 2 ? p1 + x->a_stride : p1, *p3 = rows > 3 ? p2 + x->a_stride : p2;
    const char *q0 = line_of(x, column, kind), *q1 = columns > 1 ? line_of(x, column + 1, kind) : q0;
    const char *q2 = columns > 2 ? line_of(x, column + 2, kind) : q1, *q3 = columns > 3 ? line_of(x, column + 3, kind) : q2;
    const int64_t bytes = kind == HC_B_BF16 ? 2 : 4, ahead = 4 * x->b_stride * bytes;
    EACH_SUM(DECLARE_SUM)
    for (int64_t k = 0; k < x->k; k += lanes) {
        const int64_t n = least(lanes, x->k - k);
        const hc_vf a0 = load_a(p0 + k, n), a1 = load_a(p1 + k, n), a2 = load_a(p2 + k, n), a3 = load_a(p3 + k, n);
        const hc_vf b0 = load_b(q0, k, n, kind), b1 = load_b(q1, k, n, kind);
        const hc_vf b2 = load_b(q2, k, n, kind), b3 = load_b(q3, k, n, kind);
        if (row == 0) { /* the next four lines, which the other rows' turns give time to come */
            hc_prefetch_far(q0 + k * bytes + ahead);
            hc_prefetch_far(q1 + k * bytes + ahead);
            hc_prefetch_far(q2 + k * bytes + ahead);
            hc_prefetch_far(q3 + k * bytes + ahead);
        }
        EACH_SUM(ADD_PRODUCT)
    }
    EACH_SUM(PUT_SUM)
}

HC_INLINE void dots(const hc_few_rows *x, int kind) HC_STREAMING_OK {
    for (int64_t column = 0; column < x->n; column += 4) {
        for (int64_t row = 0; row < x->m; row += 4) {
            dot_block(x, row, column, kind);
        }
    }
}

HC_KERNEL_FUNCTION void HC_NAME(few_rows_dots)(const hc_few_rows *x) HC_KERNEL_STREAMING {
    if (x->b_kind == HC_B_F32) {
        dots(x, HC_B_F32);
    } else if (x->b_kind == HC_B_BF16) {
        dots(x, HC_B_BF16);
    } else {
        dots(x, HC_B_F32_ROUNDED);
    }
}

/* ------------------------------------------------------------------------------------------------------------------ sums */

/* Lines of B that pass at a time: sums stay in registers meanwhile, and a piece of four vectors of these lines, which each four
 * rows of A read again, in the first-level cache. (Sums that went to C every eight lines waited for their stores: rows of C
 * lie apart by sizes whose multiples are those of a page.) */
#define LINES 32
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3)
#define TAKE_UP(i, v) hc_vf sum##i##v = is_fresh ? hc_zero() : hc_load(c##i + (v) * lanes);
#define LAY_DOWN(i, v)                                  \
    if ((i) < rows) {                                   \
        hc_store(c##i + (v) * lanes, sum##i##v);        \
    }
#define ADD_MULTIPLE(i, v) sum##i##v = hc_fma(factor##i, b##v, sum##i##v);
#define SET_FACTOR(i) const hc_vf factor##i = hc_set(a##i[p]);
#define LOAD_VECTOR(v) const hc_vf b##v = load_b(line, j + (v) * lanes, lanes, kind);
#define ASK_FOR_VECTOR(v) hc_prefetch(line + LINES * x->b_stride * bytes + (j + (v) * lanes) * bytes);

/* To four rows of C, four vectors wide, multiples of lines p..stop; rows that are not there are the last one once more. */
HC_INLINE void four_by_four(const hc_few_rows *x, int64_t row, int64_t p, int64_t stop, int64_t j, int kind) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes(), rows = least(4, x->m - row), bytes = kind == HC_B_BF16 ? 2 : 4;
    const int is_fresh = p == 0 && !x->add;
    const float *a0 = x->a + row * x->a_stride, *a1 = rows > 1 ? a0 + x->a_stride : a0;
    const float *a2 = rows > 2 ? a1 + x->a_stride : a1, *a3 = rows > 3 ? a2 + x->a_stride : a2;
    float *c0 = x->c + row * x->c_stride + j, *c1 = rows > 1 ? c0 + x->c_stride : c0;
    float *c2 = rows > 2 ? c1 + x->c_stride : c1, *c3 = rows > 3 ? c2 + x->c_stride : c2;
    EACH_SUM(TAKE_UP)
    for (; p < stop; p++) {
        const char *line = line_of(x, p, kind);
        EACH_ROW(LOAD_VECTOR)
        if (row == 0) {
            EACH_ROW(ASK_FOR_VECTOR)
        }
        EACH_ROW(SET_FACTOR)
        EACH_SUM(ADD_MULTIPLE)
    }
    EACH_SUM(LAY_DOWN)
}

/* The same for one row, n <= hc_lanes() numbers wide. */
HC_INLINE void one_by_one(const hc_few_rows *x, int64_t row, int64_t p, int64_t stop, int64_t j, int64_t n,
                          int kind) HC_STREAMING_OK {
    float *c = x->c + row * x->c_stride + j;
    hc_vf sum = p == 0 && !x->add ? hc_zero() : load_a(c, n);
    for (; p < stop; p++) {
        sum = hc_fma(hc_set(x->a[row * x->a_stride + p]), load_b(line_of(x, p, kind), j, n, kind), sum);
    }
    hc_store_n(c, n, sum);
}

HC_INLINE void sums(const hc_few_rows *x, int kind) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes();
    for (int64_t p = 0; p < x->k; p += LINES) {
        const int64_t stop = least(x->k, p + LINES);
        int64_t j = 0;
        for (; j + 4 * lanes <= x->n; j += 4 * lanes) {
            for (int64_t row = 0; row < x->m; row += 4) {
                four_by_four(x, row, p, stop, j, kind);
            }
        }
        for (; j < x->n; j += lanes) {
            for (int64_t row = 0; row < x->m; row++) {
                one_by_one(x, row, p, stop, j, least(lanes, x->n - j), kind);
            }
        }
    }
}

HC_KERNEL_FUNCTION void HC_NAME(few_rows_sums)(const hc_few_rows *x) HC_KERNEL_STREAMING {
    if (x->b_kind == HC_B_F32) {
        sums(x, HC_B_F32);
    } else if (x->b_kind == HC_B_BF16) {
        sums(x, HC_B_BF16);
    } else {
        sums(x, HC_B_F32_ROUNDED);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- depths */

HC_INLINE void put(const hc_few_rows *x, float *c, int64_t n, hc_vf sum) HC_STREAMING_OK {
    if (x->stream && n == hc_lanes()) {
        hc_stream(c, sum);
    } else {
        hc_store_n(c, n, x->add ? hc_add(sum, hc_load_n(c, n)) : sum);
    }
}

/* Four rows of C, one or two vectors wide; rows that are not there are the last one once more. */
HC_INLINE void four_rows(const hc_few_rows *x, int64_t row, int64_t j, int64_t n0, int64_t n1, int kind) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes(), rows = least(4, x->m - row);
    const float *a0 = x->a + row * x->a_stride, *a1 = rows > 1 ? a0 + x->a_stride : a0;
    const float *a2 = rows > 2 ? a1 + x->a_stride : a1, *a3 = rows > 3 ? a2 + x->a_stride : a2;
    hc_vf sum00 = hc_zero(), sum10 = hc_zero(), sum20 = hc_zero(), sum30 = hc_zero();
    hc_vf sum01 = hc_zero(), sum11 = hc_zero(), sum21 = hc_zero(), sum31 = hc_zero();
    for (int64_t p = 0; p < x->k; p++) {
        const char *line = line_of(x, p, kind);
        const hc_vf b0 = load_b(line, j, n0, kind);
        sum00 = hc_fma(hc_set(a0[p]), b0, sum00);
        sum10 = hc_fma(hc_set(a1[p]), b0, sum10);
        sum20 = hc_fma(hc_set(a2[p]), b0, sum20);
        sum30 = hc_fma(hc_set(a3[p]), b0, sum30);
        if (n1 > 0) {
            const hc_vf b1 = load_b(line, j + lanes, n1, kind);
            sum01 = hc_fma(hc_set(a0[p]), b1, sum01);
            sum11 = hc_fma(hc_set(a1[p]), b1, sum11);
            sum21 = hc_fma(hc_set(a2[p]), b1, sum21);
            sum31 = hc_fma(hc_set(a3[p]), b1, sum31);
        }
    }
    float *c = x->c + row * x->c_stride + j;
#define PUT_ROW(i)                                                       \
    if ((i) < rows) {                                                    \
        put(x, c + (i) * x->c_stride, n0, sum##i##0);                    \
        if (n1 > 0) {                                                    \
            put(x, c + (i) * x->c_stride + lanes, n1, sum##i##1);        \
        }                                                                \
    }
    PUT_ROW(0) PUT_ROW(1) PUT_ROW(2) PUT_ROW(3)
}

HC_INLINE void depths(const hc_few_rows *x, int kind) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes();
    for (int64_t row = 0; row < x->m; row += 4) {
        int64_t j = 0;
        for (; j + 2 * lanes <= x->n; j += 2 * lanes) {
            four_rows(x, row, j, lanes, lanes, kind);
        }
        for (; j < x->n; j += lanes) {
            four_rows(x, row, j, least(lanes, x->n - j), 0, kind);
        }
    }
    if (x->stream) {
        hc_stream_end();
    }
}

HC_KERNEL_FUNCTION void HC_NAME(few_depths)(const hc_few_rows *x) HC_KERNEL_STREAMING {
    if (x->b_kind == HC_B_F32) {
        depths(x, HC_B_F32);
    } else if (x->b_kind == HC_B_BF16) {
        depths(x, HC_B_BF16);
    } else {
        depths(x, HC_B_F32_ROUNDED);
    }
}
