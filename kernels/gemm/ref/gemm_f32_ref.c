/* fp32 products in plain C. */
typedef float pack_element;
#define REF_ROUND(v) (v)
#define REF_NAME gemm_f32_ref
#define REF_DTYPE HC_F32
#include "gemm/ref/gemm_ref.h"
