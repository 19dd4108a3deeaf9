/* Products with few rows or small depth, on B in its memory layout. The loops are bound by both memory and
 * multiply-adds, so prefetches are spread evenly. Lines of B that need a conversion to fp32 are converted once for all
 * rows, in pieces that stay cached. Lines that are read once are converted when they are loaded. */
#include "gemm/few_rows.h"
#include "simd/simd.h"

/* Lanes of the longest vector, 2,048 bits. */
#define MAX_LANES 64
/* Lines of B per pass in sums and depths. Elements of a line per pass in dots. */
#define LINES 32
#define DOT_DEPTH 1024

/* A piece of B: its lines, converted to fp32 if needed, and the memory to prefetch for the next piece. */
typedef struct {
    const char *lines, *next;
    int64_t stride;                   /* bytes, distance of lines */
    int64_t next_stride, next_step;   /* bytes, distance of lines and of vectors */
} piece;

HC_INLINE int64_t min_i64(int64_t a, int64_t b) HC_STREAMING_OK {
    return a < b ? a : b;
}

HC_INLINE int64_t size_of_b(const hc_few_rows *x) HC_STREAMING_OK {
    return x->b_kind == HC_B_BF16 ? 2 : 4;
}

HC_INLINE const char *in_b(const hc_few_rows *x, int64_t line, int64_t at) HC_STREAMING_OK {
    return (const char *)x->b + (line * x->b_stride + at) * size_of_b(x);
}

HC_INLINE hc_vf load_up_to(const float *p, int64_t n) HC_STREAMING_OK {
    return n == hc_lanes() ? hc_load(p) : hc_load_n(p, n);
}

HC_INLINE void store_up_to(float *p, int64_t n, hc_vf v) HC_STREAMING_OK {
    if (n == hc_lanes()) {
        hc_store(p, v);
    } else {
        hc_store_n(p, n, v);
    }
}

/* Load n elements of a line of B as operands, from index `at` on. Other lanes are zero. `kind` is a constant in every
 * call. */
HC_INLINE hc_vf load_b(const char *line, int64_t at, int64_t n, int kind) HC_STREAMING_OK {
    if (kind == HC_B_BF16) {
        return n == hc_lanes() ? hc_load_as(line, at, HC_BF16) : hc_load_as_n(line, at, n, HC_BF16);
    }
    const hc_vf v = load_up_to((const float *)(const void *)line + at, n);
    return kind == HC_B_F32 ? v : hc_as_bf16(v);
}

HC_INLINE void convert(const char *from, int64_t count, float *out, int kind) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes();
    for (int64_t i = 0; i < count; i += lanes) {
        const int64_t n = min_i64(lanes, count - i);
        store_up_to(out + i, n, load_b(from, i, n, kind));
    }
}

/* Return the element type of the lines of a piece. For at most four rows, the lines are not converted. */
HC_INLINE hc_b_kind kind_in_piece(const hc_few_rows *x) HC_STREAMING_OK {
    return x->m <= 4 ? x->b_kind : HC_B_F32;
}

/* Return the piece of lines start..stop of B, elements at..at + count of each: B itself, or a fp32 copy in the buffer
 * `wide`. */
HC_INLINE piece piece_of(const hc_few_rows *x, int64_t start, int64_t stop, int64_t at, int64_t count, hc_b_kind kind,
                         float *wide) HC_STREAMING_OK {
    const int64_t size = size_of_b(x);
    piece out = {.lines = in_b(x, start, at), .stride = x->b_stride * size};
    if (kind != x->b_kind) {
        out.lines = (const char *)(const void *)wide;
        out.stride = count * (int64_t)sizeof(float);
        for (int64_t line = start; line < stop; line++, wide += count) {
            if (x->b_kind == HC_B_BF16) {
                convert(in_b(x, line, at), count, wide, HC_B_BF16);
            } else {
                convert(in_b(x, line, at), count, wide, HC_B_F32_ROUNDED);
            }
        }
    }
    out.next_stride = x->b_stride * size;
    out.next_step = hc_lanes() * size;
    return out;
}

