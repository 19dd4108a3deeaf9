/* Call an operator and check the state that the calling convention preserves: callee-saved registers, rounding control,
 * and the matrix unit. On SME the call is repeated with a dormant ZA, as a caller that uses SME would make it. */
#include <stdlib.h>
#include <string.h>

#include "test/cases.h"

typedef struct {
    hc_context *context;
    const hc_case *one;
} call_arguments;

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

#define CPU_HAS_SME (1ul << 23) /* AT_HWCAP2 */
#define NUM_WATCHED 18          /* x19 to x28, d8 to d15 */
#define PATTERN 0x5a00

static int call(call_arguments *arguments) {
    return hc_call(arguments->context, arguments->one);
}

/* Fill the callee-saved registers with PATTERN + i, call function(argument), and store their contents after the
 * call. */
int hc_call_with_pattern(int (*function)(call_arguments *), call_arguments *argument, uint64_t *out_after);

__asm__(".text\n"
        ".globl hc_call_with_pattern\n"
        ".type hc_call_with_pattern, %function\n"
        ".p2align 2\n"
        "hc_call_with_pattern:\n"
        "    stp x29, x30, [sp, #-176]!\n"
        "    mov x29, sp\n"
        "    stp x19, x20, [sp, #16]\n"
        "    stp x21, x22, [sp, #32]\n"
        "    stp x23, x24, [sp, #48]\n"
        "    stp x25, x26, [sp, #64]\n"
        "    stp x27, x28, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    str x2, [sp, #160]\n"
        ".irp i, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28\n"
        "    mov x\\i, #(0x5a00 + \\i - 19)\n"
        ".endr\n"
        ".irp i, 8, 9, 10, 11, 12, 13, 14, 15\n"
        "    mov x9, #(0x5a00 + \\i + 2)\n"
        "    fmov d\\i, x9\n"
        ".endr\n"
        "    mov x9, x0\n"
        "    mov x0, x1\n"
        "    blr x9\n"
        "    ldr x2, [x29, #160]\n"
        "    stp x19, x20, [x2]\n"
        "    stp x21, x22, [x2, #16]\n"
        "    stp x23, x24, [x2, #32]\n"
        "    stp x25, x26, [x2, #48]\n"
        "    stp x27, x28, [x2, #64]\n"
        "    stp d8, d9, [x2, #80]\n"
        "    stp d10, d11, [x2, #96]\n"
        "    stp d12, d13, [x2, #112]\n"
        "    stp d14, d15, [x2, #128]\n"
        "    ldp x19, x20, [x29, #16]\n"
        "    ldp x21, x22, [x29, #32]\n"
        "    ldp x23, x24, [x29, #48]\n"
        "    ldp x25, x26, [x29, #64]\n"
        "    ldp x27, x28, [x29, #80]\n"
        "    ldp d8, d9, [x29, #96]\n"
        "    ldp d10, d11, [x29, #112]\n"
        "    ldp d12, d13, [x29, #128]\n"
        "    ldp d14, d15, [x29, #144]\n"
        "    ldp x29, x30, [sp], #176\n"
        "    ret\n"
        ".size hc_call_with_pattern, . - hc_call_with_pattern\n");

static uint64_t control(void) {
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    return fpcr;
}

/* Return SVCR: bit 0 streaming mode, bit 1 ZA. It is read by number, for assemblers without SME. */
static uint64_t unit(void) {
    uint64_t svcr = 0;
    if (getauxval(AT_HWCAP2) & CPU_HAS_SME) {
        __asm__ volatile("mrs %0, S3_3_C4_C2_2" : "=r"(svcr));
    }
    return svcr;
}

/* Call with a filled and dormant ZA (TPIDR2_EL0). Afterwards, either ZA still contains the bytes and is still dormant,
 * or the bytes were saved. Return 1 otherwise. */
