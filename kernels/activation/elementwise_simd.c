/* Elementwise kernels: functions and their gradients, scaled sums and differences. */
#include "activation/activation.h"
#include "simd/math.h"

/* Number of address streams that are written alternately if the data exceeds the caches. With one stream, the pages of
 * the stream leave memory banks idle, and the prefetchers stop at page ends. Bandwidth (read and written) of two cores,
 * copies of 256 MB in pages of 4 KB: one stream 35 GB/s; four streams at distances of 4, 16 and 64 KB 44, 46 and 48
 * GB/s; eight streams 47 GB/s; ordinary stores 26 GB/s. Copies of 64 MB on huge pages: one stream 45 GB/s, four streams
 * 52 GB/s. */
#define RUNS 4
#define RUN_ELEMENTS 4096
#define TURN_ELEMENTS 64

typedef enum { MAP, MAP_BACKWARD, SCALE_ADD, SCALE, DIFFERENCE } operation;

/* Operation on each element. All fields except alpha and beta are compile-time constants after inlining. */
typedef struct {
    operation operation;
    int function;
    float alpha, beta;
} recipe;

typedef struct {
    const void *x, *y;
    void *out;
    int x_type, y_type, out_type;
} arrays;

HC_INLINE hc_vf function_of_(int function, hc_vf x) HC_STREAMING_OK {
    switch (function) {
    case HC_EXP: return hc_exp(x);
    case HC_TANH: return hc_tanh(x);
    case HC_GELU: return hc_gelu(x);
    case HC_GELU_ERF: return hc_gelu_erf(x);
    default: return hc_silu(x);
    }
}

/* Return the gradient at x. For exp and tanh, x is the result of the function. */
HC_INLINE hc_vf gradient_of_(int function, hc_vf x) HC_STREAMING_OK {
    switch (function) {
    case HC_EXP: return x;
    case HC_TANH: return hc_fnma(x, x, hc_set(1.0f));
    case HC_GELU: return hc_gelu_gradient(x);
    case HC_GELU_ERF: return hc_gelu_erf_gradient(x);
    default: return hc_silu_gradient(x);
    }
}

HC_INLINE hc_vf element_(recipe r, hc_vf x, hc_vf y) HC_STREAMING_OK {
    switch (r.operation) {
    case MAP: return function_of_(r.function, x);
    case MAP_BACKWARD: return hc_mul(y, gradient_of_(r.function, x));
    case SCALE_ADD: return hc_fma(hc_set(r.alpha), x, hc_mul(hc_set(r.beta), y));
    case SCALE: return hc_mul(hc_set(r.alpha), x);
    default: return hc_mul(hc_set(r.alpha), hc_sub(x, y));
    }
}

HC_INLINE int reads_y_(recipe r) HC_STREAMING_OK { return r.operation != MAP && r.operation != SCALE; }

/* Compute one vector of output, or two vectors of bf16 if all arrays are bf16. past: 1 for non-temporal stores. */
HC_INLINE void step_(recipe r, arrays a, int64_t i, int pairs, int stream) HC_STREAMING_OK {
    if (!pairs) {
        const hc_vf x = hc_load_as(a.x, i, a.x_type);
        const hc_vf out = element_(r, x, reads_y_(r) ? hc_load_as(a.y, i, a.y_type) : x);
        if (stream) {
            hc_stream_as(a.out, i, a.out_type, out);
        } else {
            hc_store_as(a.out, i, a.out_type, out);
        }
        return;
    }
    const uint16_t *x = (const uint16_t *)a.x + i, *y = (const uint16_t *)a.y + i;
    const hc_vf x_even = hc_load_bf16_even(x), x_odd = hc_load_bf16_odd(x);
    const hc_vf even = element_(r, x_even, reads_y_(r) ? hc_load_bf16_even(y) : x_even);
    const hc_vf odd = element_(r, x_odd, reads_y_(r) ? hc_load_bf16_odd(y) : x_odd);
    if (stream) {
        hc_stream_bf16_pair((uint16_t *)a.out + i, even, odd);
    } else {
        hc_store_bf16_pair((uint16_t *)a.out + i, even, odd);
    }
}

/* Compute a remainder of n elements, at most one vector. */
HC_INLINE void remainder_(recipe r, arrays a, int64_t i, int64_t n) HC_STREAMING_OK {
    const hc_vf x = hc_load_as_n(a.x, i, n, a.x_type);
    hc_store_as_n(a.out, i, n, a.out_type, element_(r, x, reads_y_(r) ? hc_load_as_n(a.y, i, n, a.y_type) : x));
}

/* Compute elements from i on that fill complete groups of RUNS streams, with non-temporal stores. Return the end of the
 * computed range. */
HC_INLINE int64_t runs_(recipe r, arrays a, int64_t i, int64_t count, int pairs) HC_STREAMING_OK {
    const int64_t step = hc_lanes() << pairs, of_turn = step > TURN_ELEMENTS ? step : TURN_ELEMENTS;
    for (; i + RUNS * RUN_ELEMENTS <= count; i += RUNS * RUN_ELEMENTS) {
        for (int64_t turn = i; turn < i + RUN_ELEMENTS; turn += of_turn) {
            for (int64_t start = turn; start < turn + RUNS * RUN_ELEMENTS; start += RUN_ELEMENTS) {
                for (int64_t j = start; j < start + of_turn; j += step) {
                    step_(r, a, j, pairs, 1);
                }
            }
        }
    }
    hc_stream_end();
    return i;
}

