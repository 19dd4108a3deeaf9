/* SwiGLU kernels. Rows [gate | value] of 2E elements become rows silu(gate) * value of E elements. The backward kernel
 * computes the gradients of gate and value. */
#include <float.h>

#include "activation/activation.h"
#include "simd/math.h"

/* A row: the indices of its first gate, its first value and the first of its E elements of out or dout. */
typedef struct {
    const void *dout, *x;
    void *out;
    int dout_type, x_type, out_type;
    int64_t gate, value, of_e;
} place;

HC_INLINE hc_vf forward_(hc_vf gate, hc_vf value) HC_STREAMING_OK { return hc_mul(hc_silu(gate), value); }

/* Compute elements i.. of a result row: one vector, or two vectors of bf16. */
HC_INLINE void forward_step_(place p, int64_t i, int pairs, int stream) HC_STREAMING_OK {
    if (!pairs) {
        const hc_vf out = forward_(hc_load_as(p.x, p.gate + i, p.x_type), hc_load_as(p.x, p.value + i, p.x_type));
        if (stream) {
            hc_stream_as(p.out, p.of_e + i, p.out_type, out);
        } else {
            hc_store_as(p.out, p.of_e + i, p.out_type, out);
        }
        return;
    }
    const uint16_t *gate = (const uint16_t *)p.x + p.gate + i, *value = (const uint16_t *)p.x + p.value + i;
    const hc_vf even = forward_(hc_load_bf16_even(gate), hc_load_bf16_even(value));
    const hc_vf odd = forward_(hc_load_bf16_odd(gate), hc_load_bf16_odd(value));
    if (stream) {
        hc_stream_bf16_pair((uint16_t *)p.out + p.of_e + i, even, odd);
    } else {
        hc_store_bf16_pair((uint16_t *)p.out + p.of_e + i, even, odd);
    }
}

HC_INLINE void forward_row_(place p, int64_t columns, int pairs, int stream) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes(), step = lanes << pairs;
    int64_t i = 0;
    for (; i + step <= columns; i += step) {
        forward_step_(p, i, pairs, stream);
    }
    for (; i < columns; i += lanes) {
        const int64_t n = columns - i < lanes ? columns - i : lanes;
        const hc_vf gate = hc_load_as_n(p.x, p.gate + i, n, p.x_type), value = hc_load_as_n(p.x, p.value + i, n, p.x_type);
        hc_store_as_n(p.out, p.of_e + i, n, p.out_type, forward_(gate, value));
    }
}

/* Return 1 if both halves of every row start at multiples of `step` elements, as non-temporal stores require. */
HC_INLINE int aligned_(const void *p, int64_t columns, int64_t step, int type) HC_STREAMING_OK {
    return columns % step == 0 && (uintptr_t)p % (uintptr_t)(step * (type == HC_F32 ? 4 : 2)) == 0;
}

HC_INLINE void forward_rows_(place p, int64_t rows, int64_t columns, int pairs, int pass_caches) HC_STREAMING_OK {
    const int stream = pass_caches && aligned_(p.out, columns, hc_lanes() << pairs, p.out_type);
    for (int64_t row = 0; row < rows; row++) {
        p.gate = 2 * row * columns;
        p.value = p.gate + columns;
        p.of_e = row * columns;
        forward_row_(p, columns, pairs, stream);
    }
    hc_stream_end();
}

HC_KERNEL_FUNCTION void HC_NAME(swiglu_forward)(int64_t rows, int64_t columns, const void *x, int x_type, void *out,
                                                int out_type, int pass_caches) HC_KERNEL_STREAMING {
    const place p = {.x = x, .out = out, .x_type = x_type, .out_type = out_type};
    if (x_type == HC_BF16 && out_type == HC_BF16) {
        forward_rows_((place){.x = x, .out = out, .x_type = HC_BF16, .out_type = HC_BF16}, rows, columns, 1, pass_caches);
    } else {
        forward_rows_(p, rows, columns, 0, pass_caches);
    }
}

/* Bound of the gate, at which exp(-gate) overflows to inf. The sigmoid is 0 there, and its product with any finite gate
 * is finite. */
#define GATE_BOUND 89.0f

/* exp(-b) and the sigmoid 1 / (1 + exp(-b)), where b is the gate clamped to GATE_BOUND. Outside these bounds silu' is 0
 * or 1. */
HC_INLINE hc_vf power_(hc_vf bounded) HC_STREAMING_OK { return hc_exp_bounded_(hc_negate(bounded)); }
HC_INLINE hc_vf sigmoid_(hc_vf power) HC_STREAMING_OK { return hc_div(hc_set(1.0f), hc_add(hc_set(1.0f), power)); }
HC_INLINE hc_vf finite_(hc_vf power) HC_STREAMING_OK { return hc_min(hc_set(FLT_MAX), power); }

