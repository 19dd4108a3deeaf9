/* Detect the instruction set of this machine, and select the kernels of the table that it can run. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "hcops.h"
#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

static const struct {
    int isa;
    const char *name;
} ISA_NAMES[] = {
    {HC_ISA_REF, "ref"},
    {HC_ISA_AVX2, "avx2"},
    {HC_ISA_AVX512, "avx512"},
    {HC_ISA_AVX512BF16, "avx512bf16"},
    {HC_ISA_AMX, "amx"},
    {HC_ISA_AMX_FP32, "amxfp32"},
    {HC_ISA_NEON, "neon"},
    {HC_ISA_SVE, "sve"},
    {HC_ISA_SVEBF16, "svebf16"},
    {HC_ISA_SME, "sme"},
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

#ifdef HC_EMULATED_TILES
static int has_amx(void) {
    return 1; /* tests with emulated tiles: simd/tiles_amx.h */
}
#elif defined(__x86_64__)
/* Return 1 if the CPU has tiles and bf16 products (leaf 7, EDX 24 and 22), and the operating system saves the tile
 * state (XCR0 17 and 18). */
static int has_amx(void) {
    unsigned eax, ebx, ecx, edx, low, high;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(edx >> 24 & edx >> 22 & 1u)) {
        return 0;
    }
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if (!(low >> 17 & low >> 18 & 1u)) {
        return 0;
    }
#ifdef __linux__
    /* Linux grants tile registers only on request (arch_prctl ARCH_REQ_XCOMP_PERM, feature 18: tile data). Threads that
     * start later inherit the permission. */
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
#else
    return 1;
#endif
}
#endif

#if defined(__x86_64__)
static int best_isa(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        return HC_ISA_REF;
    }
    /* The subset of every AVX-512 server CPU: foundation, byte and word, double and quad word, vector length. */
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
        return HC_ISA_AVX2;
    }
    if (!__builtin_cpu_supports("avx512bf16")) {
        return HC_ISA_AVX512;
    }
    return has_amx() ? HC_ISA_AMX_FP32 : HC_ISA_AVX512BF16;
}

/* Return the fastest level. Intel's vector units multiply pairs of bf16 at half the fp32 rate (Emerald Rapids: 90
 * GFLOP/s per core against 185). Without AMX, as in many virtual machines, kernels that widen bf16 are therefore
 * faster. AMD's vector units multiply pairs at twice the fp32 rate. */
static int fastest_isa(void) {
    const int best = best_isa();
    return best == HC_ISA_AVX512BF16 && __builtin_cpu_is("intel") ? HC_ISA_AVX512 : best;
}
#elif defined(__aarch64__) && defined(__linux__)
/* HWCAP bits of the Linux kernel (asm/hwcap.h), defined here because older C libraries lack the newer names. */
#define CPU_HAS_SVE (1ul << 22)
#define CPU_HAS_SVE_BF16 (1ul << 12)
#define CPU_HAS_SME (1ul << 23)
#define CPU_HAS_SME_F64F64 (1ul << 25) /* outer products of fp64, an extension of every SME processor so far */

static int best_isa(void) {
    if (!(getauxval(AT_HWCAP) & CPU_HAS_SVE)) {
        return HC_ISA_NEON; /* also for SME without SVE, which runs SVE kernels only in streaming mode */
    }
    const unsigned long found = getauxval(AT_HWCAP2), sme = CPU_HAS_SME | CPU_HAS_SME_F64F64;
    if ((found & sme) == sme) {
        return HC_ISA_SME; /* SME includes the bf16 extension */
    }
    return found & CPU_HAS_SVE_BF16 ? HC_ISA_SVEBF16 : HC_ISA_SVE;
}

static int fastest_isa(void) {
    return best_isa();
}
#else
static int best_isa(void) {
    return HC_ISA_REF;
}

static int fastest_isa(void) {
    return best_isa();
}
#endif

/* Return 1 if a machine of level `isa` can run a kernel: the reference, and kernels of its family up to that level. */
static int can_run(int isa, int kernel_isa) {
    return kernel_isa == HC_ISA_REF || (kernel_isa / 10 == isa / 10 && kernel_isa <= isa);
}

