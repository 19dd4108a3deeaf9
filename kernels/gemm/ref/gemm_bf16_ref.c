/* Products of operands rounded to bf16 in plain C. Panels and sums are fp32. */
#include <stdint.h>
#include <string.h>

/* Round to bf16, to nearest even. A nan stays nan. */
static inline float round_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    bits = value != value ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u);
    bits &= 0xffff0000u;
    memcpy(&value, &bits, sizeof(bits));
    return value;
}

typedef float pack_element;
#define REF_ROUND(v) round_bf16(v)
#define REF_NAME gemm_bf16_ref
#define REF_DTYPE HC_BF16
#include "gemm/ref/gemm_ref.h"
