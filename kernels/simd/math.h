/* Exponentials, tanh, GELU and SiLU with their gradients, on the vector layer. activation/activation.h lists the
 * measured errors.
 *
 * Coefficients: minimax polynomials over the documented intervals, by iteratively reweighted least squares (Lawson
 * 1961) on 2,001 Chebyshev points in fp64. They are rounded to fp32 from the lowest degree up. The higher ones are
 * fitted again after each rounding.
 *
 * tanh-GELU uses different methods by range. Between the bounds, where it bends, it needs one exponential with a
 * polynomial of degree 6 and one division. Beyond the bounds the argument is clamped, so that the result is exactly x,
 * or 0. */
#ifndef HC_SIMD_MATH_H
#define HC_SIMD_MATH_H

#include "simd/simd.h"

/* Adding 1.5 * 2^23 leaves no fraction bits in an fp32. Subtracting it again rounds to an integer for |x| < 2^22. The
 * addition can be part of a multiply-add. */
#define HC_ROUNDER 12582912.0f
#define HC_LOG2_E 1.442695041f
/* ln 2 in two parts. n times the first part is exact enough that x - n ln 2 is rounded once. */
#define HC_LN2_HIGH 0x1.62e43p-1f
#define HC_LN2_LOW -0x1.05c61p-29f

/* Return exp(r) for |r| <= ln(2) / 2, with relative error 2^-28.2. */
HC_INLINE hc_vf hc_exp_core_(hc_vf r) HC_STREAMING_OK {
    hc_vf p = hc_set(0x1.6a48fcp-10f);
    p = hc_fma(p, r, hc_set(0x1.12399cp-7f));
    p = hc_fma(p, r, hc_set(0x1.5558b4p-5f));
    p = hc_fma(p, r, hc_set(0x1.555492p-3f));
    p = hc_fma(p, r, hc_set(0x1.fffffcp-2f));
    p = hc_fma(p, r, hc_set(1.0f));
    return hc_fma(p, r, hc_set(1.0f));
}

/* Return exp(x) for -170 <= x <= 170: inf if fp32 overflows, denormals and 0 if it underflows. */
HC_INLINE hc_vf hc_exp_bounded_(hc_vf x) HC_STREAMING_OK {
    const hc_vf n = hc_sub(hc_fma(x, hc_set(HC_LOG2_E), hc_set(HC_ROUNDER)), hc_set(HC_ROUNDER));
    const hc_vf r = hc_fnma(n, hc_set(HC_LN2_LOW), hc_fnma(n, hc_set(HC_LN2_HIGH), x));
    return hc_scale(hc_exp_core_(r), n);
}

HC_INLINE hc_vf hc_clamp_(float low, float high, hc_vf x) HC_STREAMING_OK {
    return hc_min(hc_set(high), hc_max(hc_set(low), x));
}

/* Return exp(x). Below -104 it is less than half of the smallest denormal, above 89 it exceeds fp32. */
HC_INLINE hc_vf hc_exp(hc_vf x) HC_STREAMING_OK { return hc_exp_bounded_(hc_clamp_(-104.0f, 89.0f, x)); }

/* Return 2^t within the domain of hc_scale_floor. The polynomial approximates 2^f of the fraction f in [0, 1], with
 * relative error 2^-28.8. */
HC_INLINE hc_vf hc_exp2_in_(hc_vf t) HC_STREAMING_OK {
    const hc_vf f = hc_fraction(t);
    hc_vf p = hc_set(0x1.c4456ep-13f);
    p = hc_fma(p, f, hc_set(0x1.47373ap-10f));
    p = hc_fma(p, f, hc_set(0x1.3cfd82p-7f));
    p = hc_fma(p, f, hc_set(0x1.c68af6p-5f));
    p = hc_fma(p, f, hc_set(0x1.ebfd3ap-3f));
    p = hc_fma(p, f, hc_set(0x1.62e42cp-1f));
    return hc_scale_floor(hc_fma(p, f, hc_set(1.0f)), t);
}

/* Return 2^x. */
HC_INLINE hc_vf hc_exp2(hc_vf x) HC_STREAMING_OK {
    return hc_exp2_in_(HC_SCALE_TAKES_ALL ? x : hc_clamp_(-151.0f, 129.0f, x));
}

/* Return 2^x for x <= 0, or any x if HC_SCALE_TAKES_ALL is 1, with relative error 2^-13.7, for results that are then
 * rounded to bf16 (2^-9). Results below 2^-126 may be flushed to 0. nan propagates. */
HC_INLINE hc_vf hc_exp2_coarse(hc_vf x) HC_STREAMING_OK {
    const hc_vf t = HC_SCALE_TAKES_ALL ? x : hc_max(hc_set(-126.0f), x);
    const hc_vf f = hc_fraction(t);
    hc_vf p = hc_set(0x1.3f9684p-4f);
    p = hc_fma(p, f, hc_set(0x1.cefc3ep-3f));
    p = hc_fma(p, f, hc_set(0x1.644452p-1f));
    p = hc_fma(p, f, hc_set(0x1.fff632p-1f));
    return HC_SCALE_TAKES_ALL ? hc_scale_floor(p, t) : hc_mul(p, hc_power_of_two(hc_sub(t, f)));
}

