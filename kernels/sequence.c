/* Several operators in one call. Each is a sequence of words: its number, then its arguments after the context, in
 * order. */
#include <stddef.h>
#include <string.h>

#include "context.h"

#define INT(i) ((int)words[i])
#define AT(i) ((void *)(uintptr_t)words[i])
#define TYPED(i) AT(i), INT((i) + 1)

static float real(int64_t word) {
    double value;
    memcpy(&value, &word, sizeof value);
    return (float)value;
}

static int gemm(hc_context *context, const int64_t *words) {
    return hc_gemm(context, AT(0));
}

static int adaln_forward(hc_context *context, const int64_t *words) {
    return hc_adaln_forward(context, words[0], words[1], words[2], real(words[3]), TYPED(4), AT(6), AT(7), INT(8), words[9],
                            TYPED(10), AT(12), AT(13));
}

static int adaln_backward(hc_context *context, const int64_t *words) {
    return hc_adaln_backward(context, words[0], words[1], words[2], TYPED(3), TYPED(5), TYPED(7), words[9], AT(10), AT(11),
                             TYPED(12), TYPED(14), AT(16), AT(17), INT(18));
}

static int gate_residual_backward(hc_context *context, const int64_t *words) {
    return hc_gate_residual_backward(context, words[0], words[1], words[2], TYPED(3), TYPED(5), words[7], TYPED(8), TYPED(10),
                                     TYPED(12));
}

static int attention_forward(hc_context *context, const int64_t *words) {
    return hc_attention_forward(context, words[0], words[1], words[2], words[3], TYPED(4), TYPED(6), AT(8), INT(9));
}

static int attention_backward(hc_context *context, const int64_t *words) {
    return hc_attention_backward(context, words[0], words[1], words[2], words[3], TYPED(4), TYPED(6), TYPED(8), AT(10), TYPED(11),
                                 INT(13));
}

static int map(hc_context *context, const int64_t *words) {
    return hc_map(context, INT(0), words[1], TYPED(2), TYPED(4));
}

static int map_backward(hc_context *context, const int64_t *words) {
    return hc_map_backward(context, INT(0), words[1], TYPED(2), TYPED(4), TYPED(6));
}

static int swiglu_forward(hc_context *context, const int64_t *words) {
    return hc_swiglu_forward(context, words[0], words[1], TYPED(2), TYPED(4));
}

static int swiglu_backward(hc_context *context, const int64_t *words) {
    return hc_swiglu_backward(context, words[0], words[1], TYPED(2), TYPED(4), TYPED(6));
}

static int rotate_heads_forward(hc_context *context, const int64_t *words) {
    return hc_rotate_heads_forward(context, words[0], words[1], words[2], words[3], real(words[4]), AT(5), AT(6), AT(7), AT(8),
                                   AT(9), TYPED(10));
}

static int rotate_heads_backward(hc_context *context, const int64_t *words) {
    return hc_rotate_heads_backward(context, words[0], words[1], words[2], words[3], real(words[4]), AT(5), AT(6), AT(7), AT(8),
                                    AT(9), AT(10), TYPED(11), AT(13), AT(14));
}

static int attention_heads_forward(hc_context *context, const int64_t *words) {
    return hc_attention_heads_forward(context, AT(0));
}

static const struct {
    int (*run)(hc_context *context, const int64_t *words);
    int64_t num_words;
} STEPS[] = {
    [HC_STEP_GEMM] = {gemm, 1},
    [HC_STEP_ADALN_FORWARD] = {adaln_forward, 14},
    [HC_STEP_ADALN_BACKWARD] = {adaln_backward, 19},
    [HC_STEP_GATE_RESIDUAL_BACKWARD] = {gate_residual_backward, 14},
    [HC_STEP_ATTENTION_FORWARD] = {attention_forward, 10},
    [HC_STEP_ATTENTION_BACKWARD] = {attention_backward, 14},
    [HC_STEP_MAP] = {map, 6},
    [HC_STEP_MAP_BACKWARD] = {map_backward, 8},
    [HC_STEP_SWIGLU_FORWARD] = {swiglu_forward, 6},
    [HC_STEP_SWIGLU_BACKWARD] = {swiglu_backward, 8},
    [HC_STEP_ROTATE_HEADS_FORWARD] = {rotate_heads_forward, 12},
    [HC_STEP_ROTATE_HEADS_BACKWARD] = {rotate_heads_backward, 15},
    [HC_STEP_ATTENTION_HEADS_FORWARD] = {attention_heads_forward, 1},
};
#define NUM_STEPS ((int64_t)(sizeof(STEPS) / sizeof(STEPS[0])))

int hc_sequence(hc_context *context, const int64_t *words, int64_t num_words, int64_t *out_at) {
    if (!hc_is_context(context) || out_at == NULL || num_words < 0 || (words == NULL && num_words > 0)) {
        return HC_BAD_ARGUMENT;
    }
    for (int64_t i = 0; i < num_words;) {
        *out_at = i;
        const int64_t step = words[i++];
        if (step < 0 || step >= NUM_STEPS || STEPS[step].num_words > num_words - i) {
            return HC_BAD_ARGUMENT;
        }
        const int status = STEPS[step].run(context, words + i);
        if (status != HC_OK) {
            return status;
        }
        i += STEPS[step].num_words;
    }
    return HC_OK;
}
