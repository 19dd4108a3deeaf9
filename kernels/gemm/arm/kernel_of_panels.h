/* Template of an hc_gemm_kernel with fp32 panels. The fp32 and the bf16 kernel of an instruction set include it after
 * their panel header, and define:
 *  HC_KERNEL         name without the prefix hc_
 *  HC_KERNEL_ISA     instruction set
 *  HC_KERNEL_DTYPE   compute type; for HC_BF16, packing rounds the operands */
#define HC_TEXT(name) #name
#define HC_TEXT_OF(name) HC_TEXT(name)
#define HC_JOINED(a, b) a##b
#define HC_NAMED(name) HC_JOINED(hc_, name)

static void pack_a(int64_t m, int64_t k, const hc_matrix *a, float scale, void *out_panels, float *row_sum) {
    pack_rows(m, k, a, scale, HC_KERNEL_DTYPE == HC_BF16, out_panels, row_sum);
}

static void pack_b(int64_t k, int64_t n, const hc_matrix *b, void *out_panels) {
    pack(n, k, b->data, b->column_stride, b->row_stride, b->dtype, 1.0f, HC_KERNEL_DTYPE == HC_BF16, panel_columns(), out_panels,
         NULL);
}

const hc_gemm_kernel HC_NAMED(HC_KERNEL) = {
    .name = HC_TEXT_OF(HC_KERNEL),
    .isa = HC_KERNEL_ISA,
    .dtype = HC_KERNEL_DTYPE,
    .mr = panel_rows,
    .nr = panel_columns,
    .kr = 1,
    .element_bytes = sizeof(float),
    .pack_a = pack_a,
    .pack_b = pack_b,
    .block = block,
    .b_group = 1,
};
