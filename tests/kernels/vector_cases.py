"""Cases of memory-bound operators: norms, gates, functions, softmax, patches, losses and the optimizer."""

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np

from tests.kernels.cases import ROUNDOFF, Array, Case, Float, Kind, decode, encode, input_array, no_array, output
from tests.kernels.matrix_cases import gelu, gelu_gradient

ONE = ROUNDOFF["f32"]
# Lengths around every vector length (4 to 64 lanes) and unrolling.
LENGTHS = (1, 3, 4, 7, 16, 17, 63, 64, 65, 130, 1027)
WIDTHS = (1, 5, 16, 72, 131, 384)
PAIRS: list[tuple[Kind, Kind]] = [("f32", "f32"), ("bf16", "bf16"), ("f32", "bf16")]
EPS = float(np.float32(1e-6))


def conditions(rng: np.random.Generator, n: int, d: int, kind: Kind) -> tuple[Array, Float, int]:
    """Return rows of a modulation: an array, its values (n, 1, d) and the stride of its rows."""
    stride = d + 3
    array = input_array(rng.standard_normal(n * stride - 3), kind)
    return array, np.append(array.values, np.zeros(3)).reshape(n, 1, stride)[:, :, :d], stride


def adaln(rng: np.random.Generator) -> Iterator[Case]:
    """Yield LayerNorm, and RMSNorm without a mean."""
    sizes = itertools.product(WIDTHS, PAIRS, ((1, 1), (2, 9), (1, 37)), (False, True))
    for d, (x_kind, small_kind), (n, t), rms in sizes:
        if n * t * d > 10000 and small_kind != x_kind:
            continue
        x = input_array(rng.standard_normal((n, t, d)) * 2 + 0.5, x_kind)
        shift_array, shift, stride = conditions(rng, n, d, small_kind)
        scale_array, scale, _ = conditions(rng, n, d, small_kind)
        mean = np.zeros((n, t)) if rms else x.values.mean(2)
        rstd = 1 / np.sqrt(((x.values - mean[..., None]) ** 2).mean(2) + EPS)
        normal = (x.values - mean[..., None]) * rstd[..., None]
        # The error of the mean is the rounding of its sum, and the error of the variance twice as large, with D terms
        # of the size of |x|. Without a mean x is exact.
        size = (not rms) * np.abs(x.values).max(2)
        mean_bound = (d + 4) * ONE * size
        rstd_bound = rstd * ((d + 16) * ONE + rstd * (2 * mean_bound + 2 * ONE * size))
        off = (
            np.abs(normal) * (rstd_bound / rstd)[..., None] + ((mean_bound + 2 * ONE * size) * rstd)[..., None]
        ) * np.abs(1 + scale)
        out = normal * (1 + scale) + shift
        bound = off + 8 * ONE * (np.abs(normal * (1 + scale)) + np.abs(normal) + np.abs(shift))
        arrays = [x, shift_array, scale_array, output(out, bound, small_kind),
                  no_array() if rms else output(mean, mean_bound, "f32"), output(rstd, rstd_bound, "f32")]  # fmt: skip
        yield Case("adaln_forward", [n, t, d, stride], arrays, [EPS], label="rms" if rms else "")
        statistics = no_array() if rms else input_array(mean, "f32"), input_array(rstd, "f32")
        for with_stream in (False, True):
            condition = scale_array, scale, stride
            yield adaln_backward(rng, x, condition, statistics, (x_kind, small_kind), with_stream=with_stream)


