/* Types of the optimizer kernels, which are compiled once per instruction set. */
#ifndef HC_OPTIMIZER_H
#define HC_OPTIMIZER_H

#include <stdint.h>

#include "hcops.h"

/* Factors of one AdamW step, as in torch.optim.AdamW. */
typedef struct {
    float gradient_scale;
    float one_minus_beta1; /* first += (1 - beta1) (gradient - first) */
    float beta2, one_minus_beta2;
    float decay;                     /* 1 - lr * weight_decay */
    float inverse_root_correction2;  /* 1 / sqrt(1 - beta2^step) */
    float eps;
    float step_size; /* lr / (1 - beta1^step) */
    float ema_decay, one_minus_ema_decay;
} hc_adamw_factors;

/* ema and shadow may be NULL. */
typedef void hc_adamw_kernel(const hc_adamw_factors *factors, int64_t count, float *weight, const float *gradient, float *first,
                             float *second, float *ema, uint16_t *shadow);

extern hc_adamw_kernel hc_adamw_ref, hc_adamw_avx2, hc_adamw_avx512, hc_adamw_neon, hc_adamw_sve, hc_adamw_sme;

#endif
