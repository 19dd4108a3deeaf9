"""Cases of operators of third-party models: attention of separate q, k and v, and weighted norms.

Legend: N images, H heads, G heads of keys, T queries, S keys, K head width.
"""

import itertools
from collections.abc import Iterator

import numpy as np

from tests.kernels.cases import ROUNDOFF, Array, Case, Kind, input_array, no_array, output
from tests.kernels.matrix_cases import attention_gradients, attention_results, token_major

ONE = ROUNDOFF["f32"]
EPS = float(np.float32(1e-6))
HIDDEN = 1e-35  # contribution of a masked key, because the bf16 exponential ends at 2^-126
COMPUTE: dict[Kind, int] = {"f32": 0, "bf16": 1}
# (N, T, S, H, G, K): keys that no query sees, shared heads, several chunks and their ends; more than a segment of 512 keys.
HEADS = [(2, 5, 9, 3, 3, 8), (1, 70, 70, 4, 2, 20), (1, 33, 130, 2, 1, 40), (1, 40, 515, 1, 1, 4)]


def attention(rng: np.random.Generator) -> Iterator[Case]:
    for shape, causal, kind in itertools.product(HEADS, (0, 1), COMPUTE):
        yield from attention_pair(rng, shape, causal, kind)


def attention_pair(
    rng: np.random.Generator, shape: tuple[int, int, int, int, int, int], causal: int, kind: Kind
) -> Iterator[Case]:
    n, t, s, h, g, k = shape
    ints, scale = [n, t, s, h, g, k, causal, COMPUTE[kind]], float(np.float32(0.7 / np.sqrt(k)))
    extra = ROUNDOFF["bf16"] if kind == "bf16" else 0.0
    query, key, value = (input_array(rng.standard_normal((n, tokens, heads, k)), kind)
                         for tokens, heads in ((t, h), (s, g), (s, g)))  # fmt: skip
    q, keys, values = (token_major(x.values) for x in (query, key, value))  # (n, heads, tokens, k)
    keys, values = (np.repeat(x, h // g, axis=1) for x in (keys, values))
    mask = np.tril(np.ones((t, s))) if causal else None
    p, p_error, (out, out_bound), lse = attention_results(q, keys, values, scale, (k + 8) * ONE, extra, mask)
    results = [output(token_major(out), token_major(out_bound), kind), output(*lse, "f32")]
    yield Case("attention_heads_forward", ints, [query, key, value, *results], [scale])
    kept, dout = input_array(token_major(out), kind), input_array(rng.standard_normal((n, t, h, k)), kind)
    d, o = token_major(dout.values), token_major(kept.values)
    gradients = attention_gradients(q, keys, values, d, o, p, p_error, scale, s + t, extra)
    results = [output(token_major(exact), token_major(bound) + HIDDEN, kind) for exact, bound in gradients]
    yield Case(
        "attention_heads_backward", ints, [query, key, value, kept, input_array(lse[0], "f32"), dout, *results], [scale]
    )


def norms(rng: np.random.Generator) -> Iterator[Case]:
    """Yield LayerNorm, and RMSNorm without a mean. Weights reach down to 1e-6, and a zero bias hides none of their
    digits.
    """
    for d, rows, rms, kind in itertools.product((1, 5, 72, 384), (1, 37), (False, True), COMPUTE):
        x = input_array(rng.standard_normal((rows, d)) * 2 + 0.5, kind)
        weight = input_array(rng.standard_normal(d) * np.float64(10) ** rng.integers(-6, 1, d), kind)
        bias = input_array(np.zeros(d), kind)
        mean = np.zeros((rows, 1)) if rms else x.values.mean(1, keepdims=True)
        rstd = 1 / np.sqrt(((x.values - mean) ** 2).mean(1, keepdims=True) + EPS)
        normal = (x.values - mean) * rstd
        size = np.abs(x.values).max(1, keepdims=True)
        # The error of the mean is the rounding of its sum, and the error of the variance twice as large, with D terms
        # of the size of |x|.
        mean_bound = (d + 6) * ONE * size
        relative = (d + 16) * ONE + rstd * (2 * mean_bound + 2 * ONE * size)
        error = np.abs(normal) * relative + (mean_bound + 2 * ONE * size) * rstd
        statistics = [input_array(mean[:, 0], "f32"), input_array(rstd[:, 0], "f32")]
        outputs = [output(normal * weight.values, error * np.abs(weight.values) + 1e-37, kind),
                   output(mean[:, 0], mean_bound[:, 0], "f32"),
                   output(rstd[:, 0], (rstd * relative)[:, 0], "f32")]  # fmt: skip
        if rms:
            statistics[0] = outputs[1] = no_array()
        yield Case("norm_forward", [rows, d], [x, bias, weight, *outputs], [EPS], label="rms" if rms else "")
        yield norm_backward(rng, x, weight, statistics, kind)


def norm_backward(rng: np.random.Generator, x: Array, weight: Array, statistics: list[Array], kind: Kind) -> Case:
    rows, d = x.values.shape
    rms = statistics[0].stored is None
    mean = 0.0 if rms else statistics[0].values[:, None]
    rstd = statistics[1].values[:, None]
    dout = input_array(rng.standard_normal((rows, d)), kind)
    normal, g = (x.values - mean) * rstd, dout.values * weight.values
    has_mean = 0.0 if rms else 1.0
    dx = rstd * (g - has_mean * g.mean(1, keepdims=True) - normal * (g * normal).mean(1, keepdims=True))
    terms = (np.abs(x.values) + np.abs(mean)) * rstd  # terms of a rounded difference x - mean
    size = np.abs(g) + np.abs(g).mean(1, keepdims=True) + np.abs(normal) * np.abs(g * normal).mean(1, keepdims=True)
    bound = (d + 16) * ONE * rstd * (size + (1 + terms) ** 2 * np.abs(g).max(1, keepdims=True))
    sums = np.abs(dout.values)
    arrays = [dout, x, weight, *statistics, output(dx, bound + 1e-37, kind),
              output(dout.values.sum(0), (rows + 4) * ONE * sums.sum(0), kind),
              output((dout.values * normal).sum(0), (rows + 16) * ONE * (sums * (np.abs(normal) + terms)).sum(0), kind),
              ]  # fmt: skip
    return Case("norm_backward", [rows, d], arrays, label="rms" if rms else "")


def third_party_cases() -> list[Case]:
    rng = np.random.default_rng(5)
    return [*attention(rng), *norms(rng)]
