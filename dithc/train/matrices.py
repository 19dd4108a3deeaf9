"""Which weights of a DiT are matrices that Muon updates, which rank makes each update, and who holds what: pure arithmetic.

Legend: R rows, C columns of a matrix.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from dithc.comm import traffic

# The rule, and the only place of it: these weights of each block, as so many matrices of equal height one below the other. They
# are the linear layers between tokens. q, k and v are three maps that happen to share a product: each is a matrix, and so are a
# gate and what it gates. One factor of the stack, of orthogonal columns, would tie them together: its singular values say nothing
# of those of the parts, and a part of small gradients (k beside v) would keep a small update.
# What is not named here is AdamW's: biases, the network's ends (embeddings, the final layer; Jordan et al. 2024), and every
# modulation: its inputs are conditions, one an image and close to a curve of times, so that most directions of its gradient hold
# noise alone, which an orthogonal update makes as large as the rest (with it, a held-out loss of 1.164 after 160 steps of the run
# `flow` of config/experiments/quality.yaml; without it 1.125; AdamW 1.137).
HIDDEN = {
    "attn.qkv.weight": 3,
    "attn.proj.weight": 1,
    "mlp.fc1.weight": 1,
    "mlp.gate_up.weight": 2,
    "mlp.fc2.weight": 1,
}


@dataclass(frozen=True)
class Matrix:
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
        """Elements."""
        return self.rows * self.columns

    @property
    def cost(self) -> int:
        """Multiply-adds of an iteration of Newton-Schulz."""
        short, long = sorted((self.rows, self.columns))
        return short * short * (2 * long + short)

    @property
    def lines(self) -> slice:
        """Rows of the matrix in the weight."""
        return slice(self.number * self.rows, (self.number + 1) * self.rows)

    @property
    def weight_shape(self) -> tuple[int, int]:
        """Shape of the complete weight."""
        return self.count * self.rows, self.columns


@dataclass(frozen=True)
class Part:
    """A rank's part of a matrix: `count` rows (dim 0), columns (1) or flattened elements (None) from `start` on.

    `own` is its position along the first dimension of the rank's tensor.
    """

    dim: int | None
    start: int
    count: int
    own: slice

    def of(self, whole: Tensor) -> Tensor:
        """Return the part of a complete matrix, as a view."""
        if self.dim is None:
            return whole.view(-1)[self.start : self.start + self.count]
        return whole.narrow(self.dim, self.start, self.count)


@dataclass(frozen=True)
class Holding:
    """Distribution of the matrices over `size` ranks; here every rank holds everything.

    Attributes:
        span: neighboring ranks, from a multiple of it, that together hold everything.
        meter: counts the resulting traffic.
    """

    rank: int = 0
    size: int = 1
    span: int = 1
    meter: traffic.Meter = field(default_factory=traffic.Meter, compare=False)

    def shape(self, name: str, own: Tensor) -> tuple[int, ...]:
        """Return the shape of the complete weight, of which the model has this part."""
        return tuple(own.shape)

    def part(self, matrix: Matrix, rank: int) -> Part | None:
        """Return a rank's part of a matrix, or None."""
        return Part(0, 0, matrix.rows, matrix.lines)

    def parts(self, matrix: Matrix) -> dict[int, Part]:
        """Return the parts of a matrix by rank, without empty parts."""
        found = ((rank, self.part(matrix, rank)) for rank in range(self.size))
        return {rank: part for rank, part in found if part is not None}

    def sources(self, matrix: Matrix, owner: int, parts: Mapping[int, Part]) -> list[int]:
        """Return the ranks whose parts form the matrix at its owner: the owner only if it has everything."""
        whole = {None: matrix.size, 0: matrix.rows, 1: matrix.columns}
        if owner in parts and parts[owner].count == whole[parts[owner].dim]:
            return [owner]
        first = owner // self.span * self.span
        return [rank for rank in range(first, first + self.span) if rank in parts]


def matrices_of(shapes: Mapping[str, tuple[int, ...]]) -> list[Matrix]:
    """Return the matrices among complete weights, by name."""
    found = []
    for name, shape in shapes.items():
        part, _, layer = name.partition(".")
        _, _, kind = layer.partition(".")
        count = HIDDEN.get(kind, 0) if part == "blocks" else 0
        found += [Matrix(name, number, count, shape[0] // count, shape[1]) for number in range(count)]
    return found


def owners_of(matrices: Iterable[Matrix], ranks: int) -> dict[Matrix, int]:
    """Assign each matrix to one rank, the most expensive first, to the least loaded rank; returns them in processing order."""
    costs, owners = [0] * ranks, dict[Matrix, int]()
    for matrix in sorted(matrices, key=lambda matrix: -matrix.cost):
        owners[matrix] = costs.index(min(costs))
        costs[owners[matrix]] += matrix.cost
    return owners