int hc_isa_detect(const char *wanted, int *out_isa) {
    if (out_isa == NULL) {
        return HC_BAD_ARGUMENT;
    }
    const int best = best_isa();
    if (wanted == NULL || wanted[0] == '\0') {
        *out_isa = fastest_isa();
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

/* Vector kernels of each instruction set, defined by kernels_simd.c. */
extern const hc_kernels hc_vector_kernels_ref, hc_vector_kernels_avx2, hc_vector_kernels_avx512, hc_vector_kernels_neon,
    hc_vector_kernels_sve, hc_vector_kernels_sme;

/* Vector kernels in this build, best first within a family. */
static const struct {
    int isa;
    const hc_kernels *kernels;
} VECTOR[] = {
#ifdef HC_HAVE_AVX512
    {HC_ISA_AVX512, &hc_vector_kernels_avx512},
#endif
#ifdef HC_HAVE_AVX2
    {HC_ISA_AVX2, &hc_vector_kernels_avx2},
#endif
#ifdef HC_HAVE_SME
    {HC_ISA_SME, &hc_vector_kernels_sme},
#endif
#ifdef HC_HAVE_SVE
    {HC_ISA_SVE, &hc_vector_kernels_sve},
#endif
#ifdef HC_HAVE_NEON
    {HC_ISA_NEON, &hc_vector_kernels_neon},
#endif
    {HC_ISA_REF, &hc_vector_kernels_ref},
};

static const hc_gemm_kernel *const GEMM[] = {
#define HC_GEMM_KERNEL(dtype, isa, ISA) &hc_gemm_##dtype##_##isa,
#include "kernel_table.h"
#undef HC_GEMM_KERNEL
};

static const hc_gemm_kernel *const SPLIT[] = {
#define HC_SPLIT_KERNEL(dtype, isa) &hc_gemm_##dtype##_##isa,
#include "kernel_table.h"
#undef HC_SPLIT_KERNEL
    NULL,
};

static const char *const VECTOR_NAMES[] = {
#define HC_VECTOR_KERNEL(op) #op,
#include "kernel_table.h"
#undef HC_VECTOR_KERNEL
};

/* Return the best vector kernels for a machine of level `isa`, with the instruction set they are compiled for. */
static hc_kernels vector_kernels(int isa) {
    int i = 0;
    while (!can_run(isa, VECTOR[i].isa)) {
        i++; /* the reference, the last entry, runs on every machine */
    }
    hc_kernels kernels = *VECTOR[i].kernels;
    kernels.isa = VECTOR[i].isa;
    return kernels;
}

/* Return the first table entry of a type that a machine of level `isa` can run. The reference guarantees a result. */
static const hc_gemm_kernel *gemm_kernel(int isa, int dtype) {
    for (int i = 0; i < COUNT(GEMM); i++) {
        if (GEMM[i]->dtype == dtype && can_run(isa, GEMM[i]->isa)) {
            return GEMM[i];
        }
    }
    return NULL;
}

/* Return the kernel for split fp32 products, or NULL if the machine has no unit that makes them faster. */
static const hc_gemm_kernel *split_kernel(int isa) {
    int i = 0;
    while (SPLIT[i] && !can_run(isa, SPLIT[i]->isa)) {
        i++;
    }
    return SPLIT[i];
}

static hc_kernels chosen[COUNT(ISA_NAMES)];

static void choose_for_every_isa(void) {
    for (int i = 0; i < COUNT(ISA_NAMES); i++) {
        const int isa = ISA_NAMES[i].isa;
        chosen[i] = vector_kernels(isa);
        chosen[i].gemm_f32 = gemm_kernel(isa, HC_F32);
        chosen[i].gemm_bf16 = gemm_kernel(isa, HC_BF16);
        chosen[i].gemm_f64 = gemm_kernel(isa, HC_F64);
        chosen[i].gemm_f32_split = split_kernel(isa);
    }
}

const hc_kernels *hc_kernels_of(int isa) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose_for_every_isa);
    for (int i = 0; i < COUNT(ISA_NAMES); i++) {
        if (ISA_NAMES[i].isa == isa) {
            return &chosen[i];
        }
    }
    return NULL;
}

int hc_kernel(int isa, int index, const char **out_op, int *out_kernel_isa) {
    static const char *const gemm_names[] = {"gemm_f32", "gemm_bf16", "gemm_f64"};
    if (index < 0 || out_op == NULL || out_kernel_isa == NULL) {
        return HC_BAD_ARGUMENT;
    }
    if (hc_isa_name(isa) == NULL) {
        return HC_UNKNOWN_ISA;
    }
    const int listed = COUNT(gemm_names) + COUNT(VECTOR_NAMES);
    const hc_gemm_kernel *split = split_kernel(isa);
    if (index == listed && split) {
        *out_op = "gemm_f32_split";
        *out_kernel_isa = split->isa;
        return HC_OK;
    }
    if (index >= listed) {
        return HC_NO_KERNEL;
    }
    const int is_gemm = index < COUNT(gemm_names);
    *out_op = is_gemm ? gemm_names[index] : VECTOR_NAMES[index - COUNT(gemm_names)];
    *out_kernel_isa = is_gemm ? gemm_kernel(isa, index)->isa : vector_kernels(isa).isa;
    return HC_OK;
}
