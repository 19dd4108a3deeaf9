"""Tensor parallelism of a DiT, with `hcops` operators on the shards (Shoeybi et al. 2019, Megatron-LM, section 3).

Column-parallel layers (qkv by heads, the first layer of the MLP) keep rows of their weight, row-parallel layers (proj,
fc2) columns. Outputs of row-parallel layers and input gradients of column-parallel layers are summed over the ranks. All
other layers are replicated. Norms of queries and keys are replicated over sharded heads, so that their gradients are summed.
N batch, T tokens, D width, F output features of a layer, P ranks of a group.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor, autograd, nn
from torch.distributed import ProcessGroup

from dithc.core.logging import user_error
from dithc.core.tensor_files import TensorPiece
from dithc.engine import hcops
from dithc.model import DiT
from dithc.train.muon_matrices import MatrixOwnership, MatrixPart, MuonMatrix
from dithc.train.state_placement import MOMENTS

PACKED = 3  # q, k and v are stacked in the rows of qkv's weight, each ordered by heads
GATED = 2  # gate and gated features are stacked in gate_up's weight; a rank has both of a hidden feature


@dataclass(frozen=True)
class TensorSplit:
    """Cut of a tensor: dimension `dim` consists of `parts` equal parts, each cut into P shards."""

    dim: int
    parts: int = 1

    def shard(self, whole: Tensor, *, rank: int, size: int) -> Tensor:
        """Return the shard of a rank, in separate memory."""
        split = torch.unflatten(whole, self.dim, (self.parts, size, -1)).select(self.dim + 1, rank)
        return torch.flatten(split, self.dim, self.dim + 1).clone(memory_format=torch.contiguous_format)

    def whole_shape(self, shard: Tensor, *, size: int) -> tuple[int, ...]:
        return tuple(length * (size if dim == self.dim else 1) for dim, length in enumerate(shard.shape))

    def pieces(self, name: str, shard: Tensor, *, rank: int, size: int) -> list[TensorPiece]:
        """Return a rank's share as pieces of the complete tensor, one per part."""
        length, shape = shard.shape[self.dim] // self.parts, self.whole_shape(shard, size=size)
        return [
            TensorPiece(
                name=name,
                values=shard.narrow(self.dim, part * length, length),
                shape=shape,
                dim=self.dim,
                start=(part * size + rank) * length,
            )
            for part in range(self.parts)
        ]


@dataclass
class TensorShards:
    """Sharding of a model over the `size` (P) ranks of a group.

    `cuts` contains the cut of each parameter and its moments by name; other parameters are replicated.
    """

    group: ProcessGroup
    rank: int
    size: int
    cuts: dict[str, TensorSplit] = field(default_factory=dict)

    def cut(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return _ShardView(tensors, self)

    def pieces(self, local: list[TensorPiece]) -> list[TensorPiece]:
        pieces = []
        for piece in local:
            cut = self.split_of(piece.name)
            pieces += [piece] if cut is None else cut.pieces(piece.name, piece.values, rank=self.rank, size=self.size)
        return pieces

    def split_of(self, name: str) -> TensorSplit | None:
        """Return the cut of a parameter or its moments; None if replicated."""
        moment, _, parameter = name.partition(".")
        return self.cuts.get(parameter if moment in MOMENTS else name)

    def sum_over_group(self, value: float) -> float:
        """Return the sum of a number over the ranks of the group, in fp64."""
        total = torch.tensor(value, dtype=torch.float64)
        distributed.all_reduce(total, group=self.group)
        return float(total)


@dataclass(frozen=True)
class ShardOwnership(MatrixOwnership):
    """Every row of ranks holds all matrices, with cut weights as shards."""

    shards: TensorShards = field(kw_only=True)

    def shape(self, name: str, local: Tensor) -> tuple[int, ...]:
        cut = self.shards.cuts.get(name)
        return tuple(local.shape) if cut is None else cut.whole_shape(local, size=self.shards.size)

    def part(self, matrix: MuonMatrix, rank: int) -> MatrixPart | None:
        """Return the rows or columns of a matrix, following the cut of its weight."""
        cut = self.shards.cuts.get(matrix.name)
        if cut is None:
            return super().part(matrix, rank)
        assert cut.parts == matrix.count, "matrices are cut equally"
        count = (matrix.rows, matrix.columns)[cut.dim] // self.shards.size
        lines = slice(matrix.number * count, (matrix.number + 1) * count) if cut.dim == 0 else matrix.lines
        return MatrixPart(cut.dim, rank % self.shards.size * count, count, lines)


class _ShardView(Mapping[str, Tensor]):
    def __init__(self, whole: Mapping[str, Tensor], shards: TensorShards) -> None:
        self._whole, self._shards = whole, shards

    def __getitem__(self, name: str) -> Tensor:
        cut = self._shards.split_of(name)
        whole = self._whole[name]
        return whole if cut is None else cut.shard(whole, rank=self._shards.rank, size=self._shards.size)

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole)

    def __len__(self) -> int:
        return len(self._whole)