/* Sums of four rows of A with four vectors or lines of B. These 16 sums and their operands fit the 32 registers of most
 * machines. The last row replaces missing rows. */
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3)
#define EACH_SUM(DO)                                                                                                     \
    DO(0, 0) DO(1, 0) DO(2, 0) DO(3, 0) DO(0, 1) DO(1, 1) DO(2, 1) DO(3, 1) DO(0, 2) DO(1, 2) DO(2, 2) DO(3, 2) DO(0, 3) \
    DO(1, 3) DO(2, 3) DO(3, 3)
#define FOUR_ROWS(type, name, base, stride, count)                                 \
    type *name##0 = (base), *name##1 = (count) > 1 ? name##0 + (stride) : name##0; \
    type *name##2 = (count) > 2 ? name##1 + (stride) : name##1, *name##3 = (count) > 3 ? name##2 + (stride) : name##2;
#define FRESH_SUM(i, j) hc_vf sum##i##j = hc_zero();

/* Prefetches of the next piece are divided into four shares. With more than 12 rows, each of the first four groups of
 * four rows prefetches one share. Otherwise the first group prefetches all shares. DO(shares, kind) is called with
 * constants, so that its loops contain no branch. */
#define WITH_CONSTANTS(x, row, DO)                     \
    if (kind_in_piece(x) == HC_B_BF16) {               \
        DO(4, HC_B_BF16);                              \
    } else if (kind_in_piece(x) == HC_B_F32_ROUNDED) { \
        DO(4, HC_B_F32_ROUNDED);                       \
    } else if ((x)->m > 12 && (row) < 16) {            \
        DO(1, HC_B_F32);                               \
    } else if ((row) == 0) {                           \
        DO(4, HC_B_F32);                               \
    } else {                                           \
        DO(0, HC_B_F32);                               \
    }
#define FIRST_SHARE(row) ((row) / 4 % 4)

/* Dot products */

/* Add adjacent lanes: sums of pairs of a, then sums of pairs of b. */
HC_INLINE hc_vf fold(hc_vf a, hc_vf b) HC_STREAMING_OK {
    return hc_add(hc_evens(a, b), hc_odds(a, b));
}

/* Store the lane sums of a, b, c and d to out[0..n). */
HC_INLINE void put_sums(float *out, int64_t n, int add, hc_vf a, hc_vf b, hc_vf c, hc_vf d) HC_STREAMING_OK {
    float sums[MAX_LANES];
    if (hc_lanes() < 4 || (hc_lanes() & (hc_lanes() - 1)) != 0) {
        sums[0] = hc_sum(a), sums[1] = hc_sum(b), sums[2] = hc_sum(c), sums[3] = hc_sum(d);
    } else {
        hc_vf all = fold(fold(a, b), fold(c, d));
        for (int64_t lanes = hc_lanes(); lanes > 4; lanes /= 2) {
            all = fold(all, all);
        }
        hc_store(sums, all);
    }
    for (int64_t i = 0; i < n; i++) {
        out[i] = sums[i] + (add ? out[i] : 0.0f);
    }
}

#define LOAD_A(i) const hc_vf a##i = load_up_to(row##i + p, n);
#define LOAD_LINE(j) const hc_vf b##j = load_b(line##j, p, n, kind);
#define ADD_PRODUCT(i, j) sum##i##j = hc_fma(a##i, b##j, sum##i##j);
#define PUT_ROW(i)                                                                                 \
    if ((i) < rows) {                                                                              \
        put_sums(c + (i) * x->c_stride, columns, add, sum##i##0, sum##i##1, sum##i##2, sum##i##3); \
    }

/* Multiply four rows of A, depths start..start + depth, by the four lines of a piece, of which `columns` exist. */
HC_INLINE void dot_block(const hc_few_rows *x, const piece *b, int64_t row, int64_t column, int64_t columns, int64_t start,
                         int64_t depth, int64_t shares, int kind) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes(), rows = min_i64(4, x->m - row);
    const int64_t next_stride = b->next_stride, next_step = b->next_step;
    const int add = x->add || start > 0;
    FOUR_ROWS(const float, row, x->a + row * x->a_stride + start, x->a_stride, rows)
    FOUR_ROWS(const char, line, b->lines, b->stride, columns)
    float *c = x->c + row * x->c_stride + column;
    const char *next = b->next + FIRST_SHARE(row) * next_stride;
    EACH_SUM(FRESH_SUM)
    for (int64_t p = 0; p < depth; p += lanes, next += next_step) {
        const int64_t n = min_i64(lanes, depth - p);
#pragma GCC unroll 4
        for (int64_t i = 0; i < shares; i++) {
            hc_prefetch_far(next + i * next_stride);
        }
        EACH_ROW(LOAD_A)
        EACH_ROW(LOAD_LINE)
        EACH_SUM(ADD_PRODUCT)
    }
    EACH_ROW(PUT_ROW)
}