/* Return tanh(x) = m / (m + 2) with m = exp(2 |x|) - 1, computed without cancellation: exp(r) - 1 = r + r^2 q(r) for
 * |r| <= ln(2) / 2 (relative error 2^-31.1), and 2^n exp(r) - 1 = 2^n (exp(r) - 1) + (2^n - 1). For |x| > 10, tanh is 1
 * in fp32. */
HC_INLINE hc_vf hc_tanh(hc_vf x) HC_STREAMING_OK {
    const hc_vf y = hc_min(hc_set(10.0f), hc_abs(x));
    const hc_vf twice = hc_add(y, y);
    const hc_vf n = hc_sub(hc_fma(twice, hc_set(HC_LOG2_E), hc_set(HC_ROUNDER)), hc_set(HC_ROUNDER));
    const hc_vf r = hc_fnma(n, hc_set(HC_LN2_LOW), hc_fnma(n, hc_set(HC_LN2_HIGH), twice));
    hc_vf q = hc_set(0x1.9e7806p-13f);
    q = hc_fma(q, r, hc_set(0x1.6d3a5cp-10f));
    q = hc_fma(q, r, hc_set(0x1.1112d6p-7f));
    q = hc_fma(q, r, hc_set(0x1.5554f8p-5f));
    q = hc_fma(q, r, hc_set(0x1.555554p-3f));
    q = hc_fma(q, r, hc_set(0.5f));
    const hc_vf power = hc_power_of_two(n);
    const hc_vf m = hc_fma(power, hc_fma(hc_mul(r, r), q, r), hc_sub(power, hc_set(1.0f)));
    return hc_copy_sign(hc_div(m, hc_add(m, hc_set(2.0f))), x);
}

/* Return 1 / (1 + exp(-x)). It is 0 below -88.7, where exp(-x) overflows. */
HC_INLINE hc_vf hc_sigmoid(hc_vf x) HC_STREAMING_OK {
    return hc_div(hc_set(1.0f), hc_add(hc_set(1.0f), hc_exp(hc_negate(x))));
}

/* Return x / (1 + exp(-x)). It is nan at -inf, as in PyTorch. */
HC_INLINE hc_vf hc_silu(hc_vf x) HC_STREAMING_OK { return hc_div(x, hc_add(hc_set(1.0f), hc_exp(hc_negate(x)))); }

/* Return s (1 + b slope (1 - s)), the gradient of b s with s = 1 / (1 + e) and 1 - s = e s. e must be finite. Adding 0
 * x turns an infinite x into nan, as in PyTorch, and changes no other result. */
HC_INLINE hc_vf hc_gradient_of_gated_(hc_vf x, hc_vf e, hc_vf s, hc_vf bounded_slope) HC_STREAMING_OK {
    return hc_fma(x, hc_zero(), hc_mul(s, hc_fma(bounded_slope, hc_mul(e, s), hc_set(1.0f))));
}

HC_INLINE hc_vf hc_gated_gradient_(hc_vf x, hc_vf e, hc_vf bounded_slope) HC_STREAMING_OK {
    const hc_vf one = hc_set(1.0f);
    return hc_gradient_of_gated_(x, e, hc_div(one, hc_add(one, e)), bounded_slope);
}

/* Return d silu / dx. Beyond the bound it is 1, or less than 2^-118 from 0. */
#define HC_SILU_BOUND 87.0f
HC_INLINE hc_vf hc_silu_gradient(hc_vf x) HC_STREAMING_OK {
    const hc_vf b = hc_within(x, HC_SILU_BOUND);
    return hc_gated_gradient_(x, hc_exp_bounded_(hc_negate(b)), b);
}

/* tanh-GELU: 0.5 x (1 + tanh u) = x / (1 + exp(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3). The exponent for base 2
 * is -2 u log2(e) = x (A + B x^2). */
#define HC_GELU_A -2.302208198144325f
#define HC_GELU_B -0.1029432395800235f

/* Return gelu(x). For large |x| the power is 0 or inf, so that gelu is x or -0. It is nan at -inf, as in PyTorch. */
HC_INLINE hc_vf hc_gelu(hc_vf x) HC_STREAMING_OK {
    const hc_vf t = hc_mul(x, hc_fma(hc_mul(x, x), hc_set(HC_GELU_B), hc_set(HC_GELU_A)));
    return hc_div(x, hc_add(hc_set(1.0f), hc_exp2(t)));
}

/* Return d gelu / dx, with 2 u' = 1.59577 + 0.21406 x^2. At +-10 the exponent is +-126, the last with a finite, normal
 * power. */
