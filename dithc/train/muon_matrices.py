"""Matrices of a DiT that Muon updates, their owners, and their distribution over ranks: pure arithmetic.

R rows, C columns of a matrix.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from dithc.engine.comm import traffic

# Weights of each block that Muon updates, as the number of stacked matrices of equal height. This is the only place of
# the rule.
# They are the linear layers between tokens. q, k and v are three maps that share a product, so each is a matrix, and so
# are a gate and the gated features. A single orthogonal factor of the stack would couple the parts: its singular values
# are unrelated to those of the parts, and a part with small gradients (k next to v) would keep a small update.
# AdamW updates all other weights: biases, the network's ends (embeddings, final layer; Jordan et al. 2024), and every
# modulation. Inputs of a modulation are conditions, one per image and close to a curve of times, so that most
# directions of its gradient are noise, which an orthogonal update would amplify. With Muon on modulations the held-out
# loss is 1.164 after 160 steps of the run `flow` of config/experiments/quality.yaml, without it 1.125, with AdamW
# 1.137.
HIDDEN = {
    "attn.qkv.weight": 3,
    "attn.proj.weight": 1,
    "mlp.fc1.weight": 1,
    "mlp.gate_up.weight": 2,
    "mlp.fc2.weight": 1,
}


@dataclass(frozen=True)
class MuonMatrix:
    """Matrix `number` of `count` matrices (R, C) in the named weight."""

    name: str
    number: int
    count: int
    rows: int
    columns: int

    def __str__(self) -> str:
        return self.name if self.count == 1 else f"{self.name}[{self.number}]"

    @property
    def size(self) -> int:
        return self.rows * self.columns

    @property
    def cost(self) -> int:
        """Multiply-adds per iteration of Newton-Schulz, at most: wide fp32 matrices need fewer."""
        short, long = sorted((self.rows, self.columns))
        return short * short * (2 * long + short)

    @property
    def lines(self) -> slice:
        """Rows of the matrix in the weight."""
        return slice(self.number * self.rows, (self.number + 1) * self.rows)


@dataclass(frozen=True)
class MatrixPart:
    """A rank's part of a matrix: `count` rows (dim 0), columns (1) or flattened elements (None) from `start`.

    `local` is its position along the first dimension of the rank's tensor.
    """

    dim: int | None
    start: int
    count: int
    local: slice

    def select(self, full: Tensor) -> Tensor:
        """Return the part of a complete matrix, as a view."""
        if self.dim is None:
            return full.view(-1)[self.start : self.start + self.count]
        return full.narrow(self.dim, self.start, self.count)


@dataclass(frozen=True)
class MatrixOwnership:
    """Distribution of the matrices over the `size` ranks of `group`; in this class every rank holds all matrices."""

    rank: int = 0
    size: int = 1
    span: int = 1  # number of neighboring ranks, from a multiple of it, that together hold all parts
    group: Any = None  # of torch.distributed; None for all ranks
    # counter of the resulting traffic
    meter: traffic.CommMeter = field(default_factory=traffic.CommMeter, compare=False)

    def shape(self, name: str, local: Tensor) -> tuple[int, ...]:
        """Return the shape of the complete weight, given this rank's part."""
        return tuple(local.shape)

    def part(self, matrix: MuonMatrix, rank: int) -> MatrixPart | None:
        """Return a rank's part of a matrix, or None."""
        return MatrixPart(0, 0, matrix.rows, matrix.lines)

    def parts(self, matrix: MuonMatrix) -> dict[int, MatrixPart]:
        """Return the parts of a matrix by rank, without empty parts."""
        pairs = ((rank, self.part(matrix, rank)) for rank in range(self.size))
        return {rank: part for rank, part in pairs if part is not None}

    def sources(self, matrix: MuonMatrix, owner: int, parts: Mapping[int, MatrixPart]) -> list[int]:
        """Return the ranks whose parts form the matrix at its owner. Returns only the owner if it has all elements."""
        full = {None: matrix.size, 0: matrix.rows, 1: matrix.columns}
        if owner in parts and parts[owner].count == full[parts[owner].dim]:
            return [owner]
        first = owner // self.span * self.span
        return [rank for rank in range(first, first + self.span) if rank in parts]


def matrices_of(shapes: Mapping[str, tuple[int, ...]]) -> list[MuonMatrix]:
    """Return the matrices among complete weights, by name."""
    matrices = []
    for name, shape in shapes.items():
        part, _, layer = name.partition(".")
        _, _, kind = layer.partition(".")
        count = HIDDEN.get(kind, 0) if part == "blocks" else 0
        matrices += [MuonMatrix(name, number, count, shape[0] // count, shape[1]) for number in range(count)]
    return matrices


def owners_of(matrices: Iterable[MuonMatrix], ranks: int) -> dict[MuonMatrix, int]:
    """Assign each matrix to the least loaded rank, the most expensive first. Returns them in processing order."""
    costs, owners = [0] * ranks, dict[MuonMatrix, int]()
    for matrix in sorted(matrices, key=lambda matrix: -matrix.cost):
        owners[matrix] = costs.index(min(costs))
        costs[owners[matrix]] += matrix.cost
    return owners
