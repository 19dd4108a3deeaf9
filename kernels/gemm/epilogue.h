/* Finishing a block of C = A B: what hc_epilogue asks for after the bias, and the conversion to C's type. */
#ifndef HC_EPILOGUE_H
#define HC_EPILOGUE_H

#include <stdint.h>

#include "hcops.h"

/* rows x columns of out_c, from (row, column) on, become epilogue(sum); sum holds A B + bias, fp32 (fp64 for _f64), with
 * sum_stride between rows, and may be that part of out_c itself. */
typedef void hc_epilogue_kernel(int64_t row, int64_t column, int64_t rows, int64_t columns, const void *sum, int64_t sum_stride,
                                const hc_matrix *out_c, const hc_epilogue *epilogue);

extern hc_epilogue_kernel hc_epilogue_ref, hc_epilogue_avx2, hc_epilogue_avx512, hc_epilogue_neon, hc_epilogue_sve,
    hc_epilogue_sme;

/* The same for C, gate and residual of fp64: plain loops, for tests of gradients. */
extern hc_epilogue_kernel hc_epilogue_f64;

#endif
