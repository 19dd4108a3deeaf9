"""Cases of matrix products and attention."""

import itertools
from collections.abc import Iterator

import numpy as np

from tests.kernels.cases import ROUNDOFF, Array, Case, Float, Kind, decode, encode, input_array, no_array, output

# Every dimension is 1, below, at and above a tile of each vector length (8 to 64 rows), and odd; depths are around
# unrolling by 8.
SHAPES = [
    (1, 1, 1),
    (1, 7, 5),
    (3, 1, 9),
    (5, 17, 1),
    (8, 12, 16),
    (33, 65, 31),
    (64, 64, 8),
    (65, 33, 72),
    (70, 129, 40),
]
LAYOUTS = ("forward", "dx", "dw")
# Types of A, B, C and of the arithmetic.
TYPES: list[tuple[Kind, Kind, Kind, Kind]] = [
    ("f32", "f32", "f32", "f32"),
    ("bf16", "f32", "bf16", "bf16"),
    ("bf16", "bf16", "f32", "bf16"),
    ("f32", "f32", "f32", "bf16"),
    ("bf16", "bf16", "bf16", "f32"),
    ("f64", "f64", "f64", "f64"),
]
GAP = 3  # elements between the rows of a matrix that an operator must not write
COMPUTE = {"f32": 0, "bf16": 1, "f64": 2}


def gelu(x: Float) -> Float:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def gelu_gradient(x: Float) -> Float:
    inner = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    slope = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
    return np.asarray(0.5 * (1 + inner) + 0.5 * x * (1 - inner**2) * slope)


class Product:
    """Operands of a product in one of the three layouts of a linear layer, and its result with error bound."""

    def __init__(
        self, rng: np.random.Generator, m: int, n: int, k: int, layout: str, types: tuple[Kind, Kind, Kind, Kind]
    ) -> None:
        a_kind, b_kind, self.c_kind, self.compute = types
        self.m, self.n, self.k = m, n, k
        a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
        self.a, self.a_strides = stored(a, a_kind, by_columns=layout == "dw")
        self.b, self.b_strides = stored(b, b_kind, by_columns=layout == "forward")
        exact_a, exact_b = decode(encode(a, a_kind), a_kind), decode(encode(b, b_kind), b_kind)
        self.row_sum, self.row_sum_bound = exact_a.sum(1), (k + 2) * ROUNDOFF["f32"] * np.abs(exact_a).sum(1)
        if self.compute == "bf16":
            exact_a, exact_b = (decode(encode(x, "bf16"), "bf16") for x in (exact_a, exact_b))
        roundoff = ROUNDOFF["f64" if self.compute == "f64" else "f32"]
        self.exact: Float = exact_a @ exact_b  # (m, n)
        self.bound: Float = (k + 4) * roundoff * (np.abs(exact_a) @ np.abs(exact_b))


def stored(values: Float, kind: Kind, by_columns: bool) -> tuple[Array, tuple[int, int]]:
    """Return a matrix with gaps between its rows, or columns, and its strides."""
    lines = values.T if by_columns else values
    wide = np.full((lines.shape[0], lines.shape[1] + GAP), np.nan)
    wide[:, : lines.shape[1]] = lines
    last = wide.size - GAP  # the array ends with the last row, because the next page is not readable
    strides = (1, wide.shape[1]) if by_columns else (wide.shape[1], 1)
    return input_array(wide.ravel()[:last], kind), strides


def with_gaps(values: Float, bound: Float, kind: Kind, before: Float | None = None) -> Array:
    """Return an m x n output with gaps that must keep their content."""
    rows, columns = values.shape
    expected, bounds, first = np.full((3, rows, columns + GAP), [[[7.0]], [[0.0]], [[7.0]]])
    expected[:, :columns], bounds[:, :columns] = values, np.maximum(bound, 1e-300)
    first[:, :columns] = np.nan if before is None else before
    last = expected.size - GAP
    return output(expected.ravel()[:last], bounds.ravel()[:last], kind, first.ravel()[:last])


