"""ZeRO-1 (Rajbhandari et al. 2020, section 5.1): each rank keeps and updates moments and average of a share of the
weights. ZeRO-2 (section 5.2): each rank also keeps the summed gradients of its share only. With sharding `node`, the ranks
of each node share the state; gradients are summed over all nodes, and weights are sent within a node.

A share is one run of each bucket of the flat weight buffer, and therefore at most one run of each parameter: a
one-dimensional tensor by parameter name. Elementwise operations (AdamW, average) are bitwise equal to unsharded ones.
If weights are sent as bf16, all ranks compute with rounded weights, and the owner of a share keeps, updates, averages
and saves the exact weights.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dithc.config import training
from dithc.core.tensor_files import TensorPiece
from dithc.engine import hcops
from dithc.engine.comm import Reducer, ShardedParameters
from dithc.train.muon_matrices import MatrixOwnership, MatrixPart, MuonMatrix


@dataclass(frozen=True)
class ElementRange:
    """Elements start..start + count of a flattened parameter of this shape; the number is the reducer's."""

    number: int
    shape: tuple[int, ...]
    start: int
    count: int


class ShardedState:
    """One rank's share, and the distribution of updated weights."""

    def __init__(self, model: nn.Module, *, sharding: training.Sharding, group: Any = None, owners: Any = None) -> None:
        """Prepare the gradient exchange; `create_shards` assigns the shards.

        `group` sums the gradients, None for all ranks; `owners` share the state, None for the group.
        """
        self._model, self._sharding, self.owners = model, sharding, owners or group
        # Leaves each rank its share of the gradients.
        releases = sharding == "zero2"
        self.reducer = Reducer(model.parameters(), group=group, scatter=True, owners=owners, releases=releases)
        # Whether this rank keeps unshared state: averages of untrained tensors, the update count.
        self.is_first = self.reducer.rank == 0
        self.runs: dict[str, ElementRange] = {}  # of this rank, by parameter name
        self.names: list[list[str]] = []  # per bucket, in the order in which the forward pass needs them
        self.trained = frozenset(name for name, value in model.named_parameters() if value.requires_grad)
        self._numbers: dict[str, int] = {}
        self._slices: dict[str, slice] = {}
        self._local: dict[str, Tensor] = {}

    def create_shards(self, *, parts: Iterable[nn.Module], early: Iterable[Tensor] = ()) -> None:
        """Move the weights into one buffer, in gradient order, and assign the shares; collective.

        `parts` are submodules called before their parameters are read; `early` are parameters read without a call.
        """
        reducer = self.reducer
        self._weights = ShardedParameters(self._model, reducer, parts=parts, early=early, owners=self.owners)
        name_of = {id(value): name for name, value in self._model.named_parameters()}
        self._numbers = {name_of[id(parameter)]: number for number, parameter in enumerate(reducer.parameters)}
        for index, bucket in reversed([*enumerate(reducer.arrangement.buckets)]):
            share, local_share = bucket.share(reducer.rank, reducer.size), self._weights.share(index)
            self.names.append([])
            for number in bucket.members:
                name = name_of[id(reducer.parameters[number])]
                if (run := self.run_of(name, reducer.rank)) is not None:
                    first = reducer.arrangement.starts[number] + run.start
                    self.runs[name] = run
                    self._slices[name] = slice(first, first + run.count)
                    self._local[name] = local_share[first - share.start : first - share.start + run.count]
                    self.names[-1].append(name)

    def run_of(self, name: str, rank: int) -> ElementRange | None:
        """Return the elements of a parameter in a rank's share; None if the share has none."""
        number, arrangement = self._numbers[name], self.reducer.arrangement
        parameter, begin = self.reducer.parameters[number], arrangement.starts[number]
        share = arrangement.bucket_of(number).share(rank, self.reducer.size)
        first, last = max(share.start, begin), min(share.stop, begin + parameter.numel())
        return ElementRange(number, tuple(parameter.shape), first - begin, last - first) if first < last else None

    def __str__(self) -> str:
        count, size = sum(run.count for run in self.runs.values()), self.reducer.size
        wire = "bf16, and all ranks compute with rounded weights" if self.is_rounded else "fp32"
        return (
            f"{self._sharding}: {size} ranks, this one updates {count:,} of {self._weights.buffer.numel():,} weights (padding "
            f"included); weights are sent in {wire}"
        )

    @property
    def is_rounded(self) -> bool:
        """True if the model holds bf16-rounded weights, and this object the exact weights."""
        return self._weights.shares is not None

    def weights(self) -> dict[str, Tensor]:
        """Return this rank's runs of the exact weights, as views of their buffer."""
        return dict(self._local)

    def load_from_module(self) -> None:
        """Use the model's current weights, complete on every rank, as the exact weights."""
        self._weights.load_from_module()

    def weight_pieces(self, state: Mapping[str, Tensor]) -> list[TensorPiece]:
        """Return this rank's pieces of the exact weights, from the model's state dictionary."""
        if not self.is_rounded:
            return [TensorPiece.whole(name, value) for name, value in state.items()]
        return [self.piece(name, self._local.get(name, value)) for name, value in state.items() if self.keeps(name)]

    def gradients(self) -> dict[str, Tensor]:
        """Return this rank's runs of the summed gradients. Omits parameters without a gradient on any rank."""
        used = self.reducer.used
        return {name: self.reducer.buffer[self._slices[name]] for name, run in self.runs.items() if used[run.number]}

    @property
    def used(self) -> set[str]:
        """Names of the parameters with a gradient on any rank."""
        return {name for name, number in self._numbers.items() if self.reducer.used[number]}

    def norm(self, gradients: Mapping[str, Tensor]) -> float:
        """Return the norm over the runs of all ranks, equal on each rank. Squares are summed in rank order."""
        local = torch.tensor([hcops.optimizer.sum_of_squares(list(gradients.values()))], dtype=torch.float64)
        gathered = local.new_empty(self.reducer.size)
        dist.all_gather_single(gathered, local, group=self.owners)
        return math.sqrt(sum(gathered.tolist()))

    def send(self, index: int) -> None:
        """Send the weights of `names[index]` to other ranks. `wait_for_weights`, or the use of a layer, waits for them."""
        self._weights.send(len(self.names) - 1 - index)

    def wait_for_weights(self) -> None:
        """Wait until the weights of all ranks are complete here."""
        self._weights.wait()

    def wait_for(self, parameters: Iterable[Tensor]) -> None:
        """Wait until these weights are complete here."""
        self._weights.wait_for(parameters)

    def keeps(self, name: str) -> bool:
        """Return whether this rank has a part of the tensors of this name."""
        return name in self.runs or (self.is_first and name not in self.trained)

    def cut(self, name: str, whole: Tensor) -> Tensor:
        """Return this rank's run of a complete tensor of a parameter's shape; the complete tensor if untrained."""
        run = self.runs.get(name)
        return whole if run is None else whole.reshape(-1)[run.start : run.start + run.count]

    def piece(self, name: str, values: Tensor, *, prefix: str = "") -> TensorPiece:
        """Return this rank's piece of a tensor, cut as the named parameter."""
        run = self.runs.get(name)
        if run is None:
            return TensorPiece.whole(prefix + name, values)
        return TensorPiece(name=prefix + name, values=values, shape=run.shape, start=run.start)


@dataclass(frozen=True)
class RunOwnership(MatrixOwnership):
    """Distribution in which each rank has at most one run of the elements of a matrix."""

    sharded: ShardedState = field(kw_only=True)

    def part(self, matrix: MuonMatrix, rank: int) -> MatrixPart | None:
        """Return the intersection of a rank's run and the matrix."""
        run, begin = self.sharded.run_of(matrix.name, rank), matrix.number * matrix.size
        if run is None:
            return None
        first, last = max(run.start, begin), min(run.start + run.count, begin + matrix.size)
        local = slice(first - run.start, last - run.start)
        return MatrixPart(None, first - begin, last - first, local) if first < last else None
