/* bf16 matrix products by BFMMLA of SVE with the bf16 extension, for any vector length.
 *
 * In each 128-bit segment, BFMMLA adds the product of a 2 x 4 operand and the transpose of a 2 x 4 operand to 2 x 2
 * fp32 sums. A tile is 8 rows of A times 3 vectors of columns of B: 4 x 6 sums, 4 registers of A, 4 registers of B use
 * all 32 registers. A step of four depths needs 24 products and 10 loads, the fewest loads of all tiles that fit and
 * consist of complete vectors of C. LD1RQ repeats two rows of A in every segment.
 * kernels/test/instructions_per_product.py counts the executed instructions.
 *
 * BFMMLA adds the products of k and k + 1 to each other, then to the sum, and rounds both results to odd. The error
 * of a sum over k stays below (k + 2) * 2^-24 of the sum of magnitudes, as with fp32. Denormal operands and sums count
 * as zero. */
#if !defined(HC_TARGET_SVEBF16) || !defined(__ARM_FEATURE_SVE) || !defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#error "this kernel is built with -march=armv8.2-a+sve+bf16 and HC_TARGET_SVEBF16 (kernels/CMakeLists.txt)"
#endif

#include <arm_sve.h>
#include <stddef.h>

#include "gemm/arm/pack_svebf16.h"

#define HC_ROWS 8
#define HC_VECTORS 3
#define HC_STEPS_PER_GROUP 4

static int64_t panel_rows(void) {
    return HC_ROWS;
}

static int64_t panel_columns(void) {
    return HC_VECTORS * (int64_t)svcntw();
}

/* The tile is assembly, because gcc spills sums to memory, and compilers move the pointers out of reach of the offsets.
 * z0 to z3 contain A, z4 to z7 B, z8 to z31 the sums: z(8 + 6 i + j) for pair i of rows and vector j of B. */
#define HC_LOAD_A(z, bytes) "ld1rqh {z" #z ".h}, %[all]/z, [%[a], #(" bytes " + 16 * " #z ")]\n"
#define HC_LOAD_B(z, vectors) "ld1h {z" #z ".h}, %[all]/z, [%[b], #(" vectors "), mul vl]\n"
#define HC_PRODUCT(sum, a, b) "bfmmla z" #sum ".s, z" #a ".h, z" #b ".h\n"
#define HC_PRODUCTS(b, s0, s1, s2, s3) \
    HC_PRODUCT(s0, 0, b) HC_PRODUCT(s1, 1, b) HC_PRODUCT(s2, 2, b) HC_PRODUCT(s3, 3, b)
/* clang-format off */
/* A step of four depths, with expressions for the bytes from a and the vectors from b. */
#define HC_STEP(bytes, vectors)                                                                                       \
    HC_LOAD_B(4, vectors) HC_LOAD_A(0, bytes) HC_LOAD_A(1, bytes) HC_LOAD_A(2, bytes) HC_LOAD_A(3, bytes)             \
    HC_LOAD_B(5, vectors " + 1") HC_PRODUCTS(4, 8, 14, 20, 26) HC_LOAD_B(6, vectors " + 2") HC_PRODUCTS(5, 9, 15, 21, 27)   \
    HC_LOAD_B(7, vectors " + 3") HC_PRODUCTS(6, 10, 16, 22, 28) HC_LOAD_B(4, vectors " + 4") HC_PRODUCTS(7, 11, 17, 23, 29) \
    HC_LOAD_B(5, vectors " + 5") HC_PRODUCTS(4, 12, 18, 24, 30) HC_PRODUCTS(5, 13, 19, 25, 31)
/* The sums of a register are two rows of two columns per segment. Unzipping two registers gives a vector of a row. */
#define HC_STORE_ROWS(s0, s1, s2, s3, s4, s5)                                                      \
    ".irp unzip, uzp1, uzp2\n"                                                                     \
    "\\unzip z0.d, z" #s0 ".d, z" #s1 ".d\n"                                                      \
    "\\unzip z1.d, z" #s2 ".d, z" #s3 ".d\n"                                                      \
    "\\unzip z2.d, z" #s4 ".d, z" #s5 ".d\n"                                                      \
    "st1w {z0.s}, %[all], [%[c]]\n"                                                                \
    "st1w {z1.s}, %[all], [%[c], #1, mul vl]\n"                                                    \
    "st1w {z2.s}, %[all], [%[c], #2, mul vl]\n"                                                    \
    "add %[c], %[c], %[row]\n"                                                                     \
    ".endr\n"
/* clang-format on */

/* Store the product of a panel of A and a panel of B of `steps` steps to 8 rows of 3 vectors at c. Four steps advance
 * the pointers three times, because immediate offsets reach -128 to 112 bytes of A and -8 to 7 vectors of B. */
