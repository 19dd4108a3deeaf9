/* fp64 matrix products by SME outer products (FMOPA) on all eight 64-bit ZA tiles, for any streaming vector length.
 *
 * Tiles (0 1 / 2 3 / 4 5 / 6 7) are 4 x 2 vectors of C: six loads for eight outer products. */
#include "gemm/arm/entry_sme.h"

/* Steps per group. The immediate offsets of LD1D reach -8 to 7 vectors, and a step loads four vectors of A, so a group
 * has four steps. Each step has separate registers. */
#define HC_STEPS_PER_GROUP 4

#define LOAD(z, panel, offset) "ld1d {z" #z ".d}, %[all]/z, [%[" #panel "], #" #offset ", mul vl]\n"
#define FMOPA(tile, rows, columns) "fmopa za" #tile ".d, %[all]/m, %[all]/m, z" #rows ".d, z" #columns ".d\n"
/* One step, with registers a0-a3, b0 and b1, offsets i to l of A, and offsets s and t of B. */
#define STEP(a0, a1, a2, a3, b0, b1, i, j, k, l, s, t)                                                            \
    LOAD(a0, a, i) LOAD(b0, b, s) LOAD(b1, b, t) LOAD(a1, a, j) FMOPA(0, a0, b0) FMOPA(1, a0, b1) LOAD(a2, a, k)  \
    FMOPA(2, a1, b0) FMOPA(3, a1, b1) LOAD(a3, a, l) FMOPA(4, a2, b0) FMOPA(5, a2, b1) FMOPA(6, a3, b0)           \
    FMOPA(7, a3, b1)

/* Set the tiles to the product of a panel of A and a panel of B of `steps` steps. */
static void multiply(int64_t steps, const double *a, const double *b) HC_SME_PART {
    const svbool_t all = svptrue_b64();
    const int64_t middle = HC_STEPS_PER_GROUP / 2 * (int64_t)svcntd(); /* per vector of a step: four of A, two of B */
    svzero_za();
    int64_t groups = steps / HC_STEPS_PER_GROUP;
    if (groups > 0) {
        a += 4 * middle;
        b += 2 * middle;
        __asm__ volatile("1:\n" STEP(0, 1, 2, 3, 16, 17, -8, -7, -6, -5, -4, -3)
                         STEP(4, 5, 6, 7, 18, 19, -4, -3, -2, -1, -2, -1)
                         STEP(8, 9, 10, 11, 20, 21, 0, 1, 2, 3, 0, 1)
                         STEP(12, 13, 14, 15, 22, 23, 4, 5, 6, 7, 2, 3)
                         "addvl %[a], %[a], #16\n"
                         "addvl %[b], %[b], #8\n"
                         "subs %[groups], %[groups], #1\n"
                         "b.ne 1b\n"
                         : [a] "+r"(a), [b] "+r"(b), [groups] "+r"(groups)
                         : [all] "Upl"(all)
                         : "cc", "memory", HC_ALL_VECTORS);
        a -= 4 * middle;
        b -= 2 * middle;
    }
    for (int64_t step = 0; step < steps % HC_STEPS_PER_GROUP; step++) {
        __asm__ volatile(STEP(0, 1, 2, 3, 16, 17, 0, 1, 2, 3, 0, 1)::[a] "r"(a), [b] "r"(b), [all] "Upl"(all)
                         : "memory", "z0", "z1", "z2", "z3", "z16", "z17");
        a += 4 * svcntd();
        b += 2 * svcntd();
    }
}

