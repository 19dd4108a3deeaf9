/* Epilogue of a block of C = A B: the terms of hc_epilogue after the bias, and the conversion to the type of C. */
#ifndef HC_EPILOGUE_H
#define HC_EPILOGUE_H

#include <stdint.h>

#include "hcops.h"

/* Set rows x columns of out_c from (row, column) on to epilogue(sum). sum contains A B + bias in fp32 (fp64 for _f64),
 * with row stride sum_stride. It may be the same part of out_c. */
typedef void hc_epilogue_kernel(int64_t row, int64_t column, int64_t rows, int64_t columns, const void *sum, int64_t sum_stride,
                                const hc_matrix *out_c, const hc_epilogue *epilogue);

extern hc_epilogue_kernel hc_epilogue_ref, hc_epilogue_avx2, hc_epilogue_avx512, hc_epilogue_neon, hc_epilogue_sve,
    hc_epilogue_sme;

/* Epilogue for fp64 C, gate and residual, in plain loops, for tests of gradients. */
extern hc_epilogue_kernel hc_epilogue_f64;

#endif
