/* Product of packed panels by SME outer products on the four 32-bit ZA tiles, shared by fp32 (FMOPA) and bf16 (BFMOPA).
 * entry_sme.h contains the definitions shared by all SME products.
 *
 * Tiles (0 1 / 2 3) are a square of 2 x 2 vectors of C: four outer products for two vectors of A and two vectors of B,
 * the fewest loads per product for four tiles. A step is one k of fp32 or a pair of k of bf16. In memory, both are two
 * vectors of 32-bit words of each panel, so both types use the loop below.
 *
 * The loads are single-vector loads (LD1W), which SME without SME2 executes at full rate. The structure loads LD2W and
 * LD4W would need fewer instructions, but permute every vector they load. kernels/test/instructions_per_product.py counts
 * the executed instructions. */
#ifndef HC_BLOCK_SME_H
#define HC_BLOCK_SME_H

#include "gemm/arm/entry_sme.h"

/* Steps per group. The immediate offsets of LD1W reach -8 to 7 vectors, and a step loads two vectors of each panel, so
 * a group has eight steps. A step uses four of the 32 vector registers, so that no load waits for a register. The loop
 * is assembly, because compilers move the pointers to the start of the group, out of reach of the offsets, and load
 * every step into the same four registers. */
#define HC_STEPS_PER_GROUP 8

/* Loads of one step, with offsets `even` and `odd`. a0 a1 b0 b1 are numbers of vector registers. */
#define HC_LOAD(z, panel, offset) "ld1w {z" #z ".s}, %[all]/z, [%[" #panel "], #" #offset ", mul vl]\n"
#define HC_LOAD_STEP(a0, a1, b0, b1, even, odd) \
    HC_LOAD(a0, a, even) HC_LOAD(b0, b, even) HC_LOAD(b1, b, odd) HC_LOAD(a1, a, odd)
/* Products of one step, interleaved with the loads of the step after the next. */
#define HC_STEP_AND_LOAD(OUTER, a0, a1, b0, b1, even, odd, next_a0, next_a1, next_b0, next_b1) \
    OUTER(0, a0, b0) HC_LOAD(next_a0, a, even) OUTER(1, a0, b1) HC_LOAD(next_b0, b, even)       \
    OUTER(2, a1, b0) HC_LOAD(next_b1, b, odd) OUTER(3, a1, b1) HC_LOAD(next_a1, a, odd)
#define HC_LAST_STEP(OUTER, a0, a1, b0, b1) OUTER(0, a0, b0) OUTER(1, a0, b1) OUTER(2, a1, b0) OUTER(3, a1, b1)

/* clang-format off */
#define HC_GROUP(OUTER)                                                        \
    HC_LOAD_STEP(0, 1, 2, 3, -8, -7)                                           \
    HC_LOAD_STEP(4, 5, 6, 7, -6, -5)                                           \
    HC_STEP_AND_LOAD(OUTER, 0, 1, 2, 3, -4, -3, 8, 9, 10, 11)                  \
    HC_STEP_AND_LOAD(OUTER, 4, 5, 6, 7, -2, -1, 12, 13, 14, 15)                \
    HC_STEP_AND_LOAD(OUTER, 8, 9, 10, 11, 0, 1, 16, 17, 18, 19)                \
    HC_STEP_AND_LOAD(OUTER, 12, 13, 14, 15, 2, 3, 20, 21, 22, 23)              \
    HC_STEP_AND_LOAD(OUTER, 16, 17, 18, 19, 4, 5, 24, 25, 26, 27)              \
    HC_STEP_AND_LOAD(OUTER, 20, 21, 22, 23, 6, 7, 28, 29, 30, 31)              \
    HC_LAST_STEP(OUTER, 24, 25, 26, 27)                                        \
    HC_LAST_STEP(OUTER, 28, 29, 30, 31)
/* clang-format on */

/* Define multiply, which sets the tiles to the product of a panel of A and a panel of B of `steps` steps. OUTER(tile,
 * rows, columns) is the assembly text that adds an outer product of two vector registers to a tile. */
