/* C ABI calls by operator name. Each function passes the numbers and arrays of a case to one operator, in the order of
 * its arguments. tests/kernels/cases.py writes the same order. */
#include <stddef.h>
#include <string.h>

#include "test/cases.h"

#define INT(i) (one->ints[i])
#define REAL(i) ((float)one->floats[i])
#define ARRAY(i) (one->arrays[i])
#define TYPED(i) one->arrays[i], one->dtypes[i]

static hc_matrix matrix(const hc_case *one, int array, int64_t row_stride, int64_t column_stride) {
    return (hc_matrix){ARRAY(array), row_stride, column_stride, one->dtypes[array]};
}

/* ints: m n k, strides of a b c, compute accumulate gelu gate_stride rows_per_gate, mc nc kc row_cuts column_cuts num_threads;
 * arrays: a b c row_sum bias before gelu_gradient_at gate residual */
static int gemm(hc_context *context, const hc_case *one) {
    const hc_gemm_arguments arguments = {
        .m = INT(0),
        .n = INT(1),
        .k = INT(2),
        .a = matrix(one, 0, INT(3), INT(4)),
        .b = matrix(one, 1, INT(5), INT(6)),
        .out_c = matrix(one, 2, INT(7), 1),
        .compute = (int)INT(8),
        .accumulate = (int)INT(9),
        .out_row_sum_a = ARRAY(3),
        .epilogue = {.bias = ARRAY(4),
                     .bias_type = one->dtypes[4],
                     .out_before = ARRAY(5),
                     .before_type = one->dtypes[5],
                     .gelu = (int)INT(10),
                     .gelu_gradient_at = ARRAY(6),
                     .gate = ARRAY(7),
                     .gate_type = one->dtypes[7],
                     .gate_stride = INT(11),
                     .rows_per_gate = INT(12),
                     .residual = ARRAY(8),
                     .residual_type = one->dtypes[8]},
        .blocking = {INT(13), INT(14), INT(15), (int)INT(16), (int)INT(17), (int)INT(18)},
    };
    return hc_gemm(context, &arguments);
}

static int adaln_forward(hc_context *context, const hc_case *one) {
    return hc_adaln_forward(context, INT(0), INT(1), INT(2), REAL(0), TYPED(0), ARRAY(1), TYPED(2), INT(3), TYPED(3), ARRAY(4),
                            ARRAY(5));
}

static int adaln_backward(hc_context *context, const hc_case *one) {
    return hc_adaln_backward(context, INT(0), INT(1), INT(2), TYPED(0), TYPED(1), TYPED(2), INT(3), ARRAY(3), ARRAY(4), TYPED(5),
                             TYPED(6), ARRAY(7), TYPED(8));
}

static int gate_residual_forward(hc_context *context, const hc_case *one) {
    return hc_gate_residual_forward(context, INT(0), INT(1), INT(2), TYPED(0), TYPED(1), INT(3), TYPED(2), TYPED(3));
}

static int gate_residual_backward(hc_context *context, const hc_case *one) {
    return hc_gate_residual_backward(context, INT(0), INT(1), INT(2), TYPED(0), TYPED(1), INT(3), TYPED(2), TYPED(3), TYPED(4));
}

static int attention_forward(hc_context *context, const hc_case *one) {
    return hc_attention_forward(context, INT(0), INT(1), INT(2), INT(3), TYPED(0), TYPED(1), ARRAY(2), (int)INT(4));
}

static int attention_backward(hc_context *context, const hc_case *one) {
    return hc_attention_backward(context, INT(0), INT(1), INT(2), INT(3), TYPED(0), TYPED(1), TYPED(2), ARRAY(3), TYPED(4),
                                 (int)INT(4));
}

static hc_heads heads(const hc_case *one, int array, int64_t tokens, int64_t h, int64_t k) {
    return (hc_heads){ARRAY(array), one->dtypes[array], tokens * h * k, k, h * k};
}

