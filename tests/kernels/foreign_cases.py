"""Cases of operators of third-party models: attention of separate q, k and v, and weighted norms.

Legend: N images, H heads, G heads of keys, T queries, S keys, K head width.
"""

import itertools
from collections.abc import Iterator

import numpy as np

from tests.kernels.cases import ROUNDOFF, Array, Case, Float, Kind, absent, given, wanted

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
    query, key, value = (given(rng.standard_normal((n, tokens, heads, k)), kind)
                         for tokens, heads in ((t, h), (s, g), (s, g)))  # fmt: skip
    q, keys, values = (np.moveaxis(x.values, 2, 1) for x in (query, key, value))  # (n, heads, tokens, k)
    keys, values = (np.repeat(x, h // g, axis=1) for x in (keys, values))
    seen = np.tril(np.ones((t, s))) if causal else np.ones((t, s))
    scores = np.where(seen > 0, q @ keys.swapaxes(2, 3) * scale, -np.inf)
    sizes = (np.abs(q) @ np.abs(keys).swapaxes(2, 3) * scale).max(3, keepdims=True)
    top = scores.max(3, keepdims=True)
    lse = np.log(np.exp(scores - top).sum(3)) + top[..., 0]
    p = np.exp(scores - lse[..., None])
    # Relative error of a probability: from its exponent, exp, the row's sum and its own rounding.
    in_scores = (k + 8) * ONE * sizes + 8 * ONE * (1 + np.abs(top))
    in_p = 2 * in_scores + (s + 8) * ONE + extra
    out = p @ values
    arrays = [
        query, key, value,
        wanted(by_token(out), by_token((in_p + s * ONE + extra) * (p @ np.abs(values))), kind),
        wanted(lse, 2 * in_scores[..., 0] + (s + 8) * ONE, "f32"),
    ]  # fmt: skip
    yield Case("attention_heads_forward", ints, arrays, [scale])
    kept, dout = given(by_token(out), kind), given(rng.standard_normal((n, t, h, k)), kind)
    d, o = np.moveaxis(dout.values, 2, 1), np.moveaxis(kept.values, 2, 1)
    dp, dp_size = d @ values.swapaxes(2, 3), np.abs(d) @ np.abs(values).swapaxes(2, 3)
    ds = p * (dp - (d * o).sum(3, keepdims=True))
    weighted = (
        (in_p + (k + 4) * ONE + (s + t) * ONE + 5 * extra)
        * p
        * (dp_size + (np.abs(d) * np.abs(o)).sum(3, keepdims=True))
    )
    gradients = [
        (ds @ keys * scale, weighted @ np.abs(keys) * scale),
        (ds.swapaxes(2, 3) @ q * scale, weighted.swapaxes(2, 3) @ np.abs(q) * scale),
        (p.swapaxes(2, 3) @ d, ((in_p + t * ONE + 2 * extra) * p).swapaxes(2, 3) @ np.abs(d)),
    ]
    results = [wanted(by_token(exact), by_token(bound) + HIDDEN, kind) for exact, bound in gradients]
    yield Case("attention_heads_backward", ints, [query, key, value, kept, given(lse, "f32"), dout, *results], [scale])


def by_token(x: Float) -> Float:
    """Transpose (n, h, t, k) to (n, t, h, k)."""
    return np.moveaxis(x, 1, 2)


def norms(rng: np.random.Generator) -> Iterator[Case]:
    """Yield LayerNorm, and RMSNorm without a mean. Weights reach down to 1e-6, and a zero bias hides none of their
    digits.
    """
    for d, rows, rms, kind in itertools.product((1, 5, 72, 384), (1, 37), (False, True), COMPUTE):
        x = given(rng.standard_normal((rows, d)) * 2 + 0.5, kind)
        weight = given(rng.standard_normal(d) * np.float64(10) ** rng.integers(-6, 1, d), kind)
        bias = given(np.zeros(d), kind)
        mean = np.zeros((rows, 1)) if rms else x.values.mean(1, keepdims=True)
        rstd = 1 / np.sqrt(((x.values - mean) ** 2).mean(1, keepdims=True) + EPS)
        normal = (x.values - mean) * rstd
        size = np.abs(x.values).max(1, keepdims=True)
        # The error of the mean is the rounding of its sum, and the error of the variance twice as large, with D terms
        # of the size of |x|.
        mean_bound = (d + 6) * ONE * size
        relative = (d + 16) * ONE + rstd * (2 * mean_bound + 2 * ONE * size)
        off = np.abs(normal) * relative + (mean_bound + 2 * ONE * size) * rstd
        statistics = [given(mean[:, 0], "f32"), given(rstd[:, 0], "f32")]
        outputs = [wanted(normal * weight.values, off * np.abs(weight.values) + 1e-37, kind),
                   wanted(mean[:, 0], mean_bound[:, 0], "f32"),
                   wanted(rstd[:, 0], (rstd * relative)[:, 0], "f32")]  # fmt: skip
        if rms:
            statistics[0] = outputs[1] = absent()
        yield Case("norm_forward", [rows, d], [x, bias, weight, *outputs], [EPS], label="rms" if rms else "")
        yield norm_backward(rng, x, weight, statistics, kind)


def norm_backward(rng: np.random.Generator, x: Array, weight: Array, statistics: list[Array], kind: Kind) -> Case:
    rows, d = x.values.shape
    rms = statistics[0].stored is None
    mean = 0.0 if rms else statistics[0].values[:, None]
    rstd = statistics[1].values[:, None]
    dout = given(rng.standard_normal((rows, d)), kind)
    normal, g = (x.values - mean) * rstd, dout.values * weight.values
    of_mean = 0.0 if rms else 1.0
    dx = rstd * (g - of_mean * g.mean(1, keepdims=True) - normal * (g * normal).mean(1, keepdims=True))
    apart = (np.abs(x.values) + np.abs(mean)) * rstd  # terms of a rounded difference x - mean
    size = np.abs(g) + np.abs(g).mean(1, keepdims=True) + np.abs(normal) * np.abs(g * normal).mean(1, keepdims=True)
    bound = (d + 16) * ONE * rstd * (size + (1 + apart) ** 2 * np.abs(g).max(1, keepdims=True))
    sums = np.abs(dout.values)
    arrays = [dout, x, weight, *statistics, wanted(dx, bound + 1e-37, kind),
              wanted(dout.values.sum(0), (rows + 4) * ONE * sums.sum(0), kind),
              wanted((dout.values * normal).sum(0), (rows + 16) * ONE * (sums * (np.abs(normal) + apart)).sum(0), kind),
              ]  # fmt: skip
    return Case("norm_backward", [rows, d], arrays, label="rms" if rms else "")


def foreign_cases() -> list[Case]:
    rng = np.random.default_rng(5)
    return [*attention(rng), *norms(rng)]
