/* A kernel of fp32 panels, as gemm_kernel.h asks for it; included behind the panels, by the fp32 and the bf16 kernel of each
 * instruction set, which say
 *   HC_KERNEL         its name, without the prefix hc_
 *   HC_KERNEL_ISA     its instruction set
 *   HC_KERNEL_DTYPE   the type of a product; operands of HC_BF16 are rounded to it while they are packed */
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