#define DOT_BLOCK(shares, kind) dot_block(x, &b, row, column, columns, start, depth, shares, kind)

HC_KERNEL_FUNCTION void HC_NAME(few_rows_dots)(const hc_few_rows *x) HC_KERNEL_STREAMING {
    float wide[4 * DOT_DEPTH];
    for (int64_t start = 0; start < x->k; start += DOT_DEPTH) {
        const int64_t depth = min_i64(DOT_DEPTH, x->k - start);
        for (int64_t column = 0; column < x->n; column += 4) {
            const int64_t columns = min_i64(4, x->n - column);
            piece b = piece_of(x, column, column + columns, start, depth, kind_in_piece(x), wide);
            b.next = in_b(x, column + 4, start);
            for (int64_t row = 0; row < x->m; row += 4) {
                WITH_CONSTANTS(x, row, DOT_BLOCK)
            }
        }
    }
}

/* Sums and depths */

#define TAKE_UP(i, j) hc_vf sum##i##j = is_fresh ? hc_zero() : hc_load(c##i + (j) * lanes);
#define LOAD_VECTOR(j) const hc_vf b##j = load_b(line, (j) * lanes, lanes, kind);
#define SET_FACTOR(i) const hc_vf a##i = hc_set(row##i[at * factor_step]);
#define LAY_DOWN(i, j)                            \
    if ((i) < rows && stream) {                   \
        hc_stream(c##i + (j) * lanes, sum##i##j); \
    } else if ((i) < rows) {                      \
        hc_store(c##i + (j) * lanes, sum##i##j);  \
    }

/* Add multiples of the lines of a piece, depths p..p + depth, to four rows of C, four vectors wide. */
HC_INLINE void four_by_four(const hc_few_rows *x, const piece *b, int64_t row, int64_t p, int64_t depth, int64_t j,
                            int64_t shares, int kind, int stream) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes(), rows = min_i64(4, x->m - row);
    const int is_fresh = p == 0 && !x->add;
    FOUR_ROWS(const float, row, x->a + row * x->a_stride + p * x->a_step, x->a_stride, rows)
    FOUR_ROWS(float, c, x->c + row * x->c_stride + j, x->c_stride, rows)
    const char *line = b->lines;
    EACH_SUM(TAKE_UP)
    const int64_t line_step = b->stride, factor_step = x->a_step;
    const int64_t next_stride = b->next_stride, next_step = b->next_step;
    const char *next = shares > 0 ? b->next + FIRST_SHARE(row) * next_step : NULL;
#pragma GCC unroll 4
    for (int64_t at = 0; at < depth; at++, line += line_step) {
        EACH_ROW(LOAD_VECTOR)
#pragma GCC unroll 4
        for (int64_t v = 0; v < shares; v++) {
            hc_prefetch(next + v * next_step);
        }
        next += shares > 0 ? next_stride : 0;
        EACH_ROW(SET_FACTOR)
        EACH_SUM(ADD_PRODUCT)
    }
    EACH_SUM(LAY_DOWN)
}

/* Add multiples of the lines of a piece to one row, n <= hc_lanes() elements wide. */
HC_INLINE void one_by_one(const hc_few_rows *x, const piece *b, int64_t row, int64_t p, int64_t depth, int64_t j, int64_t n,
                          int kind) HC_STREAMING_OK {
    const float *a = x->a + row * x->a_stride + p * x->a_step;
    const char *line = b->lines;
    float *c = x->c + row * x->c_stride + j;
    hc_vf sum = p == 0 && !x->add ? hc_zero() : load_up_to(c, n);
    for (int64_t i = 0; i < depth; i++, line += b->stride, a += x->a_step) {
        sum = hc_fma(hc_set(*a), load_b(line, 0, n, kind), sum);
    }
    hc_store_n(c, n, sum);
}

#define FOUR_BY_FOUR(shares, kind) four_by_four(x, &b, row, p, depth, j, shares, kind, 0)
#define ONE_BY_ONE(shares, kind) one_by_one(x, &vector, row, p, depth, j + at, min_i64(lanes, count - at), kind)

/* Compute columns j.. of C, at most four vectors, and return their number. A piece of B, which each group of four rows
 * of A reads, stays in the L1 cache. Sums stay in registers. (Storing sums to C every eight lines stalled on these
 * stores, because multiples of the row stride of C are multiples of a page.) */
HC_INLINE int64_t some_columns(const hc_few_rows *x, int64_t p, int64_t depth, int64_t j, float *wide) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes(), count = min_i64(4 * lanes, x->n - j);
    piece b = piece_of(x, p, p + depth, j, count, kind_in_piece(x), wide);
    b.next = in_b(x, p + LINES, j);
    for (int64_t row = 0; count == 4 * lanes && row < x->m; row += 4) {
        WITH_CONSTANTS(x, row, FOUR_BY_FOUR)
    }
    for (int64_t at = 0; count < 4 * lanes && at < count; at += lanes) {
        piece vector = b;
        vector.lines += at * (kind_in_piece(x) == HC_B_BF16 ? 2 : 4);
        for (int64_t row = 0; row < x->m; row++) {
            WITH_CONSTANTS(x, row, ONE_BY_ONE)
        }
    }
    return count;
}

