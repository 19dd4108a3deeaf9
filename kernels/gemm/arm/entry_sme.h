/* Definitions shared by all SME products: entry to streaming mode and ZA, and stores of tiles. */
#ifndef HC_ENTRY_SME_H
#define HC_ENTRY_SME_H

#if !defined(HC_TARGET_SME) || !defined(__ARM_FEATURE_SME)
#error "SME kernels are built with -march=armv9-a+sme+sme-f64f64 and HC_TARGET_SME (kernels/CMakeLists.txt)"
#endif

#include <arm_sme.h>

#include "gemm/gemm_kernel.h"

/* Attributes of an entry function: streaming mode and a private ZA for the duration of one call. */
#define HC_SME_ENTRY __arm_locally_streaming __arm_new("za")
/* Attributes of a function that an entry calls in streaming mode, and that uses the caller's ZA. */
#define HC_SME_PART __arm_streaming __arm_inout("za")
/* Attributes of a function that an entry calls and that does not use ZA. Without them the compiler would save ZA around
 * the call. */
#define HC_SME_HELPER __arm_streaming __arm_preserves("za")

/* Clobber list of assembly that uses all vector registers. */
#define HC_ALL_VECTORS                                                                                           \
    "z0", "z1", "z2", "z3", "z4", "z5", "z6", "z7", "z8", "z9", "z10", "z11", "z12", "z13", "z14", "z15", "z16", \
        "z17", "z18", "z19", "z20", "z21", "z22", "z23", "z24", "z25", "z26", "z27", "z28", "z29", "z30", "z31"

/* Store row `row` of a tile to c, directly, or after adding bias and the previous c. */
#define HC_STORE_ROW(bits, tile, row, columns, c, ldc) \
    svst1_hor_za##bits(tile, (uint32_t)(row), columns, (c) + (row) * (ldc));
#define HC_STORE_SUM(bits, tile, row, columns, c, ldc, bias, add)                                                  \
    {                                                                                                              \
        const svfloat##bits##_t product = svread_hor_za##bits##_m(bias, columns, tile, (uint32_t)(row));           \
        const svfloat##bits##_t sum = svadd_x(columns, product, bias);                                             \
        const svfloat##bits##_t old = svld1((add) ? columns : svpfalse_b(), (c) + (row) * (ldc));                  \
        svst1(columns, (c) + (row) * (ldc), svadd_x(columns, sum, old));                                           \
    }

/* Store the rows of a tile of `bits` wide elements to c, at most `rows_left` rows (none if negative), under a mask of
 * columns. bias is a vector, possibly zeros. The products are summed first, then bias and c are added, so that their
 * magnitude does not affect the rounding of every step. The loop stores two rows per iteration, because the immediate
 * part of a row number is 0 to 1 for 64-bit elements. */
#define HC_STORE_TILE(bits, tile, rows_left, columns, c, ldc, has_bias, bias, add)                             \
    do {                                                                                                       \
        const int64_t lanes = (int64_t)svcntb() / (bits / 8);                                                  \
        const int64_t rows = (rows_left) < lanes ? (rows_left) : lanes;                                        \
        int64_t row = 0;                                                                                       \
        if ((has_bias) || (add)) {                                                                             \
            for (; row < rows; row++) {                                                                        \
                HC_STORE_SUM(bits, tile, row, columns, c, ldc, bias, add)                                      \
            }                                                                                                  \
            break;                                                                                             \
        }                                                                                                      \
        for (; row + 1 < rows; row += 2) {                                                                     \
            HC_STORE_ROW(bits, tile, row, columns, c, ldc)                                                     \
            HC_STORE_ROW(bits, tile, row + 1, columns, c, ldc)                                                 \
        }                                                                                                      \
        if (row < rows) {                                                                                      \
            HC_STORE_ROW(bits, tile, row, columns, c, ldc)                                                     \
        }                                                                                                      \
    } while (0)

#endif
