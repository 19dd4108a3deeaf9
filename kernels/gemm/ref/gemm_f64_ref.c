/* fp64 products in plain C, for tests of gradients. */
typedef double pack_element;
#define REF_ROUND(v) (v)
#define REF_NAME gemm_f64_ref
#define REF_DTYPE HC_F64
#include "gemm/ref/gemm_ref.h"
