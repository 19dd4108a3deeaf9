/* Table of all kernels, one line per kernel. It is the only list that dispatch, tests and benchmarks read. It has no
 * include guard: define the macros, include this file, and undefine them.
 *
 * HC_VECTOR_KERNEL(op): functions hc_<op>_<isa> of type hc_<op>_kernel, from one source <folder>/<name>_simd.c that is
 * compiled once for each of ref, avx2, avx512, neon, sve, sme. */
#ifdef HC_VECTOR_KERNEL
HC_VECTOR_KERNEL(multiply_add)
HC_VECTOR_KERNEL(copy)
HC_VECTOR_KERNEL(epilogue)
HC_VECTOR_KERNEL(few_rows_dots)
HC_VECTOR_KERNEL(few_rows_sums)
HC_VECTOR_KERNEL(few_depths)
HC_VECTOR_KERNEL(attention_lanes)
HC_VECTOR_KERNEL(attention_softmax)
HC_VECTOR_KERNEL(attention_finish)
HC_VECTOR_KERNEL(attention_rescale)
HC_VECTOR_KERNEL(attention_delta)
HC_VECTOR_KERNEL(attention_gradient)
HC_VECTOR_KERNEL(attention_store)
HC_VECTOR_KERNEL(rotate_heads_forward)
HC_VECTOR_KERNEL(rotate_heads_backward)
HC_VECTOR_KERNEL(map)
HC_VECTOR_KERNEL(map_backward)
HC_VECTOR_KERNEL(scale_add)
HC_VECTOR_KERNEL(scaled_difference)
HC_VECTOR_KERNEL(swiglu_forward)
HC_VECTOR_KERNEL(swiglu_backward)
HC_VECTOR_KERNEL(softmax_forward)
HC_VECTOR_KERNEL(softmax_backward)
HC_VECTOR_KERNEL(adaln_forward)
HC_VECTOR_KERNEL(adaln_backward)
HC_VECTOR_KERNEL(gate_residual_forward)
HC_VECTOR_KERNEL(gate_residual_backward)
HC_VECTOR_KERNEL(add_blocks)
HC_VECTOR_KERNEL(sum_of_squares)
HC_VECTOR_KERNEL(squared_difference)
HC_VECTOR_KERNEL(adamw)
HC_VECTOR_KERNEL(combine)
HC_VECTOR_KERNEL(convert)
#endif

/* HC_GEMM_KERNEL(dtype, isa, ISA): descriptor hc_gemm_<dtype>_<isa> (gemm/gemm_kernel.h) in
 * gemm/{x86,arm,ref}/gemm_<dtype>_<isa>.c. The lines are ordered best first within a dtype. A machine uses the first kernel that it can run. */
#ifdef HC_GEMM_KERNEL
#ifdef HC_HAVE_AVX512
HC_GEMM_KERNEL(f32, avx512, HC_ISA_AVX512)
#endif
#ifdef HC_HAVE_AVX2
HC_GEMM_KERNEL(f32, avx2, HC_ISA_AVX2)
#endif
#ifdef HC_HAVE_SME
HC_GEMM_KERNEL(f32, sme, HC_ISA_SME)
#endif
#ifdef HC_HAVE_SVE
HC_GEMM_KERNEL(f32, sve, HC_ISA_SVE)
#endif
#ifdef HC_HAVE_NEON
HC_GEMM_KERNEL(f32, neon, HC_ISA_NEON)
#endif
HC_GEMM_KERNEL(f32, ref, HC_ISA_REF)
#ifdef HC_HAVE_AMX
HC_GEMM_KERNEL(bf16, amx, HC_ISA_AMX)
#endif
#ifdef HC_HAVE_AVX512BF16
HC_GEMM_KERNEL(bf16, avx512bf16, HC_ISA_AVX512BF16)
#endif
#ifdef HC_HAVE_AVX512
HC_GEMM_KERNEL(bf16, avx512, HC_ISA_AVX512)
#endif
#ifdef HC_HAVE_AVX2
HC_GEMM_KERNEL(bf16, avx2, HC_ISA_AVX2)
#endif
#ifdef HC_HAVE_SME
HC_GEMM_KERNEL(bf16, sme, HC_ISA_SME)
#endif
#ifdef HC_HAVE_SVEBF16
HC_GEMM_KERNEL(bf16, svebf16, HC_ISA_SVEBF16)
#endif
#ifdef HC_HAVE_SVE
HC_GEMM_KERNEL(bf16, sve, HC_ISA_SVE)
#endif
#ifdef HC_HAVE_NEON
HC_GEMM_KERNEL(bf16, neon, HC_ISA_NEON)
#endif
HC_GEMM_KERNEL(bf16, ref, HC_ISA_REF)
#ifdef HC_HAVE_SME
HC_GEMM_KERNEL(f64, sme, HC_ISA_SME)
#endif
HC_GEMM_KERNEL(f64, ref, HC_ISA_REF)
#endif

/* HC_SPLIT_KERNEL(dtype, isa): the same descriptor, for large fp32 products of a limited range (gemm/gemm_range.c) as
 * sums of products of bf16 parts. Best first; a machine without a line uses the kernels above. */
#ifdef HC_SPLIT_KERNEL
#ifdef HC_HAVE_AMX
HC_SPLIT_KERNEL(f32, amx)
#endif
#endif

/* HC_CEILING_KERNEL(dtype, isa, ISA): hc_ceiling_<dtype>_<isa> (ceiling/ceiling.h), multiply-adds on a unit that is
 * wider than the vector units for products of this type. Best first within a dtype. */
#ifdef HC_CEILING_KERNEL
#ifdef HC_HAVE_AMX
HC_CEILING_KERNEL(bf16, amx, HC_ISA_AMX)
#endif
#ifdef HC_HAVE_AVX512BF16
HC_CEILING_KERNEL(bf16, avx512bf16, HC_ISA_AVX512BF16)
#endif
#ifdef HC_HAVE_SME
HC_CEILING_KERNEL(f32, sme, HC_ISA_SME)
HC_CEILING_KERNEL(bf16, sme, HC_ISA_SME)
#endif
#ifdef HC_HAVE_SVEBF16
HC_CEILING_KERNEL(bf16, svebf16, HC_ISA_SVEBF16)
#endif
#endif