def adaln_backward(
    rng: np.random.Generator, x: Array, condition: tuple[Array, Float, int], statistics: tuple[Array, Array],
    kinds: tuple[Kind, Kind], *, with_stream: bool,
) -> Case:  # fmt: skip
    (n, t, d), (scale_array, scale, stride) = x.values.shape, condition
    has_mean = float(statistics[0].stored is not None)
    mean = statistics[0].values[..., None] if has_mean else np.zeros((n, t, 1))
    dout, r = input_array(rng.standard_normal((n, t, d)), kinds[1]), statistics[1].values[..., None]
    normal, g = (x.values - mean) * r, dout.values * (1 + scale)
    dx = r * (g - has_mean * g.mean(2, keepdims=True) - normal * (g * normal).mean(2, keepdims=True))
    size = np.abs(g) + np.abs(normal) * np.abs(g * normal).mean(2, keepdims=True)
    terms = has_mean * (np.abs(x.values) + np.abs(mean)) * r  # terms of a rounded difference x - mean
    mean_terms = np.abs(g).mean(2, keepdims=True) + (1 + terms) * np.abs(g).max(2, keepdims=True)
    dx_bound = (d + 16) * ONE * r * (size + has_mean * mean_terms)
    sums = np.abs(dout.values)
    dscale_bound = (t + 8 + 8 * has_mean) * ONE * (sums * (np.abs(normal) + terms)).sum(1)
    stream = input_array(rng.standard_normal((n, t, d)), kinds[0]) if with_stream else no_array()
    if with_stream:
        dx, dx_bound = dx + stream.values, dx_bound + 2 * ONE * (np.abs(dx) + np.abs(stream.values))
    arrays = [dout, x, scale_array, *statistics, stream, output(dx, dx_bound, kinds[0]),
              output(dout.values.sum(1), (t + 4) * ONE * sums.sum(1), kinds[1]),
              output((dout.values * normal).sum(1), dscale_bound, kinds[1])]  # fmt: skip
    label = f"{'' if has_mean else 'rms'} {'and stream' if with_stream else ''}"
    return Case("adaln_backward", [n, t, d, stride], arrays, label=label)


def rotate_heads(rng: np.random.Generator) -> Iterator[Case]:
    """Yield head widths around two vectors of each length, an odd width without rotation, and more tokens than a block."""
    shapes = ((1, 1, 1, 2), (2, 3, 2, 6), (1, 5, 3, 8), (1, 37, 2, 30), (2, 4, 1, 64), (1, 3, 2, 72), (1, 2, 1, 258))
    kinds: tuple[Kind, ...] = ("f32", "bf16")
    for (n, t, h, k), kind, (norm, rotate) in itertools.product(shapes, kinds, ((1, 1), (1, 0), (0, 1))):
        yield from rotation(rng, (n, t, h, k - (not rotate)), kind, norm=bool(norm), rotate=bool(rotate))