static int loses_dormant_za(call_arguments *arguments) {
    if (!(getauxval(AT_HWCAP2) & CPU_HAS_SME)) {
        return 0;
    }
    uint64_t vector_bytes, left_to_save, still_on;
    __asm__ volatile(".arch_extension sme\n rdsvl %0, #1" : "=r"(vector_bytes));
    const size_t bytes = vector_bytes * vector_bytes;
    unsigned char *expected = malloc(bytes), *saved = calloc(bytes, 1);
    struct {
        void *buffer;
        uint16_t slices, reserved[3];
    } block = {saved, (uint16_t)vector_bytes, {0}};
    int lost = expected == NULL || saved == NULL;
    if (!lost) {
        for (size_t i = 0; i < bytes; i++) {
            expected[i] = (unsigned char)(i * 7 + i / vector_bytes);
        }
        __asm__ volatile(".arch_extension sme\n smstart za" ::: "memory");
        for (uint64_t row = 0; row < vector_bytes; row++) {
            __asm__ volatile(".arch_extension sme\n mov w12, %w0\n ldr za[w12, 0], [%1]" ::"r"(row),
                             "r"(expected + row * vector_bytes) : "w12", "memory");
        }
        __asm__ volatile("msr S3_3_C13_C0_5, %0" ::"r"(&block) : "memory"); /* TPIDR2_EL0 */
        call(arguments);
        __asm__ volatile("mrs %0, S3_3_C13_C0_5" : "=r"(left_to_save));
        still_on = unit() & 2;
        for (uint64_t row = 0; left_to_save != 0 && still_on && row < vector_bytes; row++) {
            __asm__ volatile(".arch_extension sme\n mov w12, %w0\n str za[w12, 0], [%1]" ::"r"(row), "r"(saved + row * vector_bytes)
                             : "w12", "memory");
        }
        __asm__ volatile("msr S3_3_C13_C0_5, xzr\n .arch_extension sme\n smstop za" ::: "memory");
        lost = memcmp(expected, saved, bytes) != 0;
    }
    free(expected);
    free(saved);
    return lost;
}

int hc_watched_call(hc_context *context, const hc_case *one, int64_t *out_broken) {
    call_arguments arguments = {context, one};
    uint64_t after[NUM_WATCHED];
    const uint64_t control_before = control();
    const int status = hc_call_with_pattern(call, &arguments, after);
    *out_broken = 0;
    for (uint64_t i = 0; i < NUM_WATCHED; i++) {
        if (after[i] != PATTERN + i) {
            *out_broken |= HC_BROKEN_REGISTERS;
        }
    }
    *out_broken |= control() != control_before ? HC_BROKEN_CONTROL : 0;
    *out_broken |= unit() != 0 ? HC_BROKEN_UNIT : 0;
    /* For operators that do not add to their outputs, a second call changes nothing. The settings of other operators
     * declare the addition. */
    if (strcmp(one->op, "gemm") == 0 && one->ints[9] == 0) {
        *out_broken |= loses_dormant_za(&arguments) ? HC_BROKEN_LAZY_SAVE : 0;
    }
    return status;
}

#elif defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>

#ifdef HC_EMULATED_TILES
#include "test/host/emulated_tiles.h"

/* In-use state of all threads. The CPU reports only the calling thread. */
static int tiles_in_use(void) {
    return hc_tiles_in_use() != 0;
}
#else
/* Return 1 if tile registers are not in their initial state. XGETBV with ECX = 1 returns the state components in use;
 * 17 and 18 belong to AMX. */
static int tiles_in_use(void) {
    unsigned eax, ebx, ecx, edx, low, high;
    if (!__get_cpuid_count(0xd, 1, &eax, &ebx, &ecx, &edx) || !(eax >> 2 & 1u)) {
        return 0;
    }
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));
    return (low >> 17 & 3u) != 0;
}
#endif

int hc_watched_call(hc_context *context, const hc_case *one, int64_t *out_broken) {
    const call_arguments arguments = {context, one};
    const unsigned flags = 0x3f; /* exception flags, which an operator may set */
    const unsigned before = _mm_getcsr();
    const int status = hc_call(arguments.context, arguments.one);
    *out_broken = ((_mm_getcsr() ^ before) & ~flags) != 0 ? HC_BROKEN_CONTROL : 0;
    *out_broken |= tiles_in_use() ? HC_BROKEN_UNIT : 0;
    return status;
}

#else
int hc_watched_call(hc_context *context, const hc_case *one, int64_t *out_broken) {
    *out_broken = 0;
    return hc_call(context, one);
}
#endif
