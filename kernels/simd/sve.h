/* Vector layer for Arm SVE, and for SME in streaming mode. The number of fp32 lanes is known at run time. Only
 * instructions that are legal in streaming mode are used: no gathers, no FADDA, no FEXPA. */
#ifndef HC_SIMD_SVE_H
#define HC_SIMD_SVE_H

#if defined(HC_TARGET_SME) && !defined(__ARM_FEATURE_SME)
#error "HC_TARGET_SME needs -march=armv9-a+sme"
#endif
#if !defined(__ARM_FEATURE_SVE)
#error "HC_TARGET_SVE needs -march=armv8.2-a+sve"
#endif

#include <arm_sve.h>
#if defined(HC_TARGET_SME)
#include <arm_sme.h>
#endif

typedef svfloat32_t hc_vf;
typedef svfloat64_t hc_wide;
typedef svbool_t hc_mask;

HC_INLINE int64_t hc_lanes(void) HC_STREAMING_OK { return (int64_t)svcntw(); }
HC_INLINE svbool_t hc_all_(void) HC_STREAMING_OK { return svptrue_b32(); }
HC_INLINE svbool_t hc_first_(int64_t n) HC_STREAMING_OK { return svwhilelt_b32_s64(0, n); }

HC_INLINE hc_vf hc_load(const float *p) HC_STREAMING_OK { return svld1_f32(hc_all_(), p); }
HC_INLINE hc_vf hc_load_n(const float *p, int64_t n) HC_STREAMING_OK { return svld1_f32(hc_first_(n), p); }
HC_INLINE void hc_store(float *p, hc_vf v) HC_STREAMING_OK { svst1_f32(hc_all_(), p, v); }
HC_INLINE void hc_store_n(float *p, int64_t n, hc_vf v) HC_STREAMING_OK { svst1_f32(hc_first_(n), p, v); }

/* Round v to bf16, in the high halves of the lanes. Adding just under half of the last place, plus the last bit, rounds
 * to nearest even. A nan could overflow, so it is kept and made quiet. */
HC_INLINE svuint32_t hc_round_to_bf16_(hc_vf v) HC_STREAMING_OK {
    const svbool_t all = hc_all_();
    const svuint32_t bits = svreinterpret_u32_f32(v);
    const svuint32_t odd = svand_n_u32_x(all, svlsr_n_u32_x(all, bits, 16), 1);
    const svuint32_t sum = svadd_u32_x(all, svadd_n_u32_x(all, bits, 0x7fff), odd);
    return svsel_u32(svcmpuo_f32(all, v, v), svorr_n_u32_x(all, bits, 0x400000), sum);
}
HC_INLINE svuint32_t hc_to_bf16_(hc_vf v) HC_STREAMING_OK { return svlsr_n_u32_x(hc_all_(), hc_round_to_bf16_(v), 16); }
HC_INLINE hc_vf hc_load_bf16_(svbool_t lanes, const uint16_t *p) HC_STREAMING_OK {
    return svreinterpret_f32_u32(svlsl_n_u32_x(hc_all_(), svld1uh_u32(lanes, p), 16));
}
HC_INLINE hc_vf hc_load_bf16(const uint16_t *p) HC_STREAMING_OK { return hc_load_bf16_(hc_all_(), p); }
HC_INLINE hc_vf hc_load_bf16_n(const uint16_t *p, int64_t n) HC_STREAMING_OK { return hc_load_bf16_(hc_first_(n), p); }
HC_INLINE void hc_store_bf16(uint16_t *p, hc_vf v) HC_STREAMING_OK { svst1h_u32(hc_all_(), p, hc_to_bf16_(v)); }
HC_INLINE void hc_store_bf16_n(uint16_t *p, int64_t n, hc_vf v) HC_STREAMING_OK {
    svst1h_u32(hc_first_(n), p, hc_to_bf16_(v));
}

