/* RMSNorm and rotation of the heads of q and k, and their gradients.
 *
 * A head x has K numbers and the weight w. xh = x rstd with rstd = 1 / sqrt(sum(x^2) / K + eps). out = R (w xh), where
 * R rotates pairs. Backward, with h = R^T dout: dx = rstd (w h - xh sum(w h xh) / K), dw = sum over rows and heads of h
 * xh. A head is read twice, the second time from the L1 cache. */
#include <math.h>

#include "attention/rotate.h"
#include "simd/simd.h"

/* Pairs i.. of a head: `numbers` elements from index `at` on, at most two vectors. */
typedef struct {
    int64_t at, i, numbers, pairs;
    int full, type;
} place;

HC_INLINE place place_(int64_t start, int64_t i, int64_t width, int type) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes(), left = width - 2 * i;
    const int full = left >= 2 * lanes;
    return (place){start + 2 * i, i, full ? 2 * lanes : left, full ? lanes : (left + 1) / 2, full, type};
}

/* Load the vector of `lanes` numbers from `first` on, which is 0 or lanes. */
HC_INLINE hc_vf numbers_(const void *p, place at, int64_t first) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes(), left = at.numbers - first;
    if (left >= lanes) {
        return hc_load_as(p, at.at + first, at.type);
    }
    return left > 0 ? hc_load_as_n(p, at.at + first, left, at.type) : hc_zero();
}

HC_INLINE hc_vf evens_(const void *p, place at) HC_STREAMING_OK {
    if (at.full && at.type == HC_BF16) {
        return hc_load_bf16_even((const uint16_t *)p + at.at);
    }
    return hc_evens(numbers_(p, at, 0), numbers_(p, at, hc_lanes()));
}

HC_INLINE hc_vf odds_(const void *p, place at) HC_STREAMING_OK {
    if (at.full && at.type == HC_BF16) {
        return hc_load_bf16_odd((const uint16_t *)p + at.at);
    }
    return hc_odds(numbers_(p, at, 0), numbers_(p, at, hc_lanes()));
}

HC_INLINE void store_(void *p, place at, hc_vf even, hc_vf odd) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes();
    if (at.full && at.type == HC_BF16) {
        hc_store_bf16_pair((uint16_t *)p + at.at, even, odd);
    } else if (at.full) {
        hc_store((float *)p + at.at, hc_zip_first(even, odd));
        hc_store((float *)p + at.at + lanes, hc_zip_second(even, odd));
    } else {
        const int64_t second = at.numbers - lanes;
        hc_store_as_n(p, at.at, second > 0 ? lanes : at.numbers, at.type, hc_zip_first(even, odd));
        if (second > 0) {
            hc_store_as_n(p, at.at + lanes, second, at.type, hc_zip_second(even, odd));
        }
    }
}

/* Load one number per pair, from a table or from half of a weight. */
HC_INLINE hc_vf each_(const float *p, place at) HC_STREAMING_OK {
    return at.full ? hc_load(p + at.i) : hc_load_n(p + at.i, at.pairs);
}

HC_INLINE void add_each_(float *p, place at, hc_vf a, hc_vf b) HC_STREAMING_OK {
    const hc_vf sum = hc_fma(a, b, each_(p, at));
    if (at.full) {
        hc_store(p + at.i, sum);
    } else {
        hc_store_n(p + at.i, at.pairs, sum);
    }
}

/* Return 1 / sqrt(mean + eps). The result is 0 if the squares of a head overflow fp32; the head then becomes zeros, as
 * in PyTorch. */
HC_INLINE float rstd_(float mean, float eps) HC_STREAMING_OK { return 1.0f / sqrtf(mean + eps); }

/* One head: its first element, its rows of the tables, and its weight. */
typedef struct {
    int64_t start, width, half;
    const float *cos, *sin, *weight;
    int type, norm, turn;
} head;

HC_INLINE void forward_head_(const hc_rotate_block *b, head h) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes();
    hc_vf rstd = hc_zero();
    if (h.norm) {
        hc_vf first = hc_zero(), second = hc_zero();
        for (int64_t i = 0; i < h.half; i += lanes) {
            const place at = place_(h.start, i, h.width, h.type);
            const hc_vf even = evens_(b->qkv, at), odd = odds_(b->qkv, at);
            first = hc_fma(even, even, first);
            second = hc_fma(odd, odd, second);
        }
        rstd = hc_set(rstd_(hc_sum(hc_add(first, second)) / (float)h.width, b->eps));
    }
    for (int64_t i = 0; i < h.half; i += lanes) {
        const place at = place_(h.start, i, h.width, h.type);
        hc_vf even = evens_(b->qkv, at), odd = odds_(b->qkv, at);
        if (h.norm) {
            even = hc_mul(hc_mul(even, rstd), each_(h.weight, at));
            odd = hc_mul(hc_mul(odd, rstd), each_(h.weight + h.half, at));
        }
        if (h.turn) {
            const hc_vf cos = each_(h.cos, at), sin = each_(h.sin, at);
            const hc_vf turned = hc_fnma(odd, sin, hc_mul(even, cos));
            odd = hc_fma(even, sin, hc_mul(odd, cos));
            even = turned;
        }
        store_(b->out, at, even, odd);
    }
}

