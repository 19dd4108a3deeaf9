/* Repeat a declaration for every instruction set of the vector layer (kernels/simd/). */
#ifndef HC_EACH_ISA_H
#define HC_EACH_ISA_H

#define HC_EACH_ISA(declare) declare(ref) declare(avx2) declare(avx512) declare(neon) declare(sve) declare(sme)

#endif
