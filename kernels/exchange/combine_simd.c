/* The arithmetic of an exchange: arrays of all processes become one, in the order of the processes. */
#include "exchange/exchange.h"
#include "simd/simd.h"

HC_INLINE hc_vf combined(int op, hc_vf a, hc_vf b) HC_STREAMING_OK {
    return op == HC_SUM ? hc_add(a, b) : op == HC_PRODUCT ? hc_mul(a, b) : op == HC_LARGEST ? hc_max(a, b) : hc_min(a, b);
}

HC_KERNEL_FUNCTION void HC_NAME(combine)(int op, int num_arrays, int64_t count, const void *const *x, int x_type, float scale,
                                         void *out) HC_KERNEL_STREAMING {
    const int64_t lanes = hc_lanes();
    const hc_vf factor = hc_set(scale);
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
        hc_vf all = hc_load_as(x[0], i, x_type);
        for (int r = 1; r < num_arrays; r++) {
            all = combined(op, all, hc_load_as(x[r], i, x_type));
        }
        hc_store_as(out, i, x_type, hc_mul(all, factor));
    }
    if (i < count) {
        hc_vf all = hc_load_as_n(x[0], i, count - i, x_type);
        for (int r = 1; r < num_arrays; r++) {
            all = combined(op, all, hc_load_as_n(x[r], i, count - i, x_type));
        }
        hc_store_as_n(out, i, count - i, x_type, hc_mul(all, factor));
    }
}

HC_KERNEL_FUNCTION void HC_NAME(convert)(int64_t count, float scale, const void *x, int x_type, void *out,
                                         int out_type) HC_KERNEL_STREAMING {
    const int64_t lanes = hc_lanes();
    const hc_vf factor = hc_set(scale);
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
        hc_store_as(out, i, out_type, hc_mul(hc_load_as(x, i, x_type), factor));
    }
    if (i < count) {
        hc_store_as_n(out, i, count - i, out_type, hc_mul(hc_load_as_n(x, i, count - i, x_type), factor));
    }
}
