/* Softmax over rows, and its gradient. The kernel reads a row several times from the cache and recomputes the
 * exponentials instead of storing them. A row may therefore have any length, and the output may be bf16. */
#include <math.h>

#include "activation/activation.h"
#include "simd/math.h"

HC_INLINE float row_largest_(int64_t columns, const void *x, int64_t start, int x_type) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes();
    hc_vf largest = hc_set(-INFINITY);
    int64_t i = 0;
    for (; i + lanes <= columns; i += lanes) {
        largest = hc_max(largest, hc_load_as(x, start + i, x_type));
    }
    const hc_vf rest = hc_load_as_n(x, start + i, columns - i, x_type);
    return hc_largest(hc_max(largest, hc_select(hc_first(columns - i), rest, hc_set(-INFINITY))));
}

HC_INLINE float row_sum_(int64_t columns, const void *x, int64_t start, int x_type, float largest) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes();
    hc_vf sum = hc_zero();
    int64_t i = 0;
    for (; i + lanes <= columns; i += lanes) {
        sum = hc_add(sum, hc_exp(hc_sub(hc_load_as(x, start + i, x_type), hc_set(largest))));
    }
    const hc_vf rest = hc_exp(hc_sub(hc_load_as_n(x, start + i, columns - i, x_type), hc_set(largest)));
    return hc_sum(hc_add(sum, hc_select(hc_first(columns - i), rest, hc_zero())));
}

HC_KERNEL_FUNCTION void HC_NAME(softmax_forward)(int64_t rows, int64_t columns, const void *x, int x_type, void *out,
                                                 int out_type) HC_KERNEL_STREAMING {
    const int64_t lanes = hc_lanes();
    for (int64_t row = 0; row < rows; row++) {
        const int64_t start = row * columns;
        const float largest = row_largest_(columns, x, start, x_type);
        const hc_vf shift = hc_set(largest);
        const hc_vf factor = hc_set(1.0f / row_sum_(columns, x, start, x_type, largest));
        int64_t i = 0;
        for (; i + lanes <= columns; i += lanes) {
            hc_store_as(out, start + i, out_type, hc_mul(hc_exp(hc_sub(hc_load_as(x, start + i, x_type), shift)), factor));
        }
        const hc_vf rest = hc_load_as_n(x, start + i, columns - i, x_type);
        hc_store_as_n(out, start + i, columns - i, out_type, hc_mul(hc_exp(hc_sub(rest, shift)), factor));
    }
}

/* Return the sum of a * b over a row. */
HC_INLINE float row_product_(int64_t columns, int64_t start, const void *a, int a_type, const void *b,
                             int b_type) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes();
    hc_vf sum = hc_zero();
    int64_t i = 0;
    for (; i + lanes <= columns; i += lanes) {
        sum = hc_fma(hc_load_as(a, start + i, a_type), hc_load_as(b, start + i, b_type), sum);
    }
    const hc_vf rest = hc_load_as_n(a, start + i, columns - i, a_type);
    return hc_sum(hc_fma(rest, hc_load_as_n(b, start + i, columns - i, b_type), sum));
}

HC_KERNEL_FUNCTION void HC_NAME(softmax_backward)(int64_t rows, int64_t columns, const void *dout, int dout_type,
                                                  const void *y, int y_type, void *out_dx,
                                                  int dx_type) HC_KERNEL_STREAMING {
    const int64_t lanes = hc_lanes();
    for (int64_t row = 0; row < rows; row++) {
        const int64_t start = row * columns;
        const hc_vf product = hc_set(row_product_(columns, start, dout, dout_type, y, y_type));
        int64_t i = 0;
        for (; i + lanes <= columns; i += lanes) {
            const hc_vf difference = hc_sub(hc_load_as(dout, start + i, dout_type), product);
            hc_store_as(out_dx, start + i, dx_type, hc_mul(hc_load_as(y, start + i, y_type), difference));
        }
        const hc_vf difference = hc_sub(hc_load_as_n(dout, start + i, columns - i, dout_type), product);
        const hc_vf rest = hc_load_as_n(y, start + i, columns - i, y_type);
        hc_store_as_n(out_dx, start + i, columns - i, dx_type, hc_mul(rest, difference));
    }
}
