/* fp32 matrix products in NEON. */
#include "gemm/arm/panels_neon.h"

static void pack_a(int64_t m, int64_t k, const hc_matrix *a, float scale, void *out_panels, float *row_sum) {
    pack(m, k, a->data, a->row_stride, a->column_stride, a->dtype, scale, 0, panel_rows(), out_panels, row_sum);
}

static void pack_b(int64_t k, int64_t n, const hc_matrix *b, void *out_panels) {
    pack(n, k, b->data, b->column_stride, b->row_stride, b->dtype, 1.0f, 0, panel_columns(), out_panels, NULL);
}

const hc_gemm_kernel hc_gemm_f32_neon = {
    .name = "gemm_f32_neon",
    .isa = HC_ISA_NEON,
    .dtype = HC_F32,
    .mr = panel_rows,
    .nr = panel_columns,
    .kr = 1,
    .element_bytes = sizeof(float),
    .pack_a = pack_a,
    .pack_b = pack_b,
    .block = block,
    .b_group = 1,
};