/* ints: n queries keys h key_heads k causal compute; floats: scale; arrays (n, tokens, heads, k): query key value out lse, and
 * backward dout dquery dkey dvalue */
static hc_attention_arguments attention_of(const hc_case *one) {
    return (hc_attention_arguments){
        .n = INT(0), .queries = INT(1), .keys = INT(2), .h = INT(3), .key_heads = INT(4), .k = INT(5), .scale = REAL(0),
        .causal = (int)INT(6), .compute = (int)INT(7), .query = heads(one, 0, INT(1), INT(3), INT(5)),
        .key = heads(one, 1, INT(2), INT(4), INT(5)), .value = heads(one, 2, INT(2), INT(4), INT(5)),
        .out = heads(one, 3, INT(1), INT(3), INT(5)), .out_lse = ARRAY(4)};
}

static int attention_heads_forward(hc_context *context, const hc_case *one) {
    const hc_attention_arguments arguments = attention_of(one);
    return hc_attention_heads_forward(context, &arguments);
}

static int attention_heads_backward(hc_context *context, const hc_case *one) {
    hc_attention_arguments arguments = attention_of(one);
    arguments.dout = heads(one, 5, INT(1), INT(3), INT(5));
    arguments.out_dquery = heads(one, 6, INT(1), INT(3), INT(5));
    arguments.out_dkey = heads(one, 7, INT(2), INT(3), INT(5));
    arguments.out_dvalue = heads(one, 8, INT(2), INT(3), INT(5));
    return hc_attention_heads_backward(context, &arguments);
}

static int norm_forward(hc_context *context, const hc_case *one) {
    return hc_norm_forward(context, INT(0), INT(1), REAL(0), TYPED(0), ARRAY(1), TYPED(2), TYPED(3), ARRAY(4), ARRAY(5));
}

static int norm_backward(hc_context *context, const hc_case *one) {
    return hc_norm_backward(context, INT(0), INT(1), TYPED(0), TYPED(1), TYPED(2), ARRAY(3), ARRAY(4), TYPED(5), ARRAY(6),
                            TYPED(7));
}

static int map(hc_context *context, const hc_case *one) {
    return hc_map(context, (int)INT(0), INT(1), TYPED(0), TYPED(1));
}

static int map_backward(hc_context *context, const hc_case *one) {
    return hc_map_backward(context, (int)INT(0), INT(1), TYPED(0), TYPED(1), TYPED(2));
}

static int swiglu_forward(hc_context *context, const hc_case *one) {
    return hc_swiglu_forward(context, INT(0), INT(1), TYPED(0), TYPED(1));
}

static int swiglu_backward(hc_context *context, const hc_case *one) {
    return hc_swiglu_backward(context, INT(0), INT(1), TYPED(0), TYPED(1), TYPED(2));
}

/* arrays: cos sin query_weight key_weight qkv out */
static int rotate_heads_forward(hc_context *context, const hc_case *one) {
    return hc_rotate_heads_forward(context, INT(0), INT(1), INT(2), INT(3), REAL(0), ARRAY(0), ARRAY(1), ARRAY(2), ARRAY(3),
                                   ARRAY(4), TYPED(5));
}

/* arrays: cos sin query_weight key_weight dout qkv dqkv dquery_weight dkey_weight */
static int rotate_heads_backward(hc_context *context, const hc_case *one) {
    return hc_rotate_heads_backward(context, INT(0), INT(1), INT(2), INT(3), REAL(0), ARRAY(0), ARRAY(1), ARRAY(2), ARRAY(3),
                                    ARRAY(4), ARRAY(5), TYPED(6), ARRAY(7), ARRAY(8));
}

static int scale_add(hc_context *context, const hc_case *one) {
    return hc_scale_add(context, INT(0), REAL(0), TYPED(0), REAL(1), TYPED(1), TYPED(2));
}

static int softmax_forward(hc_context *context, const hc_case *one) {
    return hc_softmax_forward(context, INT(0), INT(1), TYPED(0), TYPED(1));
}

