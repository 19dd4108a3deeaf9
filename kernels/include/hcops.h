/* The door of the kernels: every function that Python may call.
 *
 * Rules: a kernel allocates nothing, spawns nothing, prints nothing, reads no environment. Functions that can fail return
 * an hc_status; results go through pointers. Sizes count elements, strides count elements, pointers need the alignment
 * of their type only. Arrays are never written unless the name of the argument says `out`.
 */
#ifndef HCOPS_H
#define HCOPS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever a function below changes; the caller compares it with the one it was written for. */
#define HC_ABI_VERSION 1

typedef enum {
    HC_OK = 0,
    HC_BAD_ARGUMENT = -1,    /* null pointer or negative size */
    HC_UNKNOWN_ISA = -2,     /* no instruction set of that name or number */
    HC_UNSUPPORTED_ISA = -3, /* a known one that this CPU lacks */
    HC_NO_KERNEL = -4        /* index past the end of the table */
} hc_status;

/* Instruction sets. Tens are the family; within a family a higher one can run the kernels of the lower ones. */
typedef enum {
    HC_ISA_REF = 0,
    HC_ISA_AVX2 = 10,
    HC_ISA_AVX512 = 11,
    HC_ISA_AVX512BF16 = 12,
    HC_ISA_AMX = 13,
    HC_ISA_NEON = 20,
    HC_ISA_SVE = 21,
    HC_ISA_SME = 22
} hc_isa;

int hc_version(void);

/* Name of an instruction set, "ref" to "sme"; NULL for a number that is none. Static storage. */
const char *hc_isa_name(int isa);

/* The best instruction set of this CPU and operating system, or the one named by `wanted` (NULL or "": the best). */
int hc_isa_detect(const char *wanted, int *out_isa);

/* Line `index` of the kernel table: "<op>_<dtype>_<isa>" and its instruction set. Static storage. */
int hc_kernel(int index, const char **out_name, int *out_isa);

/* *out_sum = sum of x[i]^2 over i < count, accumulated in float64; 0 for count 0. Best kernel that `isa` can run. */
int hc_sumsq_f32(int isa, const float *x, int64_t count, double *out_sum);

#ifdef __cplusplus
}
#endif

#endif