HC_KERNEL_FUNCTION void HC_NAME(few_rows_sums)(const hc_few_rows *x) HC_KERNEL_STREAMING {
    float wide[LINES * 4 * MAX_LANES];
    for (int64_t p = 0; p < x->k; p += LINES) {
        const int64_t depth = min_i64(LINES, x->k - p);
        for (int64_t j = 0; j < x->n;) {
            j += some_columns(x, p, depth, j, wide);
        }
    }
}

/* Compute rows row..row + 4 of C, `count` columns from j on. Prefetch the next four rows for writing meanwhile. */
HC_INLINE void four_rows(const hc_few_rows *x, const piece *b, int64_t row, int64_t j, int64_t count) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes(), bytes = lanes * (int64_t)sizeof(float);
    piece vectors = *b;
    int64_t at = 0;
    for (; at + 4 * lanes <= count; at += 4 * lanes, vectors.lines += 4 * bytes) {
        const float *next = x->c + (row + 4) * x->c_stride + j + at;
        for (int64_t i = 0; !x->stream && i < min_i64(4, x->m - row - 4); i++) {
            for (int64_t v = 0; v < 4; v++) {
                hc_prefetch_to_write(next + i * x->c_stride + v * lanes);
            }
        }
        four_by_four(x, &vectors, row, 0, x->k, j + at, 0, HC_B_F32, x->stream);
    }
    for (; at < count; at += lanes, vectors.lines += bytes) {
        for (int64_t i = row; i < min_i64(x->m, row + 4); i++) {
            one_by_one(x, &vectors, i, 0, x->k, j + at, min_i64(lanes, count - at), HC_B_F32);
        }
    }
}

HC_KERNEL_FUNCTION void HC_NAME(few_depths)(const hc_few_rows *x) HC_KERNEL_STREAMING {
    const int64_t group = 4 * hc_lanes();
    float wide[LINES * 4 * MAX_LANES];
    const int64_t together = LINES * 4 * MAX_LANES / x->k / group * group;
    for (int64_t j = 0; j < x->n; j += together) {
        const int64_t count = min_i64(together, x->n - j);
        const piece b = piece_of(x, 0, x->k, j, count, HC_B_F32, wide);
        for (int64_t row = 0; row < x->m; row += 4) {
            four_rows(x, &b, row, j, count);
        }
    }
    if (x->stream) {
        hc_stream_end();
    }
}