def gemm(p: Product, arrays: list[Array], *, accumulate: int = 0, gelu: int = 0, gate: tuple[int, int] = (0, 0),
         blocking: tuple[int, ...] = (0, 0, 0, 0, 0, 0), label: str = "") -> Case:  # fmt: skip
    """Return a case. `arrays` are c, row_sum, bias, before, gelu_gradient_at, gate, residual."""
    settings = [COMPUTE[p.compute], accumulate, gelu, *gate, *blocking]
    ints = [p.m, p.n, p.k, *p.a_strides, *p.b_strides, p.n + GAP, *settings]
    return Case("gemm", ints, [p.a, p.b, *arrays], label=label)


def plain_products(rng: np.random.Generator) -> Iterator[Case]:
    for shape, layout, types in itertools.product(SHAPES, LAYOUTS, TYPES):
        p = Product(rng, *shape, layout, types)
        c = with_gaps(p.exact, p.bound, p.c_kind)
        yield gemm(p, [c, *[no_array()] * 6], label=layout)
        if min(p.m, p.k) <= 32:  # explicit cuts force packing
            yield gemm(p, [c, *[no_array()] * 6], blocking=(0, 0, 0, 1, 0, 0), label=f"{layout} packed")


def single_rows_and_columns(rng: np.random.Generator) -> Iterator[Case]:
    """Yield matrices of one row or column with both strides above 1."""
    for types in TYPES:
        row, column = Product(rng, 1, 7, 5, "dw", types), Product(rng, 9, 6, 1, "dx", types)
        row.a_strides, column.a_strides = (99, row.a_strides[1]), (column.a_strides[0], 99)
        single = Product(rng, 5, 1, 9, "dx", types)
        single.b_strides = (single.b_strides[0], 99)
        for p in (row, column, single):
            sums = no_array() if p.compute == "f64" else output(p.row_sum, p.row_sum_bound, "f32")
            yield gemm(p, [with_gaps(p.exact, p.bound, p.c_kind), sums, *[no_array()] * 5], label="two strides")


def products_of_many_threads(rng: np.random.Generator) -> Iterator[Case]:
    """Yield small products with explicit cuts of rows or columns among all threads. By default one thread computes
    them.
    """
    for layout, types, cuts in itertools.product(LAYOUTS, TYPES, ((1, 0), (0, 1))):
        p = Product(rng, 130, 203, 40, layout, types)
        c = with_gaps(p.exact, p.bound, p.c_kind)
        sums = no_array() if p.compute == "f64" else output(p.row_sum, p.row_sum_bound, "f32")
        yield gemm(p, [c, sums, *[no_array()] * 5], blocking=(32, 48, 16, *cuts, 0), label=layout)


def accumulated_products(rng: np.random.Generator) -> Iterator[Case]:
    """Yield weight gradients that add to C and to the bias gradient, with cuts of the depth."""
    shapes = ((34, 21, 67), (9, 70, 40), (1, 1, 3))
    for (m, n, k), layout, types, accumulate in itertools.product(shapes, ("dw", "dx"), TYPES, (0, 1)):
        if types[2] == "bf16":
            continue
        p = Product(rng, m, n, k, layout, types)
        before = rng.standard_normal((m, n)).astype(np.float32).astype(np.float64)
        old = before * accumulate
        c = with_gaps(p.exact + old, p.bound + 2 * ROUNDOFF["f32"] * np.abs(old), p.c_kind, before)
        row_sum = no_array()
        if types[3] != "f64":
            start = rng.standard_normal(m).astype(np.float32).astype(np.float64)
            bound = p.row_sum_bound + 2 * ROUNDOFF["f32"] * np.abs(start)
            row_sum = output(p.row_sum + accumulate * start, bound, "f32", start)
        blocking = (16, 16, 16, 1, 1, 0) if k > 3 else (0,) * 6
        yield gemm(p, [c, row_sum, *[no_array()] * 5], accumulate=accumulate, blocking=blocking, label=layout)