HC_INLINE svuint32_t hc_load_words_(const uint16_t *p) HC_STREAMING_OK {
    return svreinterpret_u32_u16(svld1_u16(svptrue_b16(), p));
}
HC_INLINE hc_vf hc_as_bf16(hc_vf v) HC_STREAMING_OK {
    return svreinterpret_f32_u32(svand_n_u32_x(hc_all_(), hc_round_to_bf16_(v), 0xffff0000u));
}
HC_INLINE void hc_store_exact_bf16(uint16_t *p, hc_vf v) HC_STREAMING_OK {
    svst1h_u32(hc_all_(), p, svlsr_n_u32_x(hc_all_(), svreinterpret_u32_f32(v), 16));
}
HC_INLINE hc_vf hc_load_bf16_even(const uint16_t *p) HC_STREAMING_OK {
    return svreinterpret_f32_u32(svlsl_n_u32_x(hc_all_(), hc_load_words_(p), 16));
}
HC_INLINE hc_vf hc_load_bf16_odd(const uint16_t *p) HC_STREAMING_OK {
    return svreinterpret_f32_u32(svand_n_u32_x(hc_all_(), hc_load_words_(p), 0xffff0000u));
}
HC_INLINE void hc_store_bf16_pair(uint16_t *p, hc_vf even, hc_vf odd) HC_STREAMING_OK {
    const svuint32_t high = svand_n_u32_x(hc_all_(), hc_round_to_bf16_(odd), 0xffff0000u);
    svst1_u16(svptrue_b16(), p, svreinterpret_u16_u32(svorr_u32_x(hc_all_(), high, hc_to_bf16_(even))));
}
HC_INLINE void hc_stream_bf16_pair(uint16_t *p, hc_vf even, hc_vf odd) HC_STREAMING_OK { hc_store_bf16_pair(p, even, odd); }

HC_INLINE hc_vf hc_evens(hc_vf a, hc_vf b) HC_STREAMING_OK { return svuzp1_f32(a, b); }
HC_INLINE hc_vf hc_odds(hc_vf a, hc_vf b) HC_STREAMING_OK { return svuzp2_f32(a, b); }
HC_INLINE hc_vf hc_zip_first(hc_vf even, hc_vf odd) HC_STREAMING_OK { return svzip1_f32(even, odd); }
HC_INLINE hc_vf hc_zip_second(hc_vf even, hc_vf odd) HC_STREAMING_OK { return svzip2_f32(even, odd); }

HC_INLINE void hc_stream(float *p, hc_vf v) HC_STREAMING_OK { svstnt1_f32(hc_all_(), p, v); }
HC_INLINE void hc_stream_bf16(uint16_t *p, hc_vf v) HC_STREAMING_OK { hc_store_bf16(p, v); }
HC_INLINE void hc_stream_end(void) HC_STREAMING_OK {}
HC_INLINE void hc_prefetch(const void *p) HC_STREAMING_OK { __builtin_prefetch(p); }
HC_INLINE void hc_prefetch_far(const void *p) HC_STREAMING_OK { __builtin_prefetch(p, 0, 2); }
HC_INLINE void hc_prefetch_to_write(const void *p) HC_STREAMING_OK { __builtin_prefetch(p, 1, 3); }

HC_INLINE hc_vf hc_set(float value) HC_STREAMING_OK { return svdup_n_f32(value); }
HC_INLINE hc_vf hc_zero(void) HC_STREAMING_OK { return svdup_n_f32(0.0f); }
HC_INLINE hc_vf hc_add(hc_vf a, hc_vf b) HC_STREAMING_OK { return svadd_f32_x(hc_all_(), a, b); }
HC_INLINE hc_vf hc_sub(hc_vf a, hc_vf b) HC_STREAMING_OK { return svsub_f32_x(hc_all_(), a, b); }
HC_INLINE hc_vf hc_mul(hc_vf a, hc_vf b) HC_STREAMING_OK { return svmul_f32_x(hc_all_(), a, b); }
HC_INLINE hc_vf hc_div(hc_vf a, hc_vf b) HC_STREAMING_OK { return svdiv_f32_x(hc_all_(), a, b); }
HC_INLINE hc_vf hc_sqrt(hc_vf a) HC_STREAMING_OK { return svsqrt_f32_x(hc_all_(), a); }
HC_INLINE hc_vf hc_abs(hc_vf a) HC_STREAMING_OK { return svabs_f32_x(hc_all_(), a); }
HC_INLINE hc_vf hc_negate(hc_vf a) HC_STREAMING_OK { return svneg_f32_x(hc_all_(), a); }
HC_INLINE hc_vf hc_max(hc_vf a, hc_vf b) HC_STREAMING_OK { return svmax_f32_x(hc_all_(), a, b); }
HC_INLINE hc_vf hc_min(hc_vf a, hc_vf b) HC_STREAMING_OK { return svmin_f32_x(hc_all_(), a, b); }
HC_INLINE hc_vf hc_round(hc_vf a) HC_STREAMING_OK { return svrintn_f32_x(hc_all_(), a); }
HC_INLINE hc_vf hc_fma(hc_vf a, hc_vf b, hc_vf c) HC_STREAMING_OK { return svmla_f32_x(hc_all_(), c, a, b); }
HC_INLINE hc_vf hc_fnma(hc_vf a, hc_vf b, hc_vf c) HC_STREAMING_OK { return svmls_f32_x(hc_all_(), c, a, b); }
HC_INLINE hc_vf hc_copy_sign(hc_vf a, hc_vf sign) HC_STREAMING_OK {
    const svuint32_t bit = svand_n_u32_x(hc_all_(), svreinterpret_u32_f32(sign), 0x80000000u);
    return svreinterpret_f32_u32(svorr_u32_x(hc_all_(), svreinterpret_u32_f32(hc_abs(a)), bit));
}