#define HC_DEFINE_MULTIPLY(OUTER)                                                                        \
    static void multiply(int64_t steps, const float *a, const float *b) HC_SME_PART {                    \
        const svbool_t all = svptrue_b8(); /* of elements of every size */                               \
        const int64_t middle = HC_STEPS_PER_GROUP * (int64_t)svcntw();                                   \
        svzero_za();                                                                                     \
        int64_t groups = steps / HC_STEPS_PER_GROUP;                                                     \
        if (groups > 0) {                                                                                \
            a += middle;                                                                                 \
            b += middle;                                                                                 \
            __asm__ volatile("1:\n" HC_GROUP(OUTER) "addvl %[a], %[a], #16\n"                            \
                                                   "addvl %[b], %[b], #16\n"                             \
                                                   "subs %[groups], %[groups], #1\n"                     \
                                                   "b.ne 1b\n"                                           \
                             : [a] "+r"(a), [b] "+r"(b), [groups] "+r"(groups)                           \
                             : [all] "Upl"(all)                                                          \
                             : "cc", "memory", HC_ALL_VECTORS);                                          \
            a -= middle;                                                                                 \
            b -= middle;                                                                                 \
        }                                                                                                \
        for (int64_t step = 0; step < steps % HC_STEPS_PER_GROUP; step++) {                              \
            __asm__ volatile(HC_LOAD_STEP(0, 1, 2, 3, 0, 1) HC_LAST_STEP(OUTER, 0, 1, 2, 3)::[a] "r"(a), \
                             [b] "r"(b), [all] "Upl"(all)                                                \
                             : "memory", "z0", "z1", "z2", "z3");                                        \
            a += 2 * svcntw();                                                                           \
            b += 2 * svcntw();                                                                           \
        }                                                                                                \
    }

/* Store the four tiles to the corner of c with m remaining rows and n remaining columns. */
static void store_tiles(int64_t m, int64_t n, float *c, int64_t ldc, const float *bias, int add) HC_SME_PART {
    const int64_t vector = (int64_t)svcntw();
    float *below = c + vector * ldc;
    for (int64_t right = 0; right < 2 * vector && right < n; right += vector) {
        const svbool_t columns = svwhilelt_b32(right, n);
        const svfloat32_t bias_vector = svld1(bias == NULL ? svpfalse_b() : columns, bias == NULL ? c : bias + right);
        if (right == 0) {
            HC_STORE_TILE(32, 0, m, columns, c, ldc, bias != NULL, bias_vector, add);
            HC_STORE_TILE(32, 2, m - vector, columns, below, ldc, bias != NULL, bias_vector, add);
        } else {
            HC_STORE_TILE(32, 1, m, columns, c + vector, ldc, bias != NULL, bias_vector, add);
            HC_STORE_TILE(32, 3, m - vector, columns, below + vector, ldc, bias != NULL, bias_vector, add);
        }
    }
}

/* Defined by HC_DEFINE_MULTIPLY. */
static void multiply(int64_t steps, const float *a, const float *b) HC_SME_PART;

/* Multiply panels. The inner loop runs over the panels of A, so that a panel of B stays in the L1 cache. */
HC_SME_ENTRY static void block(int64_t m, int64_t n, int64_t steps, const float *a, const float *b, float *c, int64_t ldc,
                               const float *bias, int add) {
    const int64_t width = 2 * (int64_t)svcntw();
    for (int64_t j = 0; j < n; j += width) {
        for (int64_t i = 0; i < m; i += width) {
            multiply(steps, a + i * steps, b + j * steps);
            store_tiles(m - i, n - j, c + i * ldc + j, ldc, bias == NULL ? NULL : bias + j, add);
        }
    }
}

/* Return the rows of A, or the columns of B, per panel. */
static int64_t two_vectors(void) {
    return 2 * (int64_t)svcntsw();
}

#endif
