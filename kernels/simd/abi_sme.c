/* Routine of the SME calling convention that compiler-rt provides and GNU toolchains lack. It is weak, so that
 * compiler-rt's version takes precedence.
 *
 * A function with a private ZA may be called while its caller's ZA is dormant. TPIDR2_EL0 then points to a block
 * {buffer, 16-bit number of slices, 6 bytes of zeros}. The callee saves that many ZA vectors before it uses ZA
 * (AAPCS64, "ZA lazy saving scheme"). The routine may change only x14 to x17. */
#ifndef __ARM_FEATURE_SME
#error "simd/abi_sme.c is built with -march=armv9-a+sme+sme-f64f64 (kernels/CMakeLists.txt)"
#endif

__asm__(".text\n"
        ".weak __arm_tpidr2_save\n"
        ".hidden __arm_tpidr2_save\n"
        ".type __arm_tpidr2_save, %function\n"
        ".p2align 2\n"
        "__arm_tpidr2_save:\n"
        "    mrs x16, TPIDR2_EL0\n"
        "    cbz x16, 2f\n"
        "    ldrh w17, [x16, #8]\n" /* slices; 0: no slices to save */
        "    ldr x16, [x16]\n"
        "    mov w15, wzr\n"
        "1:  cmp w15, w17\n"
        "    b.hs 2f\n"
        "    str za[w15, 0], [x16]\n"
        "    addsvl x16, x16, #1\n"
        "    add w15, w15, #1\n"
        "    b 1b\n"
        "2:  ret\n"
        ".size __arm_tpidr2_save, . - __arm_tpidr2_save\n");

typedef int hc_not_an_empty_file;
