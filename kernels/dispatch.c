/* Finds the instruction set, and the first line of the kernel table that it can run. */
#include <stddef.h>
#include <string.h>

#include "hcops.h"
#include "reduce/sumsq_f32.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

typedef struct {
    const char *op;   /* "<op>_<dtype>", what a caller asks for */
    const char *name; /* "<op>_<dtype>_<isa>" */
    int isa;
    void (*function)(void); /* cast back to the operator's own signature before the call */
} hc_line;

static const hc_line TABLE[] = {
#define HC_KERNEL(op, dtype, isa, ISA) \
    {#op "_" #dtype, #op "_" #dtype "_" #isa, ISA, (void (*)(void))hc_##op##_##dtype##_##isa},
#include "kernel_table.h"
#undef HC_KERNEL
};

static const struct {
    int isa;
    const char *name;
} ISA_NAMES[] = {
    {HC_ISA_REF, "ref"}, {HC_ISA_AVX2, "avx2"}, {HC_ISA_AVX512, "avx512"}, {HC_ISA_AVX512BF16, "avx512bf16"},
    {HC_ISA_AMX, "amx"}, {HC_ISA_NEON, "neon"}, {HC_ISA_SVE, "sve"},       {HC_ISA_SME, "sme"},
};

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

int hc_version(void) {
    return HC_ABI_VERSION;
}

const char *hc_isa_name(int isa) {
    for (int i = 0; i < COUNT(ISA_NAMES); i++) {
        if (ISA_NAMES[i].isa == isa) {
            return ISA_NAMES[i].name;
        }
    }
    return NULL;
}

#if defined(__x86_64__)
/* AMX: the CPU has tiles and bf16 products (leaf 7, EDX 24 and 22), and the kernel saves tile state (XCR0 17 and 18). */
static int has_amx(void) {
    unsigned eax, ebx, ecx, edx, low, high;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(edx >> 24 & edx >> 22 & 1u)) {
        return 0;
    }
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low >> 17 & low >> 18 & 1u) != 0;
}

static int best_isa(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        return HC_ISA_REF;
    }
    /* The subset every AVX-512 server CPU has: foundation, byte and word, double and quad word, short vectors. */
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
        return HC_ISA_AVX2;
    }
    if (!__builtin_cpu_supports("avx512bf16")) {
        return HC_ISA_AVX512;
    }
    return has_amx() ? HC_ISA_AMX : HC_ISA_AVX512BF16;
}
#elif defined(__aarch64__) && defined(__linux__)
/* Bits of the kernel's interface (asm/hwcap.h), written out because older C libraries lack the newer names. */
#define CPU_HAS_SVE (1ul << 22)
#define CPU_HAS_SME (1ul << 23)

static int best_isa(void) {
    if (!(getauxval(AT_HWCAP) & CPU_HAS_SVE)) {
        return HC_ISA_NEON; /* also for SME without SVE: there SVE kernels run only in streaming mode */
    }
    return getauxval(AT_HWCAP2) & CPU_HAS_SME ? HC_ISA_SME : HC_ISA_SVE;
}
#else
static int best_isa(void) {
    return HC_ISA_REF;
}
#endif

/* A machine at level `isa` runs its own family up to that level, and the reference. */
static int can_run(int isa, int kernel_isa) {
    return kernel_isa == HC_ISA_REF || (kernel_isa / 10 == isa / 10 && kernel_isa <= isa);
}

int hc_isa_detect(const char *wanted, int *out_isa) {
    if (out_isa == NULL) {
        return HC_BAD_ARGUMENT;
    }
    const int best = best_isa();
    if (wanted == NULL || wanted[0] == '\0') {
        *out_isa = best;
        return HC_OK;
    }
    for (int i = 0; i < COUNT(ISA_NAMES); i++) {
        if (strcmp(ISA_NAMES[i].name, wanted) == 0) {
            if (!can_run(best, ISA_NAMES[i].isa)) {
                return HC_UNSUPPORTED_ISA;
            }
            *out_isa = ISA_NAMES[i].isa;
            return HC_OK;
        }
    }
    return HC_UNKNOWN_ISA;
}

int hc_kernel(int index, const char **out_name, int *out_isa) {
    if (index < 0 || out_name == NULL || out_isa == NULL) {
        return HC_BAD_ARGUMENT;
    }
    if (index >= COUNT(TABLE)) {
        return HC_NO_KERNEL;
    }
    *out_name = TABLE[index].name;
    *out_isa = TABLE[index].isa;
    return HC_OK;
}

/* First line of an operator that a machine at level `isa` can run; the reference makes sure that there is one. */
static const hc_line *choose(const char *op, int isa) {
    for (int i = 0; i < COUNT(TABLE); i++) {
        if (strcmp(TABLE[i].op, op) == 0 && can_run(isa, TABLE[i].isa)) {
            return &TABLE[i];
        }
    }
    return NULL;
}

int hc_sumsq_f32(int isa, const float *x, int64_t count, double *out_sum) {
    if (out_sum == NULL || count < 0 || (x == NULL && count > 0)) {
        return HC_BAD_ARGUMENT;
    }
    if (hc_isa_name(isa) == NULL) {
        return HC_UNKNOWN_ISA;
    }
    const hc_line *line = choose("sumsq_f32", isa);
    *out_sum = ((hc_sumsq_f32_kernel *)line->function)(x, count);
    return HC_OK;
}