HC_INLINE void pass_(recipe r, arrays a, int64_t count, int pairs, int pass_caches) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes(), step = lanes << pairs;
    const uintptr_t element = a.out_type == HC_F32 ? 4 : 2;
    int64_t i = 0;
    if (pass_caches && (uintptr_t)a.out % element == 0) {
        const int64_t before = (int64_t)(-(uintptr_t)a.out % ((uintptr_t)step * element) / element);
        if (before + RUNS * RUN_ELEMENTS <= count) {
            for (; i < before; i += lanes) {
                remainder_(r, a, i, before - i < lanes ? before - i : lanes);
            }
            i = runs_(r, a, before, count, pairs);
        }
    }
    for (; i + step <= count; i += step) {
        step_(r, a, i, pairs, 0);
    }
    for (; i < count; i += lanes) {
        remainder_(r, a, i, count - i < lanes ? count - i : lanes);
    }
}

/* Dispatch to a loop for fp32 arrays only, a loop for bf16 arrays only, or a loop that tests the types at each
 * vector. */
HC_INLINE void typed_(recipe r, arrays a, int64_t count, int pass_caches) HC_STREAMING_OK {
    if (a.x_type == HC_F32 && a.y_type == HC_F32 && a.out_type == HC_F32) {
        pass_(r, (arrays){a.x, a.y, a.out, HC_F32, HC_F32, HC_F32}, count, 0, pass_caches);
    } else if (a.x_type == HC_BF16 && a.y_type == HC_BF16 && a.out_type == HC_BF16) {
        pass_(r, (arrays){a.x, a.y, a.out, HC_BF16, HC_BF16, HC_BF16}, count, 1, pass_caches);
    } else {
        pass_(r, a, count, 0, pass_caches);
    }
}

HC_KERNEL_FUNCTION void HC_NAME(map)(int function, int64_t count, const void *x, int x_type, void *out, int out_type,
                                     int pass_caches) HC_KERNEL_STREAMING {
    const arrays a = {x, x, out, x_type, x_type, out_type};
    switch (function) {
    case HC_EXP: typed_((recipe){MAP, HC_EXP, 0.0f, 0.0f}, a, count, pass_caches); break;
    case HC_TANH: typed_((recipe){MAP, HC_TANH, 0.0f, 0.0f}, a, count, pass_caches); break;
    case HC_GELU: typed_((recipe){MAP, HC_GELU, 0.0f, 0.0f}, a, count, pass_caches); break;
    case HC_GELU_ERF: typed_((recipe){MAP, HC_GELU_ERF, 0.0f, 0.0f}, a, count, pass_caches); break;
    default: typed_((recipe){MAP, HC_SILU, 0.0f, 0.0f}, a, count, pass_caches); break;
    }
}

HC_KERNEL_FUNCTION void HC_NAME(map_backward)(int function, int64_t count, const void *dout, int dout_type, const void *x,
                                              int x_type, void *out_dx, int dx_type, int pass_caches) HC_KERNEL_STREAMING {
    const arrays a = {x, dout, out_dx, x_type, dout_type, dx_type};
    switch (function) {
    case HC_EXP: typed_((recipe){MAP_BACKWARD, HC_EXP, 0.0f, 0.0f}, a, count, pass_caches); break;
    case HC_TANH: typed_((recipe){MAP_BACKWARD, HC_TANH, 0.0f, 0.0f}, a, count, pass_caches); break;
    case HC_GELU: typed_((recipe){MAP_BACKWARD, HC_GELU, 0.0f, 0.0f}, a, count, pass_caches); break;
    case HC_GELU_ERF: typed_((recipe){MAP_BACKWARD, HC_GELU_ERF, 0.0f, 0.0f}, a, count, pass_caches); break;
    default: typed_((recipe){MAP_BACKWARD, HC_SILU, 0.0f, 0.0f}, a, count, pass_caches); break;
    }
}

HC_KERNEL_FUNCTION void HC_NAME(scale_add)(int64_t count, float alpha, const void *x, int x_type, float beta, const void *y,
                                           int y_type, void *out, int out_type, int pass_caches) HC_KERNEL_STREAMING {
    if (y == NULL) {
        typed_((recipe){SCALE, 0, alpha, 0.0f}, (arrays){x, x, out, x_type, x_type, out_type}, count, pass_caches);
    } else {
        typed_((recipe){SCALE_ADD, 0, alpha, beta}, (arrays){x, y, out, x_type, y_type, out_type}, count, pass_caches);
    }
}

HC_KERNEL_FUNCTION void HC_NAME(scaled_difference)(int64_t count, float factor, const void *x, int x_type, const void *y,
                                                   int y_type, void *out, int out_type,
                                                   int pass_caches) HC_KERNEL_STREAMING {
    typed_((recipe){DIFFERENCE, 0, factor, 0.0f}, (arrays){x, y, out, x_type, y_type, out_type}, count, pass_caches);
}
