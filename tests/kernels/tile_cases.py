"""Cases of matrix products and attention around the limits of tile units.

They cover edges of 16 and 32 rows, columns and depth, rows read in place, fp32 in bf16 parts and the fallback, and
special numbers.
"""

import itertools
from collections.abc import Iterator

import numpy as np

from tests.kernels import third_party_cases
from tests.kernels.cases import ROUNDOFF, Case, Float, Kind, decode, encode, input_array, no_array, output
from tests.kernels.matrix_cases import (
    LAYOUTS,
    TYPES,
    Product,
    attention_pair,
    gelu,
    gemm,
    stored,
    with_gaps,
    without_gaps,
)

Types = tuple[Kind, Kind, Kind, Kind]
F32, BF16 = TYPES[0], TYPES[1:4]
PACKED = (0, 0, 0, 1, 0, 0)  # explicit cuts, so that few rows are packed too
COLUMNS, DEPTHS = (1, 15, 16, 17, 31, 32, 33, 47, 49, 65), (1, 2, 3, 31, 32, 33, 63, 64, 65, 97)
# Rows, columns, depth: at least 64 each, around tiles, and depths of several blocks.
SPLIT_SHAPES = [(64, 64, 64), (65, 79, 97), (97, 64, 383), (64, 129, 385), (161, 81, 70), (80, 96, 801)]
SMALLEST_NORMAL, LARGEST = 2.0**-126, float(np.finfo(np.float32).max)
ODD = {"inf": np.inf, "-inf": -np.inf, "nan": np.nan, "denormal": 1e-40, "rounds up to inf": 3.3961776e38, "-0": -0.0}


def with_split_bound(p: Product) -> Product:
    """Set the bound of hc_gemm (kernels/include/hcops.h) if AMX sums an fp32 product from bf16 parts."""
    if p.compute == "f32" and min(p.m, p.n, p.k) >= 64:
        p.bound = p.bound * (6 * p.k + 8) / (p.k + 4) + 2.0**-123 * p.k * 20
    return p


def edges(rng: np.random.Generator) -> Iterator[Case]:
    """Yield 1 to 40 rows, with and without explicit packing."""
    kinds = itertools.cycle(itertools.product(TYPES[:5], LAYOUTS))
    for m, blocking, (n, k) in itertools.product(range(1, 41), ((0,) * 6, PACKED), zip(COLUMNS, DEPTHS, strict=True)):
        types, layout = next(kinds)
        p = Product(rng, m, n, DEPTHS[(DEPTHS.index(k) + m) % len(DEPTHS)], layout, types)
        sums = output(p.row_sum, p.row_sum_bound, "f32")
        yield gemm(
            with_split_bound(p),
            [with_gaps(p.exact, p.bound, p.c_kind), sums, *[no_array()] * 5],
            blocking=blocking,
            label=layout,
        )


def unpacked_rows(rng: np.random.Generator) -> Iterator[Case]:
    """Yield bf16 rows that need no packing, larger rows that do, and sums that the kernel rounds itself."""
    for m, k, types in itertools.product((16, 33, 48, 80), (32, 64, 95, 96), BF16):
        p = Product(rng, m, 50, k, "forward", types)
        bias = input_array(rng.standard_normal(p.n), "f32")
        bound = p.bound + 2 * ROUNDOFF["f32"] * (np.abs(p.exact) + np.abs(bias.values))
        yield gemm(
            p, [with_gaps(p.exact + bias.values, bound, p.c_kind), no_array(), bias, *[no_array()] * 4], blocking=PACKED
        )


def identical_rows(rng: np.random.Generator) -> Iterator[Case]:
    """Yield a stride of 0 between rows of A."""
    for m, types in itertools.product((16, 64, 70), TYPES[:5]):
        p = with_split_bound(Product(rng, m, 70, 64, "dx", types))
        assert p.a.stored is not None
        p.a.stored, p.a_strides = p.a.stored[: p.k], (0, 1)
        row = np.tile(p.a.values, (m, 1))
        b = without_gaps(p.b, p.k, p.n)
        if p.compute == "bf16":
            row, b = (decode(encode(x, "bf16"), "bf16") for x in (row, b))
        bound = (6 * p.k + 8) * ROUNDOFF["f32"] * (np.abs(row) @ np.abs(b))
        yield gemm(p, [with_gaps(row @ b, bound, p.c_kind), *[no_array()] * 6], blocking=PACKED, label="one row")


def parts(rng: np.random.Generator) -> Iterator[Case]:
    types: tuple[Types, ...] = (F32, ("bf16", "f32", "f32", "f32"), ("f32", "bf16", "bf16", "f32"))
    for shape, layout, kinds in itertools.product(SPLIT_SHAPES, LAYOUTS, types):
        p = with_split_bound(Product(rng, *shape, layout, kinds))
        sums = output(p.row_sum, p.row_sum_bound, "f32")
        yield gemm(p, [with_gaps(p.exact, p.bound, p.c_kind), sums, *[no_array()] * 5], label=layout)


def deep_products(rng: np.random.Generator) -> Iterator[Case]:
    """Yield depths of several blocks, with default and explicit cuts, with and without threads and addition to C."""
    for types, layout, accumulate, blocking in itertools.product(
        (F32, *BF16[1:]), ("dw", "forward"), (0, 1), ((0,) * 6, (40, 40, 77, 1, 0, 0), (1, 1, 2000, 0, 1, 0))
    ):
        p = with_split_bound(Product(rng, 70, 67, 1600, layout, types))
        before = rng.standard_normal((p.m, p.n)).astype(np.float32).astype(np.float64)
        bound = p.bound + 60 * ROUNDOFF["f32"] * np.abs(before) * accumulate
        c = with_gaps(p.exact + before * accumulate, bound, p.c_kind, before)
        yield gemm(p, [c, *[no_array()] * 6], accumulate=accumulate, blocking=blocking, label=layout)


