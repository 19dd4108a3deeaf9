/* Sums of squares in fp64. */
#include "reduce/reduce.h"
#include "simd/simd.h"

/* Return the sum of the squares. Four quarters of the array are read alternately, each with a separate sum. Four
 * address streams keep more memory banks busy than one, and the additions are independent. */
HC_KERNEL_FUNCTION double HC_NAME(sum_of_squares)(int64_t count, const float *x) HC_KERNEL_STREAMING {
    const int64_t lanes = hc_lanes(), quarter = count / (4 * lanes) * lanes;
    hc_wide a = hc_wide_zero(), b = a, c = a, d = a;
    for (int64_t i = 0; i < quarter; i += lanes) {
        const hc_vf p = hc_load(x + i), q = hc_load(x + quarter + i);
        const hc_vf r = hc_load(x + 2 * quarter + i), s = hc_load(x + 3 * quarter + i);
        a = hc_wide_fma(hc_wide_first(p), hc_wide_first(p), a);
        b = hc_wide_fma(hc_wide_first(q), hc_wide_first(q), b);
        c = hc_wide_fma(hc_wide_first(r), hc_wide_first(r), c);
        d = hc_wide_fma(hc_wide_first(s), hc_wide_first(s), d);
        a = hc_wide_fma(hc_wide_second(p), hc_wide_second(p), a);
        b = hc_wide_fma(hc_wide_second(q), hc_wide_second(q), b);
        c = hc_wide_fma(hc_wide_second(r), hc_wide_second(r), c);
        d = hc_wide_fma(hc_wide_second(s), hc_wide_second(s), d);
    }
    for (int64_t i = 4 * quarter; i < count; i += lanes) {
        const hc_vf p = hc_load_n(x + i, count - i < lanes ? count - i : lanes);
        a = hc_wide_fma(hc_wide_first(p), hc_wide_first(p), a);
        b = hc_wide_fma(hc_wide_second(p), hc_wide_second(p), b);
    }
    return hc_wide_sum(hc_wide_add(hc_wide_add(a, b), hc_wide_add(c, d)));
}

HC_KERNEL_FUNCTION double HC_NAME(squared_difference)(int64_t count, const void *x, int x_type, const void *y,
                                                      int y_type) HC_KERNEL_STREAMING {
    const int64_t lanes = hc_lanes();
    hc_wide a = hc_wide_zero(), b = a;
    for (int64_t i = 0; i < count; i += lanes) {
        const int64_t n = count - i < lanes ? count - i : lanes;
        const hc_vf v = n == lanes ? hc_load_as(x, i, x_type) : hc_load_as_n(x, i, n, x_type);
        const hc_vf w = n == lanes ? hc_load_as(y, i, y_type) : hc_load_as_n(y, i, n, y_type);
        const hc_wide first = hc_wide_sub(hc_wide_first(v), hc_wide_first(w));
        const hc_wide second = hc_wide_sub(hc_wide_second(v), hc_wide_second(w));
        a = hc_wide_fma(first, first, a);
        b = hc_wide_fma(second, second, b);
    }
    return hc_wide_sum(hc_wide_add(a, b));
}