/* Compute both gradients of one vector of gates with one exponential and one division. */
#define GRADIENTS(dgate, dvalue, dout, gate, value)                                                 \
    do {                                                                                            \
        const hc_vf b_ = hc_within(gate, GATE_BOUND), e_ = power_(b_), s_ = sigmoid_(e_);           \
        dgate = hc_mul(hc_mul(dout, value), hc_gradient_of_gated_(gate, finite_(e_), s_, b_));      \
        dvalue = hc_mul(dout, hc_mul(gate, s_));                                                    \
    } while (0)

HC_INLINE void backward_step_(place p, int64_t i, int pairs, int stream) HC_STREAMING_OK {
    hc_vf dgate, dvalue;
    if (!pairs) {
        const hc_vf dout = hc_load_as(p.dout, p.of_e + i, p.dout_type);
        const hc_vf gate = hc_load_as(p.x, p.gate + i, p.x_type), value = hc_load_as(p.x, p.value + i, p.x_type);
        GRADIENTS(dgate, dvalue, dout, gate, value);
        if (stream) {
            hc_stream_as(p.out, p.gate + i, p.out_type, dgate);
            hc_stream_as(p.out, p.value + i, p.out_type, dvalue);
        } else {
            hc_store_as(p.out, p.gate + i, p.out_type, dgate);
            hc_store_as(p.out, p.value + i, p.out_type, dvalue);
        }
        return;
    }
    const uint16_t *dout = (const uint16_t *)p.dout + p.of_e + i, *gate = (const uint16_t *)p.x + p.gate + i;
    const uint16_t *value = (const uint16_t *)p.x + p.value + i;
    uint16_t *out_dgate = (uint16_t *)p.out + p.gate + i, *out_dvalue = (uint16_t *)p.out + p.value + i;
    const hc_vf dout_even = hc_load_bf16_even(dout), gate_even = hc_load_bf16_even(gate);
    const hc_vf dout_odd = hc_load_bf16_odd(dout), gate_odd = hc_load_bf16_odd(gate);
    hc_vf dgate_odd, dvalue_odd;
    GRADIENTS(dgate, dvalue, dout_even, gate_even, hc_load_bf16_even(value));
    GRADIENTS(dgate_odd, dvalue_odd, dout_odd, gate_odd, hc_load_bf16_odd(value));
    if (stream) {
        hc_stream_bf16_pair(out_dgate, dgate, dgate_odd);
        hc_stream_bf16_pair(out_dvalue, dvalue, dvalue_odd);
    } else {
        hc_store_bf16_pair(out_dgate, dgate, dgate_odd);
        hc_store_bf16_pair(out_dvalue, dvalue, dvalue_odd);
    }
}

HC_INLINE void backward_row_(place p, int64_t columns, int pairs, int stream) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes(), step = lanes << pairs;
    int64_t i = 0;
    for (; i + step <= columns; i += step) {
        backward_step_(p, i, pairs, stream);
    }
    for (; i < columns; i += lanes) {
        const int64_t n = columns - i < lanes ? columns - i : lanes;
        const hc_vf dout = hc_load_as_n(p.dout, p.of_e + i, n, p.dout_type);
        const hc_vf gate = hc_load_as_n(p.x, p.gate + i, n, p.x_type), value = hc_load_as_n(p.x, p.value + i, n, p.x_type);
        hc_vf dgate, dvalue;
        GRADIENTS(dgate, dvalue, dout, gate, value);
        hc_store_as_n(p.out, p.gate + i, n, p.out_type, dgate);
        hc_store_as_n(p.out, p.value + i, n, p.out_type, dvalue);
    }
}

HC_INLINE void backward_rows_(place p, int64_t rows, int64_t columns, int pairs, int pass_caches) HC_STREAMING_OK {
    const int stream = pass_caches && aligned_(p.out, columns, hc_lanes() << pairs, p.out_type);
    for (int64_t row = 0; row < rows; row++) {
        p.gate = 2 * row * columns;
        p.value = p.gate + columns;
        p.of_e = row * columns;
        backward_row_(p, columns, pairs, stream);
    }
    hc_stream_end();
}

HC_KERNEL_FUNCTION void HC_NAME(swiglu_backward)(int64_t rows, int64_t columns, const void *dout, int dout_type, const void *x,
                                                 int x_type, void *out_dx, int dx_type, int pass_caches) HC_KERNEL_STREAMING {
    if (dout_type == HC_BF16 && x_type == HC_BF16 && dx_type == HC_BF16) {
        const place p = {dout, x, out_dx, HC_BF16, HC_BF16, HC_BF16, 0, 0, 0};
        backward_rows_(p, rows, columns, 1, pass_caches);
    } else {
        backward_rows_((place){dout, x, out_dx, dout_type, x_type, dx_type, 0, 0, 0}, rows, columns, 0, pass_caches);
    }
}