def products_with_epilogues(rng: np.random.Generator) -> Iterator[Case]:
    for (m, n, k), types in itertools.product(((12, 40, 24), (7, 65, 19)), TYPES[:4]):
        p = Product(rng, m, n, k, "forward", types)
        kind, unit = p.c_kind, ROUNDOFF["f32"]
        bias = input_array(rng.standard_normal(n), "f32" if types[0] == "f32" else "bf16")
        sums, bound = p.exact + bias.values, p.bound + 2 * unit * np.abs(bias.values)
        c = with_gaps(sums, bound, kind)
        yield gemm(p, [c, no_array(), bias, *[no_array()] * 4], label="bias")

        # The slope of gelu is below 1.13; its own error, and the error of reading u, stay below 16 roundoffs of |u| + 1.
        # Before rounding to bf16, AVX-512 computes it coarsely.
        gelu_error = 2.0**-12 if kind == "bf16" else 16 * unit
        before = with_gaps(sums, bound, kind)
        c = with_gaps(gelu(sums), 1.13 * bound + gelu_error * (np.abs(sums) + 1), kind)
        yield gemm(p, [c, no_array(), bias, before, *[no_array()] * 3], gelu=1, label="bias, gelu")

        # The value before the GELU may have another type.
        other_kind = "bf16" if kind == "f32" else "f32"
        yield gemm(p, [with_gaps(sums, bound, kind), no_array(), bias, with_gaps(sums, bound, other_kind), *[no_array()] * 3],
                   label="kept in another type")  # fmt: skip

        u, _ = stored(rng.standard_normal((m, n)), kind, by_columns=False)
        points = without_gaps(u, m, n)
        slope = gelu_gradient(points)
        c = with_gaps(p.exact * slope, 1.13 * p.bound + 2 * gelu_error * np.abs(p.exact), kind)
        yield gemm(p, [c, no_array(), no_array(), no_array(), u, no_array(), no_array()], label="gelu gradient")

        rows_per_gate, gate_stride = 5, n + 2
        gates = input_array(rng.standard_normal((-(-m // rows_per_gate), gate_stride)), bias.kind)
        gate = gates.values[np.arange(m) // rows_per_gate, :n]
        residual, _ = stored(rng.standard_normal((m, n)), "f32", by_columns=False)
        added = without_gaps(residual, m, n)
        before = with_gaps(sums, bound, kind)
        bound = np.abs(gate) * (bound + 2 * unit * np.abs(sums)) + 2 * unit * np.abs(added)
        c = with_gaps(gate * sums + added, bound, kind)
        arrays = [c, no_array(), bias, before, no_array(), gates, residual]
        yield gemm(p, arrays, gate=(gate_stride, rows_per_gate), label="bias, gate, residual")


def without_gaps(array: Array, rows: int, columns: int) -> Float:
    wide = np.append(array.values, np.zeros(GAP)).reshape(rows, columns + GAP)
    return wide[:, :columns]


def rejected_products(rng: np.random.Generator) -> Iterator[Case]:
    p = Product(rng, 4, 4, 4, "forward", TYPES[0])
    c = with_gaps(p.exact, p.bound, "f32")
    good = gemm(p, [c, *[no_array()] * 6])
    yield Case("gemm", [-1, *good.ints[1:]], good.arrays, status=-1, label="negative m")
    yield Case("gemm", good.ints, [no_array(), *good.arrays[1:]], status=-1, label="no a")
    yield Case("gemm", [*good.ints[:8], 9, *good.ints[9:]], good.arrays, status=-1, label="no such arithmetic")


ATTENTION: list[tuple[tuple[int, int, int, int], Kind, Kind]] = [
    ((1, 1, 1, 1), "f32", "f32"),
    ((2, 5, 1, 3), "f32", "f32"),
    ((1, 64, 2, 64), "f32", "f32"),
    ((1, 70, 1, 72), "f32", "f32"),
    ((1, 130, 1, 16), "f32", "f32"),
    ((1, 64, 2, 64), "bf16", "bf16"),
    ((1, 67, 1, 72), "bf16", "bf16"),
    ((1, 33, 3, 20), "f32", "bf16"),
    ((1, 17, 2, 8), "bf16", "f32"),
]


def attention(rng: np.random.Generator) -> Iterator[Case]:
    for (n, t, h, k), kind, compute in ATTENTION:
        yield from attention_pair(rng, (n, t, h, k), kind, compute)


def attention_pair(
    rng: np.random.Generator, shape: tuple[int, int, int, int], kind: Kind, compute: Kind
) -> Iterator[Case]:
    n, t, h, k = shape
    ints, scale = [n, t, h, k, COMPUTE[compute]], k**-0.5
    extra = ROUNDOFF["bf16"] if compute == "bf16" else 0.0  # rounding of each operand of a product
    packed = input_array(rng.standard_normal((n, t, 3, h, k)), kind)
    q, key, v = np.moveaxis(packed.values, (2, 3), (0, 2))  # (n, h, t, k)
    score_terms = (k + 4) * ROUNDOFF["f32"] + (2 * extra if kind == "f32" else 0)
    p, p_error, (out, out_bound), lse = attention_results(q, key, v, scale, score_terms, extra)
    results = [output(token_major(out), token_major(out_bound), kind), output(*lse, "f32")]
    yield Case("attention_forward", ints, [packed, *results])

    dout_stored, out_stored = input_array(rng.standard_normal((n, t, h, k)), kind), input_array(token_major(out), kind)
    dout, o = token_major(dout_stored.values), token_major(out_stored.values)
    gradients = attention_gradients(q, key, v, dout, o, p, p_error, scale, t, extra)
    expected, bound = (
        np.moveaxis(np.stack(x), (0, 2), (2, 3)) for x in zip(*gradients, strict=True)
    )  # (n, t, 3, h, k)
    arrays = [dout_stored, packed, out_stored, input_array(lse[0], "f32"), output(expected, bound, kind)]
    yield Case("attention_backward", ints, arrays)


def attention_results(
    q: Float, key: Float, v: Float, scale: float, score_terms: float, extra: float, mask: Float | None = None
) -> tuple[Float, Float, tuple[Float, Float], tuple[Float, Float]]:
    """Return probabilities, their relative error, and out and lse with their bounds, for heads (n, h, tokens, k)."""
    unit, keys = ROUNDOFF["f32"], key.shape[2]
    scores = q @ key.swapaxes(2, 3) * scale
    if mask is not None:
        scores = np.where(mask > 0, scores, -np.inf)
    sizes = (np.abs(q) @ np.abs(key).swapaxes(2, 3) * scale).max(3, keepdims=True)
    top = scores.max(3, keepdims=True)
    lse = np.log(np.exp(scores - top).sum(3)) + top[..., 0]  # (n, h, t)
    p = np.exp(scores - lse[..., None])
    # Relative error of a probability: from its exponent, exp, the row's sum and its own rounding.
    score_error = score_terms * sizes + 8 * unit * (1 + np.abs(top))
    p_error = 2 * score_error + (keys + 8) * unit + extra
    out_bound = (p_error + keys * unit + extra) * (p @ np.abs(v))
    return p, p_error, (p @ v, out_bound), (lse, 2 * score_error[..., 0] + (keys + 8) * unit)


def attention_gradients(
    q: Float, key: Float, v: Float, dout: Float, out: Float, p: Float, p_error: Float, scale: float, terms: int, extra: float
) -> list[tuple[Float, Float]]:  # fmt: skip
    """Return the gradients of q, key and v with their bounds, for sums of `terms` terms.

    delta uses the stored out, so the expected value includes its rounding. Each product rounds its operands once more.
    """
    unit, (t, k) = ROUNDOFF["f32"], q.shape[2:]
    dp, dp_size = dout @ v.swapaxes(2, 3), np.abs(dout) @ np.abs(v).swapaxes(2, 3)
    delta, delta_size = (dout * out).sum(3, keepdims=True), (np.abs(dout) * np.abs(out)).sum(3, keepdims=True)
    ds = p * (dp - delta)
    weighted = (p_error + (k + 4) * unit + terms * unit + 5 * extra) * p * (dp_size + delta_size)
    return [
        (ds @ key * scale, weighted @ np.abs(key) * scale),
        (ds.swapaxes(2, 3) @ q * scale, weighted.swapaxes(2, 3) @ np.abs(q) * scale),
        (p.swapaxes(2, 3) @ dout, ((p_error + t * unit + 2 * extra) * p).swapaxes(2, 3) @ np.abs(dout)),
    ]


def token_major(x: Float) -> Float:
    """Exchange heads and tokens of (n, h, t, k)."""
    return np.moveaxis(x, 1, 2)


def matrix_cases() -> list[Case]:
    rng = np.random.default_rng(3)
    groups = (
        plain_products,
        single_rows_and_columns,
        products_of_many_threads,
        accumulated_products,
        products_with_epilogues,
        rejected_products,
        attention,
    )
    return [case for group in groups for case in group(rng)]