static int softmax_backward(hc_context *context, const hc_case *one) {
    return hc_softmax_backward(context, INT(0), INT(1), TYPED(0), TYPED(1), TYPED(2));
}

static int patchify(hc_context *context, const hc_case *one) {
    return hc_patchify(context, INT(0), INT(1), INT(2), INT(3), INT(4), (int)INT(5), TYPED(0), TYPED(1));
}

static int unpatchify(hc_context *context, const hc_case *one) {
    return hc_unpatchify(context, INT(0), INT(1), INT(2), INT(3), INT(4), (int)INT(5), TYPED(0), TYPED(1));
}

static int mse_forward(hc_context *context, const hc_case *one) {
    return hc_mse_forward(context, INT(0), INT(1), TYPED(0), TYPED(1), ARRAY(2));
}

static int mse_backward(hc_context *context, const hc_case *one) {
    return hc_mse_backward(context, INT(0), INT(1), ARRAY(0), TYPED(1), TYPED(2), TYPED(3));
}

/* arrays: the tensors, then the sum */
static int sum_of_squares(hc_context *context, const hc_case *one) {
    return hc_sum_of_squares(context, one->num_arrays - 1, one->counts, (const float *const *)one->arrays,
                             ARRAY(one->num_arrays - 1));
}

/* ints: step; floats: the settings in their order; arrays: weight gradient first second ema shadow of each tensor */
static int adamw(hc_context *context, const hc_case *one) {
    const double *f = one->floats;
    const hc_adamw_settings settings = {f[0], f[1], f[2], f[3], f[4], f[5], INT(0), f[6]};
    void *columns[6][HC_MAX_ARRAYS / 6];
    int64_t counts[HC_MAX_ARRAYS / 6];
    const int64_t tensors = one->num_arrays / 6;
    for (int64_t i = 0; i < tensors; i++) {
        counts[i] = one->counts[6 * i];
        for (int64_t column = 0; column < 6; column++) {
            columns[column][i] = one->arrays[6 * i + column];
        }
    }
    return hc_adamw(context, &settings, tensors, counts, (float *const *)columns[0], (const float *const *)columns[1],
                    (float *const *)columns[2], (float *const *)columns[3], (float *const *)columns[4],
                    (uint16_t *const *)columns[5]);
}

static int copy(hc_context *context, const hc_case *one) {
    return hc_copy(context, INT(0), ARRAY(0), ARRAY(1));
}

#define OPERATOR(name) {#name, name}
static const struct {
    const char *name;
    int (*call)(hc_context *context, const hc_case *one);
} OPERATORS[] = {
    OPERATOR(gemm),
    OPERATOR(adaln_forward),
    OPERATOR(adaln_backward),
    OPERATOR(gate_residual_forward),
    OPERATOR(gate_residual_backward),
    OPERATOR(attention_forward),
    OPERATOR(attention_backward),
    OPERATOR(attention_heads_forward),
    OPERATOR(attention_heads_backward),
    OPERATOR(norm_forward),
    OPERATOR(norm_backward),
    OPERATOR(map),
    OPERATOR(map_backward),
    OPERATOR(swiglu_forward),
    OPERATOR(swiglu_backward),
    OPERATOR(rotate_heads_forward),
    OPERATOR(rotate_heads_backward),
    OPERATOR(scale_add),
    OPERATOR(softmax_forward),
    OPERATOR(softmax_backward),
    OPERATOR(patchify),
    OPERATOR(unpatchify),
    OPERATOR(mse_forward),
    OPERATOR(mse_backward),
    OPERATOR(sum_of_squares),
    OPERATOR(adamw),
    OPERATOR(copy),
};

int hc_call(hc_context *context, const hc_case *one) {
    for (size_t i = 0; i < sizeof(OPERATORS) / sizeof(OPERATORS[0]); i++) {
        if (strcmp(OPERATORS[i].name, one->op) == 0) {
            return OPERATORS[i].call(context, one);
        }
    }
    return 1;
}