static __attribute__((noinline)) void multiply(int64_t steps, const uint16_t *a, const uint16_t *b, float *c, int64_t ldc) {
    const svbool_t all = svptrue_b8(); /* of elements of every size */
    int64_t groups = steps / HC_STEPS_PER_GROUP, rest = steps % HC_STEPS_PER_GROUP;
    a += 64; /* 128 bytes */
    b += 8 * svcnth();
    /* clang-format off */
    __asm__ volatile(
        ".irp sum, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31\n"
        "mov z\\sum\\().s, #0\n"
        ".endr\n"
        "cbz %[groups], 2f\n"
        "1:\n"
        ".irp half, -128, 0\n"
        ".irp step, 0, 1\n"
        HC_STEP("\\half + 64 * \\step", "6 * \\step - 8")
        ".endr\n"
        "addvl %[b], %[b], #12\n"
        ".endr\n"
        "add %[a], %[a], #256\n"
        "subs %[groups], %[groups], #1\n"
        "b.ne 1b\n"
        "2:\n"
        "cbz %[rest], 4f\n"
        "3:\n"
        HC_STEP("-128", "-8")
        "addvl %[b], %[b], #6\n"
        "add %[a], %[a], #64\n"
        "subs %[rest], %[rest], #1\n"
        "b.ne 3b\n"
        "4:\n"
        HC_STORE_ROWS(8, 9, 10, 11, 12, 13)
        HC_STORE_ROWS(14, 15, 16, 17, 18, 19)
        HC_STORE_ROWS(20, 21, 22, 23, 24, 25)
        HC_STORE_ROWS(26, 27, 28, 29, 30, 31)
        : [a] "+r"(a), [b] "+r"(b), [c] "+r"(c), [groups] "+r"(groups), [rest] "+r"(rest)
        : [row] "r"(ldc * (int64_t)sizeof(float)), [all] "Upl"(all)
        : "cc", "memory", "z0", "z1", "z2", "z3", "z4", "z5", "z6", "z7", "z8", "z9", "z10", "z11", "z12", "z13", "z14",
          "z15", "z16", "z17", "z18", "z19", "z20", "z21", "z22", "z23", "z24", "z25", "z26", "z27", "z28", "z29", "z30",
          "z31");
    /* clang-format on */
}

/* Compute and store the corner of c with m remaining rows and n remaining columns. A partial tile, and a tile with
 * bias or with `add`, is first stored to the stack. */
static void tile(int64_t m, int64_t n, int64_t steps, const uint16_t *a, const uint16_t *b, float *c, int64_t ldc,
                 const float *bias, int add) {
    const int64_t columns = panel_columns(), v = (int64_t)svcntw();
    if (m >= HC_ROWS && n >= columns && bias == NULL && !add) {
        multiply(steps, a, b, c, ldc);
        return;
    }
    float sums[HC_ROWS * HC_VECTORS * 64]; /* vectors of up to 2,048 bits */
    multiply(steps, a, b, sums, columns);
    for (int64_t j = 0; j < columns && j < n; j += v) {
        const svbool_t some = svwhilelt_b32(j, n);
        const svfloat32_t biases = svld1(bias == NULL ? svpfalse_b() : some, bias == NULL ? c : bias + j);
        for (int64_t r = 0; r < HC_ROWS && r < m; r++) {
            const svfloat32_t sum = svadd_x(some, svld1(some, sums + r * columns + j), biases);
            float *at = c + r * ldc + j;
            svst1(some, at, add ? svadd_x(some, sum, svld1(some, at)) : sum);
        }
    }
}

/* Multiply panels. The inner loop runs over the panels of A, so that a panel of B stays in the L1 cache. */
static void block(int64_t m, int64_t n, int64_t k, const void *a_panels, const void *b_panels, void *c, int64_t ldc,
                  const void *bias, int add) {
    const int64_t columns = panel_columns(), steps = (k + HC_DEPTHS - 1) / HC_DEPTHS, depth = steps * HC_DEPTHS;
    for (int64_t j = 0; j < n; j += columns) {
        for (int64_t i = 0; i < m; i += HC_ROWS) {
            tile(m - i, n - j, steps, (const uint16_t *)a_panels + i * depth, (const uint16_t *)b_panels + j * depth,
                 (float *)c + i * ldc + j, ldc, bias == NULL ? NULL : (const float *)bias + j, add);
        }
    }
}

static void pack_a(int64_t m, int64_t k, const hc_matrix *a, float scale, void *out_panels, float *row_sum) {
    pack(&(hc_packing){m, k, a->data, a->row_stride, a->column_stride, a->dtype, scale, row_sum, panel_rows(), out_panels});
}

static void pack_b(int64_t k, int64_t n, const hc_matrix *b, void *out_panels) {
    pack(&(hc_packing){n, k, b->data, b->column_stride, b->row_stride, b->dtype, 1.0f, NULL, panel_columns(), out_panels});
}

const hc_gemm_kernel hc_gemm_bf16_svebf16 = {
    .name = "gemm_bf16_svebf16",
    .isa = HC_ISA_SVEBF16,
    .dtype = HC_BF16,
    .mr = panel_rows,
    .nr = panel_columns,
    .kr = HC_DEPTHS,
    .element_bytes = sizeof(uint16_t),
    .pack_a = pack_a,
    .pack_b = pack_b,
    .block = block,
    .b_group = HC_DEPTHS,
};
