/* AdamW in one pass over memory: moments, update, moving average and bf16 copy of each vector of weights while it is in
 * registers. */
#include <stddef.h>

#include "optimizer/optimizer.h"
#include "simd/simd.h"

typedef struct {
    float *weight, *first, *second, *ema;
    const float *gradient;
    uint16_t *shadow;
} arrays;

HC_INLINE void update_(const hc_adamw_factors *f, arrays a, int64_t i, int64_t n, int full) HC_STREAMING_OK {
    const hc_vf scaled = full ? hc_load(a.gradient + i) : hc_load_n(a.gradient + i, n);
    const hc_vf old_first = full ? hc_load(a.first + i) : hc_load_n(a.first + i, n);
    const hc_vf old_second = full ? hc_load(a.second + i) : hc_load_n(a.second + i, n);
    const hc_vf old_weight = full ? hc_load(a.weight + i) : hc_load_n(a.weight + i, n);
    const hc_vf gradient = hc_mul(scaled, hc_set(f->gradient_scale));
    const hc_vf first = hc_fma(hc_set(f->one_minus_beta1), hc_sub(gradient, old_first), old_first);
    const hc_vf square = hc_mul(hc_mul(hc_set(f->one_minus_beta2), gradient), gradient);
    const hc_vf second = hc_fma(hc_set(f->beta2), old_second, square);
    const hc_vf root = hc_fma(hc_sqrt(second), hc_set(f->inverse_root_correction2), hc_set(f->eps));
    const hc_vf decayed = hc_mul(old_weight, hc_set(f->decay));
    const hc_vf weight = hc_fnma(hc_set(f->step_size), hc_div(first, root), decayed);
    if (full) {
        hc_store(a.first + i, first);
        hc_store(a.second + i, second);
        hc_store(a.weight + i, weight);
    } else {
        hc_store_n(a.first + i, n, first);
        hc_store_n(a.second + i, n, second);
        hc_store_n(a.weight + i, n, weight);
    }
    if (a.ema != NULL) {
        const hc_vf old = full ? hc_load(a.ema + i) : hc_load_n(a.ema + i, n);
        const hc_vf ema = hc_fma(hc_set(f->ema_decay), old, hc_mul(hc_set(f->one_minus_ema_decay), weight));
        if (full) {
            hc_store(a.ema + i, ema);
        } else {
            hc_store_n(a.ema + i, n, ema);
        }
    }
    if (a.shadow != NULL) {
        if (full) {
            hc_store_bf16(a.shadow + i, weight);
        } else {
            hc_store_bf16_n(a.shadow + i, n, weight);
        }
    }
}

HC_KERNEL_FUNCTION void HC_NAME(adamw)(const hc_adamw_factors *factors, int64_t count, float *weight, const float *gradient,
                                       float *first, float *second, float *ema, uint16_t *shadow) HC_KERNEL_STREAMING {
    const hc_adamw_factors own = *factors;
    const arrays a = {weight, first, second, ema, gradient, shadow};
    const int64_t lanes = hc_lanes();
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
        update_(&own, a, i, lanes, 1);
    }
    if (i < count) {
        update_(&own, a, i, count - i, 0);
    }
}
