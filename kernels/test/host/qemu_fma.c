/* fmaf and fma for LD_PRELOAD under qemu-aarch64 on x86 with FMA: the result of libm's functions, followed by
 * VZEROUPPER.
 *
 * qemu multiplies element by element through libm, between vector moves that leave the upper halves of registers in
 * use. On some CPUs, each transition between libm's VEX and qemu's SSE instructions then saves or merges these halves.
 * A product of two numbers takes 145 ns on a Sapphire Rapids under a hypervisor, and 10 ns with these functions. */
#include <immintrin.h>

float fmaf(float x, float y, float z) {
    const float result = _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(x), _mm_set_ss(y), _mm_set_ss(z)));
    _mm256_zeroupper();
    return result;
}

double fma(double x, double y, double z) {
    const double result = _mm_cvtsd_f64(_mm_fmadd_sd(_mm_set_sd(x), _mm_set_sd(y), _mm_set_sd(z)));
    _mm256_zeroupper();
    return result;
}
