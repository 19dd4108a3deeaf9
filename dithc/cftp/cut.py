"""Part of an operator's output that each core of each cluster computes: the rules of the C library as a pure function.

N images, T tokens, H heads. A linear layer has M = N * T rows, K input and F output features: Y (M, F) = X (M, K) W^T
with W (F, K).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dithc.cftp.partition import partition
from dithc.log import problem

# Shape of each operation:
#   linear, linear dx, linear dw    (M, K, F)
#   elementwise, optimizer          (elements,), for the optimizer over all tensors
#   tokens                          (N, T): adaLN, gate + residual
#   rows                            (rows,): softmax
#   attention                       (N, H, T)
Operation = Literal["linear", "linear dx", "linear dw", "elementwise", "tokens", "rows", "attention", "optimizer"]
Dimension = Literal["rows", "columns"]

# Elements or tokens per unit of work; the constants of kernels/array.h and kernels/activation/elementwise.c.
ELEMENTWISE_MULTIPLE, OPTIMIZER_MULTIPLE, TOKENS_OF_BLOCK = 1024, 16384, 32
NUM_DIMENSIONS: dict[Operation, int] = {
    "linear": 3,
    "linear dx": 3,
    "linear dw": 3,
    "elementwise": 1,
    "tokens": 2,
    "rows": 1,
    "attention": 3,
    "optimizer": 1,
}


@dataclass(frozen=True, kw_only=True)
class Part:
    """Part of an output computed by one core; its slices are empty if no work is left.

    Attributes:
        cluster: number of the core's cluster.
        core: number of the core within its cluster.
        rows: rows of C for a product; otherwise the flat part of the output: elements, tokens (N * T), rows, or queries
            (N * H * T).
        columns: columns of C for a product, otherwise `slice(0, 1)`.
    """

    cluster: int
    core: int
    rows: slice
    columns: slice


def cut(
    operation: Operation,
    shape: Sequence[int],
    *,
    cores: Sequence[int],
    dimension: Dimension = "rows",
    tile: tuple[int, int] = (1, 1),
    grid: tuple[int, int] | None = None,
) -> list[list[Part]]:
    """Partition an operation's output among clusters and their cores.

    Sizes need not be divisible. The output C of a product is partitioned among clusters along one dimension, and within
    a cluster into a grid of rectangles. All other outputs are flat units of work in order, distributed evenly over all
    cores, so that a cluster owns consecutive units. (The library leaves cores idle if an operation has less than 8 Ki
    elements per core. If clusters have separate memory nodes, its optimizer first partitions every tensor among them:
    `dithc.memory.place`.)

    Args:
        shape: see `Operation`.
        cores: number of cores of each cluster.
        dimension: dimension of a product that is partitioned among clusters. Rows of C are tokens forward and in dX,
            output features in dW (the paper's artifact). Columns are output features forward, input features in dX and
            dW (the paper's text).
        tile: rows and columns per kernel call; parts are multiples of them. For attention: queries per call and 1, or
            (0, 1) for complete heads as in the backward pass.
        grid: partition of a product's rows and columns within a cluster; None partitions along `dimension` only.

    Raises:
        UserError: a negative size, a wrong number of sizes, no cores, or a grid with more parts than cores in a
            cluster.
    """
    if len(shape) != NUM_DIMENSIONS[operation] or min(shape) < 0 or not cores or min(cores) < 1 or min(tile) < 0:
        raise problem(
            f"cut of {operation}",
            got=f"shape {tuple(shape)}, cores {tuple(cores)}, tile {tile}",
            expected=f"{NUM_DIMENSIONS[operation]} sizes of 0 or more, and at least 1 core per cluster",
            fix="correct the caller",
        )
    if operation in ("linear", "linear dx", "linear dw"):
        m, k, f = shape
        c = {"linear": (m, f), "linear dx": (m, k), "linear dw": (f, k)}[operation]
        return _cut_product(c, cores=cores, dimension=dimension, tile=tile, grid=grid)
    edges = _edges(operation, shape, sum(cores), tile)
    parts = iter([slice(start, stop) for start, stop in edges])
    return [
        [Part(cluster=cluster, core=core, rows=next(parts), columns=slice(0, 1)) for core in range(size)]
        for cluster, size in enumerate(cores)
    ]


def _cut_product(
    c: tuple[int, int],
    *,
    cores: Sequence[int],
    dimension: Dimension,
    tile: tuple[int, int],
    grid: tuple[int, int] | None,
) -> list[list[Part]]:
    smallest = min(cores)
    row_cuts, column_cuts = grid or ((smallest, 1) if dimension == "rows" else (1, smallest))
    if min(row_cuts, column_cuts) < 1 or row_cuts * column_cuts > smallest or min(tile) < 1:
        raise problem(
            "cut of a product",
            got=f"grid {(row_cuts, column_cuts)}, tile {tile}",
            expected=f"a grid of at most {smallest} part(s), the cores of the smallest cluster, and tiles of 1 or more",
            fix="correct the caller",
        )
    along = 0 if dimension == "rows" else 1
    shares = partition(c[along], len(cores), multiple=tile[along])
    whole = [slice(0, size) for size in c]
    cut_parts = []
    for cluster, (share, size) in enumerate(zip(shares, cores, strict=True)):
        rows, columns = (share, whole[1]) if along == 0 else (whole[0], share)
        row_parts, column_parts = _within(rows, row_cuts, tile[0]), _within(columns, column_cuts, tile[1])
        cells = [(row, column) for row in row_parts for column in column_parts]
        cells += [(slice(0, 0), slice(0, 0))] * (size - len(cells))
        cut_parts.append(
            [Part(cluster=cluster, core=core, rows=row, columns=column) for core, (row, column) in enumerate(cells)]
        )
    return cut_parts


def _within(outer: slice, parts: int, multiple: int) -> list[slice]:
    return [
        slice(outer.start + inner.start, outer.start + inner.stop)
        for inner in partition(outer.stop - outer.start, parts, multiple=multiple)
    ]


def _edges(operation: Operation, shape: Sequence[int], num_cores: int, tile: tuple[int, int]) -> list[tuple[int, int]]:
    """Return start and stop of each core's part of a flat output."""
    if operation in ("tokens", "attention"):
        groups, length = (shape[0], shape[1]) if operation == "tokens" else (shape[0] * shape[1], shape[2])
        block = TOKENS_OF_BLOCK if operation == "tokens" else tile[0] or max(1, length)
        blocks = -(-length // block)  # per image or head: a unit of work never spans two

        def position(unit: int) -> int:
            return unit // blocks * length + unit % blocks * block if blocks else 0

        units = partition(groups * blocks, num_cores)
        return [(position(part.start), position(part.stop)) for part in units]
    multiple = {"elementwise": ELEMENTWISE_MULTIPLE, "optimizer": OPTIMIZER_MULTIPLE}.get(operation, 1)
    return [(part.start, part.stop) for part in partition(shape[0], num_cores, multiple=multiple)]