HC_INLINE hc_vf hc_gelu_gradient(hc_vf x) HC_STREAMING_OK {
    const hc_vf b = hc_within(x, 10.0f);
    const hc_vf square = hc_mul(b, b);
    const hc_vf e = hc_exp2_in_(hc_mul(b, hc_fma(square, hc_set(HC_GELU_B), hc_set(HC_GELU_A))));
    const hc_vf slope = hc_fma(square, hc_set(0.21406444881780073f), hc_set(1.5957691216057308f));
    return hc_gated_gradient_(x, e, hc_mul(b, slope));
}

/* GELU and its gradient for results that are then rounded to bf16. On AVX-512 the errors are below 2^-12.7, relative to the
 * result (GELU) or to 1 (its gradient). Other instruction sets use the exact versions. */
#if HC_SCALE_TAKES_ALL
HC_INLINE hc_vf hc_gelu_coarse(hc_vf x) HC_STREAMING_OK {
    const hc_vf t = hc_mul(x, hc_fma(hc_mul(x, x), hc_set(HC_GELU_B), hc_set(HC_GELU_A)));
    return hc_mul(x, hc_reciprocal_coarse(hc_add(hc_set(1.0f), hc_exp2_coarse(t))));
}
HC_INLINE hc_vf hc_gelu_gradient_coarse(hc_vf x) HC_STREAMING_OK {
    const hc_vf b = hc_within(x, 10.0f);
    const hc_vf square = hc_mul(b, b);
    const hc_vf e = hc_exp2_coarse(hc_mul(b, hc_fma(square, hc_set(HC_GELU_B), hc_set(HC_GELU_A))));
    const hc_vf slope = hc_fma(square, hc_set(0.21406444881780073f), hc_set(1.5957691216057308f));
    return hc_gradient_of_gated_(x, e, hc_reciprocal_coarse(hc_add(hc_set(1.0f), e)), hc_mul(b, slope));
}
#else
HC_INLINE hc_vf hc_gelu_coarse(hc_vf x) HC_STREAMING_OK { return hc_gelu(x); }
HC_INLINE hc_vf hc_gelu_gradient_coarse(hc_vf x) HC_STREAMING_OK { return hc_gelu_gradient(x); }
#endif

/* Return P(X < -|b|) of a normal X: exp(-b^2 / 2) R(|b|), where R(z) = erfcx(z / sqrt(2)) / 2 = t p(t) with t = 1 / (1
 * + 0.3 z). p is the polynomial of degree 9 that minimizes the maximum relative error for z <= 13.5, 2^-28.1
 * (iteratively reweighted least squares). `e` is exp(-b^2 / 2). */
HC_INLINE hc_vf hc_normal_tail_(hc_vf b, hc_vf e) HC_STREAMING_OK {
    const hc_vf t = hc_div(hc_set(1.0f), hc_fma(hc_abs(b), hc_set(0x1.333334p-2f), hc_set(1.0f)));
    hc_vf p = hc_set(-0x1.516b8ap-6f);
    p = hc_fma(p, t, hc_set(0x1.cbde5ap-4f));
    p = hc_fma(p, t, hc_set(-0x1.d290eep-3f));
    p = hc_fma(p, t, hc_set(0x1.87a46ap-3f));
    p = hc_fma(p, t, hc_set(-0x1.4359cap-4f));
    p = hc_fma(p, t, hc_set(0x1.88c068p-4f));
    p = hc_fma(p, t, hc_set(0x1.417c6ep-4f));
    p = hc_fma(p, t, hc_set(0x1.c36efep-4f));
    p = hc_fma(p, t, hc_set(0x1.e9c718p-4f));
    p = hc_fma(p, t, hc_set(0x1.ea3c7p-4f));
    return hc_mul(hc_mul(e, t), p);
}

/* Bound beyond which the tail is smaller than any fp32. */
#define HC_NORMAL_BOUND 13.5f

/* Return erf-GELU (Hendrycks & Gimpel 2016, section 2): x P(X < x) = max(x, 0) - |x| P(X < -|x|). It is -0 at -inf. */
HC_INLINE hc_vf hc_gelu_erf(hc_vf x) HC_STREAMING_OK {
    const hc_vf b = hc_within(x, HC_NORMAL_BOUND);
    const hc_vf e = hc_exp_bounded_(hc_mul(hc_mul(b, b), hc_set(-0.5f)));
    return hc_fnma(hc_abs(b), hc_normal_tail_(b, e), hc_max(hc_zero(), x));
}

/* Return the gradient P(X < x) + x phi(x). */
HC_INLINE hc_vf hc_gelu_erf_gradient(hc_vf x) HC_STREAMING_OK {
    const hc_vf b = hc_within(x, HC_NORMAL_BOUND);
    const hc_vf e = hc_exp_bounded_(hc_mul(hc_mul(b, b), hc_set(-0.5f)));
    const hc_vf below = hc_add(hc_set(0.5f), hc_copy_sign(hc_sub(hc_set(0.5f), hc_normal_tail_(b, e)), x));
    return hc_fma(x, hc_zero(), hc_fma(hc_mul(b, hc_set(0.3989422804014327f)), e, below));
}

#endif
