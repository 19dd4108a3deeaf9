/* Sum of squares, reference: the truth in the tests, and what runs where no faster line of the table does. */
#include "sumsq_f32.h"

double hc_sumsq_f32_ref(const float *x, int64_t count) {
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    return sum;
}