def epilogues(rng: np.random.Generator) -> Iterator[Case]:
    unit = ROUNDOFF["f32"]
    for shape, types in itertools.product([(65, 97, 70), (96, 64, 400)], (F32, ("f32", "f32", "bf16", "f32"), BF16[0])):
        p = with_split_bound(Product(rng, *shape, "forward", types))
        bias, kind = input_array(rng.standard_normal(p.n), "f32"), p.c_kind
        sums, bound = p.exact + bias.values, p.bound + 2 * unit * np.abs(bias.values)
        after = with_gaps(gelu(sums), 1.13 * bound + 16 * unit * (np.abs(sums) + 1), kind)
        yield gemm(p, [after, no_array(), bias, with_gaps(sums, bound, kind), *[no_array()] * 3], gelu=1, label="gelu")
        residual, _ = stored(rng.standard_normal((p.m, p.n)), "f32", by_columns=False)
        added = without_gaps(residual, p.m, p.n)
        c = with_gaps(sums + added, bound + 2 * unit * (np.abs(sums) + np.abs(added)), kind)
        yield gemm(p, [c, no_array(), bias, *[no_array()] * 3, residual], label="residual")


class Odd(Product):
    """Product with special numbers: in A at the first, and in B at the last position."""

    def put(self, in_a: float | None, in_b: float | None) -> None:
        operands = []
        for array, strides, shape, value, index in (
            (self.a, self.a_strides, (self.m, self.k), in_a, (0, 0)),
            (self.b, self.b_strides, (self.k, self.n), in_b, (self.k - 1, self.n - 1)),
        ):
            assert array.stored is not None
            if value is not None:
                array.stored[index[0] * strides[0] + index[1] * strides[1]] = encode([value], array.kind)[0]
            offsets = np.arange(shape[0])[:, None] * strides[0] + np.arange(shape[1]) * strides[1]
            x: Float = decode(array.stored[offsets], array.kind)
            operands.append(decode(encode(x, "bf16"), "bf16") if self.compute == "bf16" else x)
        a, b = operands
        with np.errstate(invalid="ignore"):
            self.exact = a @ b
            sizes = np.abs(a) @ np.abs(b)
            bound = np.where(
                sizes < LARGEST / 2, (6 * self.k + 8) * ROUNDOFF["f32"] * sizes, np.inf
            )  # a sum may overflow
        # Denormals may count as zero, of operands and of sums.
        largest = max(float(np.abs(x[np.isfinite(x)]).max()) for x in operands)
        bound = bound + self.k * SMALLEST_NORMAL * (8 + 8 * largest)
        self.bound = np.where(np.isfinite(self.exact), bound, 0)


def odd_numbers(rng: np.random.Generator) -> Iterator[Case]:
    """Yield numbers that must affect only their row or column."""
    shapes = [(70, 66, 65), (37, 45, 70), (5, 18, 33)]
    for shape, layout, types, (name, value) in itertools.product(shapes, LAYOUTS, (F32, *BF16), ODD.items()):
        for in_a, in_b in ((value, None), (None, value), (value, -value)):
            p = Odd(rng, *shape, layout, types)
            p.put(in_a, in_b)
            yield gemm(p, [with_gaps(p.exact, p.bound, p.c_kind), *[no_array()] * 6], label=f"{layout} {name}")


def far_numbers(rng: np.random.Generator) -> Iterator[Case]:
    """Yield tiny or huge operands: within, at the ends of, and beyond the range of bf16 parts."""
    exponents = [(-60, -30), (-45, -45), (-99, 9), (-120, 20), (60, 60), (60, -120), (100, -100), (124, -124), (62, 56)]
    for (of_a, of_b), types, layout in itertools.product(exponents, (F32, BF16[2]), ("forward", "dw")):
        p = Odd(rng, 66, 65, 70, layout, types)
        for array, exponent in ((p.a, of_a), (p.b, of_b)):
            assert array.stored is not None
            array.stored *= np.float32(2.0**exponent)
        p.put(None, None)
        yield gemm(p, [with_gaps(p.exact, p.bound, p.c_kind), *[no_array()] * 6], label=f"2^{of_a}, 2^{of_b}")


def attention(rng: np.random.Generator) -> Iterator[Case]:
    """Yield tokens and head widths around tiles, and remainders of up to 8, which have separate products."""
    shapes = [
        (1, 64, 1, 40),
        (2, 65, 1, 48),
        (1, 95, 2, 64),
        (1, 97, 1, 65),
        (1, 130, 1, 72),
        (1, 257, 1, 41),
        (1, 70, 1, 73),
    ]
    for shape, kind in itertools.product(shapes, ("f32", "bf16")):
        yield from attention_pair(rng, shape, kind, kind)
    for heads, causal in itertools.product(
        [(1, 70, 130, 2, 1, 40), (1, 130, 75, 2, 2, 64), (1, 64, 64, 1, 1, 100)], (0, 1)
    ):
        for kind in ("f32", "bf16"):
            yield from third_party_cases.attention_pair(rng, heads, causal, kind)


def tile_cases() -> list[Case]:
    rng = np.random.default_rng(7)
    groups = (
        edges,
        unpacked_rows,
        identical_rows,
        parts,
        deep_products,
        epilogues,
        odd_numbers,
        far_numbers,
        attention,
    )
    return [case for group in groups for case in group(rng)]