/* Store the eight tiles to the corner of c with m remaining rows and n remaining columns. */
static void store_tiles(int64_t m, int64_t n, double *c, int64_t ldc, const double *bias, int add) HC_SME_PART {
    const int64_t vector = (int64_t)svcntd();
    for (int64_t right = 0; right < 2 * vector && right < n; right += vector, c += vector) {
        const svbool_t columns = svwhilelt_b64(right, n);
        const svfloat64_t bias_vector = svld1(bias == NULL ? svpfalse_b() : columns, bias == NULL ? c : bias + right);
        const int has_bias = bias != NULL;
        if (right == 0) {
            HC_STORE_TILE(64, 0, m, columns, c, ldc, has_bias, bias_vector, add);
            HC_STORE_TILE(64, 2, m - vector, columns, c + vector * ldc, ldc, has_bias, bias_vector, add);
            HC_STORE_TILE(64, 4, m - 2 * vector, columns, c + 2 * vector * ldc, ldc, has_bias, bias_vector, add);
            HC_STORE_TILE(64, 6, m - 3 * vector, columns, c + 3 * vector * ldc, ldc, has_bias, bias_vector, add);
        } else {
            HC_STORE_TILE(64, 1, m, columns, c, ldc, has_bias, bias_vector, add);
            HC_STORE_TILE(64, 3, m - vector, columns, c + vector * ldc, ldc, has_bias, bias_vector, add);
            HC_STORE_TILE(64, 5, m - 2 * vector, columns, c + 2 * vector * ldc, ldc, has_bias, bias_vector, add);
            HC_STORE_TILE(64, 7, m - 3 * vector, columns, c + 3 * vector * ldc, ldc, has_bias, bias_vector, add);
        }
    }
}

/* Multiply panels. The inner loop runs over the panels of A, so that a panel of B stays in the L1 cache. */
HC_SME_ENTRY static void block(int64_t m, int64_t n, int64_t k, const double *a, const double *b, double *c, int64_t ldc,
                               const double *bias, int add) {
    const int64_t height = 4 * (int64_t)svcntd(), width = 2 * (int64_t)svcntd();
    for (int64_t j = 0; j < n; j += width) {
        for (int64_t i = 0; i < m; i += height) {
            multiply(k, a + i * k, b + j * k);
            store_tiles(m - i, n - j, c + i * ldc + j, ldc, bias == NULL ? NULL : bias + j, add);
        }
    }
}

#define HC_ELEMENT double
#define HC_VECTOR svfloat64_t
#define HC_LANES svcntd
#define HC_STREAMING_LANES svcntsd
#define HC_SOME_LANES svwhilelt_b64_s64
#define HC_ALL_LANES svptrue_b64
#define HC_SET svdup_f64
#define HC_READ(lanes, data, index, dtype) svld1_f64(lanes, (const double *)(data) + (index))
#define HC_READ_ONE(data, index, dtype) (((const double *)(data))[index])
#define HC_WRITE_ROW svwrite_hor_za64_f64_m
#define HC_READ_COLUMN svread_ver_za64_f64_m
#include "gemm/arm/pack_sme.h"

static int64_t four_vectors(void) {
    return 4 * (int64_t)svcntsd();
}

static int64_t two_vectors(void) {
    return 2 * (int64_t)svcntsd();
}

/* Pack A. For fp64 products, row_sum points to fp64 sums. */
static void pack_a(int64_t m, int64_t k, const hc_matrix *a, float scale, void *out_panels, float *row_sum) {
    pack(&(hc_packing){m, k, a->data, a->row_stride, a->column_stride, HC_F64, scale, (double *)(void *)row_sum, 4, out_panels});
}

static void pack_b(int64_t k, int64_t n, const hc_matrix *b, void *out_panels) {
    pack(&(hc_packing){n, k, b->data, b->column_stride, b->row_stride, HC_F64, 1.0, NULL, 2, out_panels});
}

static void block_f64(int64_t m, int64_t n, int64_t k, const void *a_panels, const void *b_panels, void *c, int64_t ldc,
                      const void *bias, int add) {
    block(m, n, k, a_panels, b_panels, c, ldc, bias, add);
}

/* Largest depth of a block. SME units that cores share load from the L2 cache, so panels need not fit the L1 cache.
 * With vectors of 512 bits, a panel of A of this depth is 64 KB. */
#define MAX_DEPTH 256

const hc_gemm_kernel hc_gemm_f64_sme = {
    .name = "gemm_f64_sme",
    .isa = HC_ISA_SME,
    .dtype = HC_F64,
    .mr = four_vectors,
    .nr = two_vectors,
    .kr = 1,
    .element_bytes = sizeof(double),
    .pack_a = pack_a,
    .pack_b = pack_b,
    .block = block_f64,
    .b_group = 1,
    .most_depth = MAX_DEPTH,
    .split_depth = MAX_DEPTH,
};