def rotation(
    rng: np.random.Generator, shape: tuple[int, int, int, int], kind: Kind, *, norm: bool, rotate: bool
) -> Iterator[Case]:
    n, t, h, k = shape
    angles = rng.uniform(-4, 4, (t, k // 2))
    tables = [input_array(function(angles), "f32") if rotate else no_array() for function in (np.cos, np.sin)]
    weights = [input_array(1 + 0.5 * rng.standard_normal(k), "f32") if norm else no_array() for _ in range(2)]
    cos, sin = (
        (table.values[:, None] for table in tables) if rotate else (np.ones((t, 1, k // 2)), np.zeros((t, 1, k // 2)))
    )
    w = np.stack([weight.values if norm else np.ones(k) for weight in weights])[:, None]  # (2, 1, K)
    qkv, dout = (input_array(rng.standard_normal((n, t, 3, h, k)) * 2, kind) for _ in range(2))
    x, v = qkv.values[:, :, :2], qkv.values[:, :, 2:]
    rstd = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) if norm else np.ones((n, t, 2, h, 1))
    xh, relative = x * rstd, (k + 24) * ONE
    out, size = rotate_pairs(w * xh, cos[:, None], sin[:, None])
    expected = output(np.concatenate([out, v], 2), np.concatenate([relative * size, 0 * v], 2) + 1e-40, kind)
    label = f"{'norm' if norm else ''} {'turn' if rotate else ''}"
    yield Case("rotate_heads_forward", shape, [*tables, *weights, qkv, expected], [EPS], label=label)
    back, reach = rotate_pairs(dout.values[:, :, :2], cos[:, None], -sin[:, None])
    dx, bound = back, relative * reach
    if norm:
        dx = rstd * (w * back - xh * (w * back * xh).mean(-1, keepdims=True))
        bound = relative * rstd * (np.abs(w) * reach + np.abs(xh) * (np.abs(w * xh) * reach).mean(-1, keepdims=True))
    dqkv = np.concatenate([dx, dout.values[:, :, 2:]], 2)
    dw, terms = (back * xh).sum((0, 1, 3)), (reach * np.abs(xh)).sum((0, 1, 3))
    dweights = [output(dw[i], (n * t * h + k + 24) * ONE * terms[i], "f32") if norm else no_array() for i in range(2)]
    arrays = [*tables, *weights, dout, qkv if norm else no_array(kind),
              output(dqkv, np.concatenate([bound, 0 * v], 2) + 1e-40, kind), *dweights]  # fmt: skip
    yield Case("rotate_heads_backward", shape, arrays, [EPS], label=label)


def rotate_pairs(heads: Float, cos: Float, sin: Float) -> tuple[Float, Float]:
    """Rotate pairs of heads (N, T, 2, H, K) by angles (T, 1, 1, K / 2); return them and the sizes of the terms. An odd
    K is unchanged.
    """
    if heads.shape[-1] % 2:
        return heads, np.abs(heads)
    a, b = heads[..., 0::2], heads[..., 1::2]
    out = np.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(heads.shape)
    size = np.stack([np.abs(a * cos) + np.abs(b * sin), np.abs(a * sin) + np.abs(b * cos)], -1).reshape(heads.shape)
    return out, size


def swiglu(rng: np.random.Generator) -> Iterator[Case]:
    for columns, (x_kind, out_kind), rows in itertools.product(LENGTHS, PAIRS, (1, 3)):
        x = input_array(rng.standard_normal((rows, 2 * columns)) * 3, x_kind)
        gate, value = x.values[:, :columns], x.values[:, columns:]
        silu = gate * sigmoid(gate)
        out = output(silu * value, 8 * ONE * np.abs(gate * value), out_kind)
        yield Case("swiglu_forward", [rows, columns], [x, out])
        dout = input_array(rng.standard_normal((rows, columns)), out_kind)
        slope = sigmoid(gate) * (1 + gate * (1 - sigmoid(gate)))
        dx = np.concatenate([dout.values * value * slope, dout.values * silu], 1)
        bound = ONE * np.concatenate([16 * np.abs(dout.values * value), 8 * np.abs(dout.values * gate)], 1)
        yield Case("swiglu_backward", [rows, columns], [dout, x, output(dx, bound, x_kind)])


def gate_residual(rng: np.random.Generator) -> Iterator[Case]:
    for d, (x_kind, small_kind), (n, t) in itertools.product(WIDTHS, PAIRS, ((1, 1), (2, 9), (1, 37))):
        if n * t * d > 10000 and small_kind != x_kind:
            continue
        x, y = (
            input_array(rng.standard_normal((n, t, d)), x_kind),
            input_array(rng.standard_normal((n, t, d)), small_kind),
        )
        gate_array, gate, stride = conditions(rng, n, d, small_kind)
        product = gate * y.values
        out = output(x.values + product, 2 * ONE * (np.abs(x.values) + np.abs(product)), x_kind)
        yield Case("gate_residual_forward", [n, t, d, stride], [x, gate_array, y, out])
        dout = input_array(rng.standard_normal((n, t, d)), x_kind)
        dy, terms = gate * dout.values, dout.values * y.values
        arrays = [dout, gate_array, y, output(dy, 2 * ONE * np.abs(dy), small_kind),
                  output(terms.sum(1), (t + 4) * ONE * np.abs(terms).sum(1), small_kind)]  # fmt: skip
        yield Case("gate_residual_backward", [n, t, d, stride], arrays)


def sigmoid(x: Float) -> Float:
    return np.asarray(1 / (1 + np.exp(-x)))


def normal_below(x: Float) -> Float:
    """Return P(X < x) of a standard normal X."""
    return np.asarray([0.5 * math.erfc(-value / math.sqrt(2)) for value in x])


def functions(rng: np.random.Generator) -> Iterator[Case]:
    """Yield exp and tanh within 4 roundoffs of the value, and gelu and silu within 4 roundoffs of the argument."""
    values: dict[int, Callable[[Float], Float]] = {
        0: np.exp, 1: np.tanh, 2: gelu, 3: lambda x: x * sigmoid(x), 4: lambda x: x * normal_below(x),
    }  # fmt: skip
    slopes: dict[int, Callable[[Float], Float]] = {
        2: gelu_gradient,
        3: lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x))),
        4: lambda x: normal_below(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi),
    }
    of_results: list[Callable[[Float], Float]] = [lambda y: y, lambda y: 1 - y**2]
    for function, count, (x_kind, out_kind) in itertools.product(values, LENGTHS, PAIRS):
        x = input_array(rng.standard_normal(count) * np.float64(3) ** rng.integers(-3, 3, count), x_kind)
        y = values[function](x.values)
        bound = 8 * ONE * (np.abs(y) if function < 2 else np.abs(x.values))
        yield Case("map", [function, count], [x, output(y, bound, out_kind)])
        if function < 2:
            dout, kept = input_array(rng.standard_normal(count), out_kind), input_array(np.minimum(y, 1e6), x_kind)
            slope = of_results[function](kept.values)
            bound = 4 * ONE * np.abs(dout.values) * (np.abs(slope) + function)
            dx = output(dout.values * slope, bound, x_kind)
            yield Case("map_backward", [function, count], [dout, kept, dx])
        if function in slopes:
            dout = input_array(rng.standard_normal(count), out_kind)
            dx = dout.values * slopes[function](x.values)
            yield Case("map_backward", [function, count], [dout, x, output(dx, 16 * ONE * np.abs(dout.values), x_kind)])
    special = input_array(
        [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 88.7, 89.0, -87.5, -95.0, -103.0, -200.0, 1e30, -1e30],
        "f32",
    )
    with np.errstate(over="ignore"):
        for function in range(2):
            y = values[function](special.values)
            yield Case(
                "map", [function, 15], [special, output(y, 8 * ONE * np.abs(y) + 2.0**-149, "f32")], label="special"
            )
    finite = input_array([np.nan, 0.0, 1e-40, -1e-40, 30.0, -30.0, -12.0, -6.5, 1e15, -1e15], "f32")
    with np.errstate(over="ignore"):
        for function in range(2, 5):
            y = values[function](finite.values)
            bound = np.where(finite.values == -1e15, 1e-20, 8 * ONE * np.abs(finite.values))
            yield Case(
                "map",
                [function, 10],
                [finite, output(np.where(finite.values == -1e15, 0, y), bound, "f32")],
                label="special",
            )


def scaled_sums(rng: np.random.Generator) -> Iterator[Case]:
    alpha, beta = 0.75, float(np.float32(-1.3))
    for count, (x_kind, out_kind) in itertools.product(LENGTHS, PAIRS):
        x, y = input_array(rng.standard_normal(count), x_kind), input_array(rng.standard_normal(count), out_kind)
        terms = alpha * x.values, beta * y.values
        out = output(sum(terms), 2 * ONE * (np.abs(terms[0]) + np.abs(terms[1])), out_kind)
        yield Case("scale_add", [count], [x, y, out], [alpha, beta])
        out = output(terms[0], 2 * ONE * np.abs(terms[0]), out_kind)
        yield Case("scale_add", [count], [x, no_array(), out], [alpha, 0.0])
    for count in (1, 63, 4097):
        data = input_array(rng.standard_normal(count), "f32")
        yield Case("copy", [4 * count], [data, output(data.values, 0, "f32")])


def softmax(rng: np.random.Generator) -> Iterator[Case]:
    for columns, (x_kind, out_kind) in itertools.product(LENGTHS[:-1], PAIRS):
        rows = 3 if columns < 100 else 80  # 80: threads share the rows
        x = input_array(rng.standard_normal((rows, columns)) * 4, x_kind)
        y = np.exp(x.values - x.values.max(1, keepdims=True))
        y /= y.sum(1, keepdims=True)
        relative = (columns + 16 + 4 * np.abs(x.values).max()) * ONE
        yield Case("softmax_forward", [rows, columns], [x, output(y, relative * y, out_kind)])
        dy, p = input_array(rng.standard_normal((rows, columns)), x_kind), input_array(y, out_kind)
        dot, size = ((f(dy.values) * p.values).sum(1, keepdims=True) for f in (np.asarray, np.abs))
        bound = p.values * (4 * ONE * np.abs(dy.values) + (columns + 8) * ONE * size)
        yield Case("softmax_backward", [rows, columns], [dy, p, output(p.values * (dy.values - dot), bound, x_kind)])


def patches(rng: np.random.Generator) -> Iterator[Case]:
    shapes = ((1, 1, 1, 1, 1), (2, 4, 3, 5, 2), (1, 3, 2, 2, 4), (2, 4, 17, 16, 2))
    for (n, c, r, s, p), order, (kind, out_kind) in itertools.product(shapes, (0, 1), PAIRS):
        image = input_array(rng.standard_normal((n, c, r * p, s * p)), kind)
        blocks = image.values.reshape(n, c, r, p, s, p)
        patch = blocks.transpose((0, 2, 4, 1, 3, 5) if order == 0 else (0, 2, 4, 3, 5, 1)).reshape(n, r * s, -1)
        exact = decode(encode(patch, out_kind), out_kind)
        ints = [n, c, r, s, p, order]
        yield Case("patchify", ints, [image, output(exact, 0, out_kind)])
        back = decode(encode(image.values, out_kind), out_kind)
        yield Case("unpatchify", ints, [input_array(patch, kind), output(back, 0, out_kind)])


def losses(rng: np.random.Generator) -> Iterator[Case]:
    for columns, (x_kind, y_kind), rows in itertools.product((1, 17, 64, 20_001), PAIRS, (1, 3)):
        x, y = (
            input_array(rng.standard_normal((rows, columns)), x_kind),
            input_array(rng.standard_normal((rows, columns)), y_kind),
        )
        difference = x.values - y.values
        size = (np.abs(x.values) + np.abs(y.values)) ** 2
        loss = output((difference**2).mean(1), 4 * ONE * size.mean(1), "f32")
        yield Case("mse_forward", [rows, columns], [x, y, loss])
        dout = input_array(rng.standard_normal(rows), "f32")
        factor = 2 * dout.values[:, None] / columns
        bound = 4 * ONE * np.abs(factor) * np.sqrt(size)
        yield Case("mse_backward", [rows, columns], [dout, x, y, output(factor * difference, bound, x_kind)])


def sums_of_squares(rng: np.random.Generator) -> Iterator[Case]:
    for counts in ((1,), (17,), (1027, 3, 64), (70001,)):
        tensors = [input_array(rng.standard_normal(count), "f32") for count in counts]
        exact = sum(float((tensor.values**2).sum()) for tensor in tensors)
        yield Case("sum_of_squares", [], [*tensors, output([exact], sum(counts) * 2.0**-53 * exact, "f64")])
    large = input_array(np.full(40, 1e30), "f32")
    exact = float((large.values**2).sum())
    yield Case("sum_of_squares", [], [large, output([exact], 1e-12 * exact, "f64")], label="beyond fp32")


def adamw(rng: np.random.Generator) -> Iterator[Case]:
    for counts, step in (((1,), 1), ((17, 64), 3), ((1027, 5), 1000), ((40_000, 7), 5)):
        lr, b1, b2, eps, decay, scale, ema_decay = (
            float(np.float32(v)) for v in (1e-3, 0.9, 0.999, 1e-8, 0.01, 0.5, 0.9999)
        )
        arrays: list[Array] = []
        for number, count in enumerate(counts):
            w, g, m, ema = (input_array(rng.standard_normal(count), "f32") for _ in range(4))
            v = input_array(rng.standard_normal(count) ** 2, "f32")
            grad = scale * g.values
            first, second = b1 * m.values + (1 - b1) * grad, b2 * v.values + (1 - b2) * grad**2
            update = first / (1 - b1**step) / (np.sqrt(second / (1 - b2**step)) + eps)
            new = w.values - lr * decay * w.values - lr * update
            average = ema_decay * ema.values + (1 - ema_decay) * new
            first_bound = 4 * ONE * (np.abs(b1 * m.values) + np.abs((1 - b1) * grad))
            # The bias corrections contain the rounding of the powers, which is largest for a step of 1, because 1 -
            # beta is 1e-3.
            new_bound = (
                4 * ONE * np.abs(w.values)
                + lr * np.abs(update) * 32 * ONE
                + lr * first_bound / (1 - b1) / (np.sqrt(second) + eps)
            )
            with_copies = number == 0
            arrays += [output(new, new_bound, "f32", w.values), g, output(first, first_bound, "f32", m.values),
                       output(second, 6 * ONE * second, "f32", v.values),
                       output(average, new_bound + 4 * ONE * (np.abs(average) + np.abs(ema.values)), "f32", ema.values)
                       if with_copies else no_array(),
                       output(new, new_bound, "bf16") if with_copies else no_array("bf16")]  # fmt: skip
        yield Case("adamw", [step], arrays, [lr, b1, b2, eps, decay, scale, ema_decay])


def rejected_calls(rng: np.random.Generator) -> Iterator[Case]:
    x = input_array(rng.standard_normal(4), "f32")
    out = output(np.zeros(4), 0, "f32")
    yield Case("map", [9, 4], [x, out], status=-1, label="no such function")
    yield Case("map", [0, -4], [x, out], status=-1, label="negative count")
    yield Case("map", [0, 4], [no_array(), out], status=-1, label="no x")
    yield Case("map_backward", [5, 4], [x, x, out], status=-1, label="no such gradient")
    yield Case("softmax_forward", [2, -2], [x, out], status=-1, label="negative columns")
    yield Case("patchify", [1, 1, 2, 2, 1, 7], [x, out], status=-1, label="no such order")
    yield Case("swiglu_forward", [1, -2], [x, out], status=-1, label="negative columns")
    none = no_array()
    for ints, tables, label in (
        ([1, 1, 0, 4], (none, none), "no heads"),
        ([1, 1, 1, 3], (x, x), "pairs of an odd width"),
        ([1, 1, 1, 2], (x, none), "no sin"),
    ):
        yield Case("rotate_heads_forward", ints, [*tables, none, none, x, out], [EPS], status=-1, label=label)
    yield Case(
        "rotate_heads_forward", [1, 1, 1, 1], [none, none, x, none, x, out], [EPS], status=-1, label="one weight"
    )


def vector_cases() -> list[Case]:
    rng = np.random.default_rng(4)
    groups = (adaln, gate_residual, functions, scaled_sums, softmax, patches, losses, sums_of_squares, adamw, rejected_calls,
              swiglu, rotate_heads)  # fmt: skip
    return [case for group in groups for case in group(rng)]