/* The architecture fixes the order of FADDV: pairs, then pairs of pairs. */
HC_INLINE float hc_sum(hc_vf v) HC_STREAMING_OK { return svaddv_f32(hc_all_(), v); }
HC_INLINE float hc_largest(hc_vf v) HC_STREAMING_OK { return svmaxv_f32(hc_all_(), v); }

HC_INLINE hc_mask hc_first(int64_t n) HC_STREAMING_OK { return hc_first_(n); }
HC_INLINE hc_mask hc_greater(hc_vf a, hc_vf b) HC_STREAMING_OK { return svcmpgt_f32(hc_all_(), a, b); }
HC_INLINE hc_mask hc_is_nan(hc_vf a) HC_STREAMING_OK { return svcmpuo_f32(hc_all_(), a, a); }
HC_INLINE hc_vf hc_select(hc_mask mask, hc_vf yes, hc_vf no) HC_STREAMING_OK { return svsel_f32(mask, yes, no); }

HC_INLINE hc_vf hc_scale(hc_vf v, hc_vf n) HC_STREAMING_OK {
    return svscale_f32_x(hc_all_(), v, svcvt_s32_f32_x(hc_all_(), n));
}
HC_INLINE hc_vf hc_power_of_two(hc_vf n) HC_STREAMING_OK { return hc_scale(hc_set(1.0f), n); }

#define HC_SCALE_TAKES_ALL 0
HC_INLINE hc_vf hc_within(hc_vf v, float limit) HC_STREAMING_OK { return hc_min(hc_set(limit), hc_max(hc_set(-limit), v)); }
HC_INLINE hc_vf hc_floor_(hc_vf t) HC_STREAMING_OK { return svrintm_f32_x(hc_all_(), t); }
HC_INLINE hc_vf hc_fraction(hc_vf t) HC_STREAMING_OK { return hc_sub(t, hc_floor_(t)); }
HC_INLINE hc_vf hc_scale_floor(hc_vf v, hc_vf t) HC_STREAMING_OK { return hc_scale(v, hc_floor_(t)); }

/* FCVT widens the even lanes. Odd lanes are first shifted to even positions. */
HC_INLINE hc_wide hc_wide_zero(void) HC_STREAMING_OK { return svdup_n_f64(0.0); }
HC_INLINE hc_wide hc_wide_first(hc_vf v) HC_STREAMING_OK { return svcvt_f64_f32_x(svptrue_b64(), v); }
HC_INLINE hc_wide hc_wide_second(hc_vf v) HC_STREAMING_OK {
    const svuint64_t odd = svlsr_n_u64_x(svptrue_b64(), svreinterpret_u64_f32(v), 32);
    return svcvt_f64_f32_x(svptrue_b64(), svreinterpret_f32_u64(odd));
}
HC_INLINE hc_wide hc_wide_add(hc_wide a, hc_wide b) HC_STREAMING_OK { return svadd_f64_x(svptrue_b64(), a, b); }
HC_INLINE hc_wide hc_wide_sub(hc_wide a, hc_wide b) HC_STREAMING_OK { return svsub_f64_x(svptrue_b64(), a, b); }
HC_INLINE hc_wide hc_wide_fma(hc_wide a, hc_wide b, hc_wide c) HC_STREAMING_OK {
    return svmla_f64_x(svptrue_b64(), c, a, b);
}
HC_INLINE double hc_wide_sum(hc_wide v) HC_STREAMING_OK { return svaddv_f64(svptrue_b64(), v); }

#endif