/* Return the even and the odd elements of R^T dout. */
HC_INLINE hc_vf back_even_(const hc_rotate_block *b, head h, place at) HC_STREAMING_OK {
    const hc_vf even = evens_(b->dout, at);
    return h.turn ? hc_fma(odds_(b->dout, at), each_(h.sin, at), hc_mul(even, each_(h.cos, at))) : even;
}

HC_INLINE hc_vf back_odd_(const hc_rotate_block *b, head h, place at) HC_STREAMING_OK {
    const hc_vf odd = odds_(b->dout, at);
    return h.turn ? hc_fnma(evens_(b->dout, at), each_(h.sin, at), hc_mul(odd, each_(h.cos, at))) : odd;
}

HC_INLINE void backward_head_(const hc_rotate_block *b, head h, float *dweight) HC_STREAMING_OK {
    const int64_t lanes = hc_lanes();
    hc_vf rstd = hc_zero(), slope = hc_zero();
    if (h.norm) {
        hc_vf squares = hc_zero(), more_squares = squares, products = squares, more_products = squares;
        for (int64_t i = 0; i < h.half; i += lanes) {
            const place at = place_(h.start, i, h.width, h.type);
            const hc_vf even = evens_(b->qkv, at), odd = odds_(b->qkv, at);
            squares = hc_fma(even, even, squares);
            more_squares = hc_fma(odd, odd, more_squares);
            products = hc_fma(hc_mul(back_even_(b, h, at), each_(h.weight, at)), even, products);
            more_products = hc_fma(hc_mul(back_odd_(b, h, at), each_(h.weight + h.half, at)), odd, more_products);
        }
        const float inverse = 1.0f / (float)h.width;
        const float r = rstd_(hc_sum(hc_add(squares, more_squares)) / (float)h.width, b->eps);
        rstd = hc_set(r);
        slope = hc_set(r * r * (r * (hc_sum(hc_add(products, more_products)) * inverse)));
    }
    for (int64_t i = 0; i < h.half; i += lanes) {
        const place at = place_(h.start, i, h.width, h.type);
        hc_vf even = back_even_(b, h, at), odd = back_odd_(b, h, at);
        if (h.norm) {
            const hc_vf x_even = evens_(b->qkv, at), x_odd = odds_(b->qkv, at);
            add_each_(dweight, at, even, hc_mul(x_even, rstd));
            add_each_(dweight + h.half, at, odd, hc_mul(x_odd, rstd));
            even = hc_fnma(x_even, slope, hc_mul(even, hc_mul(each_(h.weight, at), rstd)));
            odd = hc_fnma(x_odd, slope, hc_mul(odd, hc_mul(each_(h.weight + h.half, at), rstd)));
        }
        store_(b->out, at, even, odd);
    }
}

/* Process all heads of q, then of k, row by row. Arguments that are constants at the call are constants in the
 * loops. */
HC_INLINE void rows_(const hc_rotate_block *b, int backward, int type, int norm, int turn) HC_STREAMING_OK {
    const int64_t width = b->width, half = (width + 1) / 2;
    for (int64_t row = 0; row < b->rows; row++) {
        const int64_t angles = row * (width / 2);
        for (int64_t number = 0; number < 2 * b->heads; number++) {
            const int64_t weight = number < b->heads ? 0 : 2 * half;
            const head h = {(3 * b->heads * row + number) * width, width, half, turn ? b->cos + angles : NULL,
                            turn ? b->sin + angles : NULL, norm ? b->weights + weight : NULL, type, norm, turn};
            if (backward) {
                backward_head_(b, h, norm ? b->out_dweights + weight : NULL);
            } else {
                forward_head_(b, h);
            }
        }
    }
}

HC_INLINE void typed_(const hc_rotate_block *b, int backward, int type) HC_STREAMING_OK {
    if (b->weights != NULL && b->cos != NULL) {
        rows_(b, backward, type, 1, 1);
    } else if (b->weights != NULL) {
        rows_(b, backward, type, 1, 0);
    } else if (b->cos != NULL) {
        rows_(b, backward, type, 0, 1);
    } else {
        rows_(b, backward, type, 0, 0);
    }
}

HC_KERNEL_FUNCTION void HC_NAME(rotate_heads_forward)(const hc_rotate_block *block) HC_KERNEL_STREAMING {
    const hc_rotate_block b = *block;
    if (b.type == HC_F32) {
        typed_(&b, 0, HC_F32);
    } else {
        typed_(&b, 0, HC_BF16);
    }
}

HC_KERNEL_FUNCTION void HC_NAME(rotate_heads_backward)(const hc_rotate_block *block) HC_KERNEL_STREAMING {
    const hc_rotate_block b = *block;
    if (b.type == HC_F32) {
        typed_(&b, 1, HC_F32);
    } else {
        typed_(&b, 1, HC_BF16);
    }
}
