"""Tensor parallelism of a DiT: torch's `parallelize_module`, with `hcops` operators on the shards.

Column-parallel layers (qkv by heads, the first layer of the MLP) keep rows of their weight, row-parallel layers (proj,
fc2) columns. DTensor sums outputs and input gradients by Partial -> Replicate (Shoeybi et al. 2019, Megatron-LM,
section 3). All other layers are replicated. Norms of queries and keys are replicated over sharded heads, so that their
gradients are summed.
N batch, T tokens, D width, F output features of a layer, P ranks of a group.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

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


def shard_layers(model: nn.Module, mesh: DeviceMesh) -> TensorShards:
    """Keep this rank's share of every block of a DiT that is equal on all ranks of `mesh`; UserError if impossible."""
    assert isinstance(model, DiT), "the plan below contains the layers of a DiT"
    _check(model, mesh.size())
    shards = TensorShards(mesh.get_group(), mesh.get_local_rank(), mesh.size())
    whole = {id(value): name for name, value in model.named_parameters()}
    column, row = partial(ColumnParallelLinear, shards, whole), partial(RowParallelLinear, shards, whole)
    gated = model.config.mlp == "swiglu"
    plan: dict[str, ParallelStyle] = {
        "blocks.*.attn": HeadParallelAttention(),
        "blocks.*.attn.qkv": column(parts=PACKED),
        "blocks.*.attn.proj": row(),
        "blocks.*.mlp.fc2": row(),
        **({"blocks.*.mlp.gate_up": column(parts=GATED)} if gated else {"blocks.*.mlp.fc1": column()}),
    }
    parallelize_module(model, mesh, plan)
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


class HeadParallelAttention(ParallelStyle):
    """Attention over this rank's heads only."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        attention: Any = module
        attention.num_heads //= device_mesh.size()
        for weight in (attention.q_norm, attention.k_norm):
            if weight is not None and weight.requires_grad:
                weight.register_hook(partial(_sum_over_ranks, device_mesh.get_group()))
        return module


class _ShardedLinear(ParallelStyle):
    """Replacement of a linear layer's weights by shards; `names` of parameters by identity, `parts` per weight."""

    def __init__(self, shards: TensorShards, names: Mapping[int, str], parts: int = 1) -> None:
        super().__init__()
        self.shards, self.names, self.parts = shards, names, parts

    def _replace_by_shard(self, layer: nn.Module, name: str, cut: TensorSplit) -> None:
        whole = getattr(layer, name)
        self.shards.cuts[self.names[id(whole)]] = cut
        shard = cut.shard(whole.detach(), rank=self.shards.rank, size=self.shards.size)
        setattr(layer, name, nn.Parameter(shard, requires_grad=whole.requires_grad))


class ColumnParallelLinear(_ShardedLinear):
    """Shard of the output features; the replicated input's gradient is summed over the ranks."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, nn.Linear)
        self._replace_by_shard(module, "weight", TensorSplit(0, self.parts))
        self._replace_by_shard(module, "bias", TensorSplit(0, self.parts))
        module.out_features //= self.shards.size
        module.register_forward_pre_hook(partial(_sum_input_gradient, device_mesh))
        return module


class RowParallelLinear(_ShardedLinear):
    """Shard of the input features; outputs are summed over the ranks before bias, gate and residual."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, nn.Linear)
        self._replace_by_shard(module, "weight", TensorSplit(1))
        module.in_features //= self.shards.size
        module.forward = partial(_row_forward, device_mesh, module)  # type: ignore[method-assign]
        return module


def _sum_input_gradient(mesh: DeviceMesh, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
    """Return the input; its gradient is summed over the ranks."""
    (x,) = inputs
    whole = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    return (whole.to_local(grad_placements=[Partial()]),)


def _sum_over_ranks(group: ProcessGroup, gradient: Tensor) -> Tensor:
    summed = gradient.clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(summed, group=group)
    return summed


def _row_forward(
    mesh: DeviceMesh, layer: nn.Linear, x: Tensor, *, gate: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    """x (N, T, D / P) -> (N, T, F), with gate (N, F) and residual (N, T, F) as in `hcops.linear`."""
    share = hcops.linear(x, layer.weight)  # (N, T, F)
    summed = DTensor.from_local(share, mesh, [Partial()], run_check=False).redistribute(placements=[Replicate()])
    y: Tensor = summed.to_local()  # (N, T, F)
    y = y + layer.bias.to(y.dtype)
    if gate is None or residual is None:
        return y
    return hcops.vector.gate_residual(residual, gate, y)
