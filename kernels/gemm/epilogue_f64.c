/* Epilogue of fp64 products in plain loops, for tests of gradients. All arrays are fp64. */
#include <math.h>

#include "gemm/epilogue.h"

/* tanh-GELU: 0.5 x (1 + tanh u), u = sqrt(2 / pi) (x + 0.044715 x^3). */
#define SQRT_2_OVER_PI 0.79788456080286535588
#define CUBIC 0.044715

static double gelu(double x) {
    return 0.5 * x * (1.0 + tanh(SQRT_2_OVER_PI * (x + CUBIC * x * x * x)));
}

static double gelu_gradient(double x) {
    const double t = tanh(SQRT_2_OVER_PI * (x + CUBIC * x * x * x));
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * SQRT_2_OVER_PI * (1.0 + 3.0 * CUBIC * x * x);
}

void hc_epilogue_f64(int64_t row, int64_t column, int64_t rows, int64_t columns, const void *sum, int64_t sum_stride,
                     const hc_matrix *out_c, const hc_epilogue *epilogue) {
    const double *gradient_at = epilogue->gelu_gradient_at, *residual = epilogue->residual;
    for (int64_t i = 0; i < rows; i++) {
        const double *gate = epilogue->gate;
        if (gate) {
            gate += (row + i) / epilogue->rows_per_gate * epilogue->gate_stride + column;
        }
        for (int64_t j = 0; j < columns; j++) {
            const int64_t at = (row + i) * out_c->row_stride + column + j;
            double v = ((const double *)sum)[i * sum_stride + j];
            if (epilogue->out_before) {
                ((double *)epilogue->out_before)[at] = v;
            }
            v = epilogue->gelu ? gelu(v) : v;
            v = gradient_at ? v * gelu_gradient(gradient_at[at]) : v;
            v = gate ? v * gate[j] : v;
            v = residual ? v + residual[at] : v;
            ((double *)out_c->data)[at] = v;
        }
    }
}
