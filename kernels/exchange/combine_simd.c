/* Arithmetic of an exchange: combine the arrays of all processes, in the order of the processes. */
#include "exchange/exchange.h"
#include "simd/simd.h"

HC_INLINE hc_vf combined(int op, hc_vf a, hc_vf b) HC_STREAMING_OK {
    return op == HC_SUM ? hc_add(a, b) : op == HC_PRODUCT ? hc_mul(a, b) : op == HC_LARGEST ? hc_max(a, b) : hc_min(a, b);
}

HC_INLINE hc_vf load_one(const void *x, int64_t i, int64_t n, int x_type, int type) HC_STREAMING_OK {
    const hc_vf v = n < 0 ? hc_load_as(x, i, x_type) : hc_load_as_n(x, i, n, x_type);
    return x_type != type && type == HC_BF16 ? hc_as_bf16(v) : v;
}

/* Store a vector. If the type is bf16, v is already rounded to bf16. */
HC_INLINE void store_one(void *out, int64_t i, int64_t n, int type, hc_vf v) HC_STREAMING_OK {
    if (n >= 0) {
        hc_store_as_n(out, i, n, type, v);
    } else if (type == HC_F32) {
        hc_store((float *)out + i, v);
    } else {
        hc_store_exact_bf16((uint16_t *)out + i, v);
    }
}

/* Compute one vector of results, or its first n lanes if n >= 0. The types are compile-time constants in the common
 * cases. */
HC_INLINE void step(int op, int num_arrays, int64_t i, int64_t n, const void *const *x, int type, int own, int own_type,
                    hc_vf factor, void *out, void *copy) HC_STREAMING_OK {
    hc_vf all = load_one(x[0], i, n, own == 0 ? own_type : type, type);
    for (int r = 1; r < num_arrays; r++) {
        all = combined(op, all, load_one(x[r], i, n, own == r ? own_type : type, type));
    }
    all = hc_mul(all, factor);
    if (type == HC_BF16) {
        all = hc_as_bf16(all);
    }
    if (out != NULL) {
        store_one(out, i, n, type, all);
    }
    if (copy != NULL) {
        store_one(copy, i, n, own_type, own_type == HC_BF16 && type != HC_BF16 ? hc_as_bf16(all) : all);
    }
}

HC_INLINE void steps(int op, int num_arrays, int64_t count, const void *const *x, int type, int own, int own_type, float scale,
                     void *out, void *copy) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes();
    const hc_vf factor = hc_set(scale);
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
        step(op, num_arrays, i, -1, x, type, own, own_type, factor, out, copy);
    }
    if (i < count) {
        step(op, num_arrays, i, count - i, x, type, own, own_type, factor, out, copy);
    }
}

HC_KERNEL_FUNCTION void HC_NAME(combine)(int op, int num_arrays, int64_t count, const void *const *x, int type, int own,
                                         int own_type, float scale, void *out, void *copy) HC_KERNEL_STREAMING {
    /* Specialize the common case, a sum over two processes, with constant types. */
    if (op == HC_SUM && num_arrays == 2 && own >= 0 && own_type == HC_F32) {
        if (type == HC_F32) {
            if (own == 0) {
                steps(HC_SUM, 2, count, x, HC_F32, 0, HC_F32, scale, out, copy);
            } else {
                steps(HC_SUM, 2, count, x, HC_F32, 1, HC_F32, scale, out, copy);
            }
        } else if (own == 0) {
            steps(HC_SUM, 2, count, x, HC_BF16, 0, HC_F32, scale, out, copy);
        } else {
            steps(HC_SUM, 2, count, x, HC_BF16, 1, HC_F32, scale, out, copy);
        }
    } else {
        steps(op, num_arrays, count, x, type, own, own_type, scale, out, copy);
    }
}

HC_KERNEL_FUNCTION void HC_NAME(convert)(int64_t count, const void *x, int x_type, void *out,
                                         int out_type) HC_KERNEL_STREAMING {
    const int64_t lanes = hc_lanes();
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
        hc_store_as(out, i, out_type, hc_load_as(x, i, x_type));
    }
    if (i < count) {
        hc_store_as_n(out, i, count - i, out_type, hc_load_as_n(x, i, count - i, x_type));
    }
}