def shard_layers(model: nn.Module, group: ProcessGroup) -> TensorShards:
    """Keep this rank's share of every block of a DiT that is equal on all ranks of `group`; UserError if impossible."""
    assert isinstance(model, DiT), "the layers below are those of a DiT"
    shards = TensorShards(group, distributed.get_rank(group), distributed.get_world_size(group))
    _check(model, shards.size)
    blocks: Any = model.blocks
    for number, block in enumerate(blocks):
        attention, mlp, name = block.attn, block.mlp, f"blocks.{number}"
        attention.num_heads //= shards.size  # attention over this rank's heads
        for weight in (attention.q_norm, attention.k_norm):
            if weight is not None and weight.requires_grad:
                weight.register_hook(partial(_sum_over_ranks, group))
        first, parts = ("gate_up", GATED) if model.config.mlp == "swiglu" else ("fc1", 1)
        _keep_rows(attention.qkv, f"{name}.attn.qkv", shards, parts=PACKED)
        _keep_columns(attention.proj, f"{name}.attn.proj", shards)
        _keep_rows(getattr(mlp, first), f"{name}.mlp.{first}", shards, parts=parts)
        _keep_columns(mlp.fc2, f"{name}.mlp.fc2", shards)
    return shards


def _check(model: DiT, size: int) -> None:
    for name, value in (("heads", model.config.num_heads), ("hidden features of the MLP", model.config.mlp_width)):
        if value % size:
            raise user_error(
                f"strategy dp+tp: {name} of the model",
                got=f"{value} for {size} ranks that share a layer",
                expected=f"a multiple of {size}",
                fix="use strategy dp or cftp, which do not require divisibility, or a divisible model",
            )


def _keep_rows(layer: nn.Linear, name: str, shards: TensorShards, *, parts: int = 1) -> None:
    """Keep a shard of the output features; the gradient of the replicated input is summed over the ranks."""
    for field_name in ("weight", "bias"):
        _replace_by_shard(layer, field_name, name, TensorSplit(0, parts), shards)
    layer.out_features //= shards.size
    layer.register_forward_pre_hook(partial(_sum_input_gradient, shards.group))


def _keep_columns(layer: nn.Linear, name: str, shards: TensorShards) -> None:
    """Keep a shard of the input features; outputs are summed over the ranks before bias, gate and residual."""
    _replace_by_shard(layer, "weight", name, TensorSplit(1), shards)
    layer.in_features //= shards.size
    layer.forward = partial(_row_forward, shards.group, layer)  # type: ignore[method-assign]


def _replace_by_shard(layer: nn.Linear, field_name: str, name: str, cut: TensorSplit, shards: TensorShards) -> None:
    whole = getattr(layer, field_name)
    shards.cuts[f"{name}.{field_name}"] = cut
    shard = cut.shard(whole.detach(), rank=shards.rank, size=shards.size)
    setattr(layer, field_name, nn.Parameter(shard, requires_grad=whole.requires_grad))


class _OutputSum(autograd.Function):
    """Sum over the ranks, in place; the gradient of each share is the gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, share: Tensor, group: ProcessGroup) -> Tensor:
        ctx.mark_dirty(share)
        distributed.all_reduce(share, group=group)
        return share

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _InputGradientSum(autograd.Function):
    """Identity; the gradient is summed over the ranks, in place, because only the following layer produces it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        distributed.all_reduce(gradient, group=ctx.group)
        return gradient, None


def _sum_input_gradient(group: ProcessGroup, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
    (x,) = inputs
    return (_InputGradientSum.apply(x, group),)  # type: ignore[no-untyped-call]


def _sum_over_ranks(group: ProcessGroup, gradient: Tensor) -> Tensor:
    summed = gradient.clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(summed, group=group)
    return summed


def _row_forward(
    group: ProcessGroup, layer: nn.Linear, x: Tensor, *, gate: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    """x (N, T, D / P) -> (N, T, F), with gate (N, F) and residual (N, T, F) as in `hcops.linear`."""
    share = hcops.linear(x, layer.weight)
    y: Tensor = _OutputSum.apply(share, group)  # type: ignore[no-untyped-call]
    y = y.add_(layer.bias.to(y.dtype))  # (N, T, F)
    if gate is None or residual is None:
        return y
    return hcops.vector.gate_residual(residual, gate, y)
