"""Muon (Jordan et al. 2024) for the matrices of a DiT, with updates of AdamW's size (Liu et al. 2025, section 2.2).

One rank owns each matrix: it keeps the momentum and computes the update. Other ranks send their parts of the gradient
and receive their parts of the update. Decay and average are elementwise, on each rank's own part. R rows, C columns of
a matrix.
"""

import math
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from dithc.core.tensor_files import TensorPiece
from dithc.engine import hcops
from dithc.train.muon_matrices import MatrixOwnership, MuonMatrix, matrices_of, owners_of
from dithc.train.state_placement import Allocator

MOMENTUM = "momentum"
# Typical root mean square of an AdamW update, to which updates of matrices are scaled (Liu et al. 2025, equation 4). An
# orthogonal (R, C) has a root mean square of sqrt(1 / max(R, C)).
RMS = 0.2


class MuonConfig(NamedTuple):
    """Decay of the momentum, Newton-Schulz iterations of an update in `dtype`, and the rate of AdamW over that of Muon."""

    momentum: float = 0.95
    newton_schulz_steps: int = 5
    dtype: torch.dtype = torch.float32
    adamw_ratio: float = 1.0


class Muon:
    """Momentum and updates of the matrices that this rank owns; `owners` is in processing order."""

    def __init__(
        self, named: Mapping[str, Tensor], config: MuonConfig, *, ownership: MatrixOwnership, allocate: Allocator
    ) -> None:
        """Prepare zero momenta for this rank's trained parameters."""
        self._config, self._ownership = config, ownership
        matrices = matrices_of({name: ownership.shape(name, value) for name, value in named.items()})
        self.owners = owners_of(matrices, ownership.size)
        self.names = frozenset(matrix.name for matrix in matrices)
        self._number = {matrix: number for number, matrix in enumerate(self.owners)}
        self._parts = {matrix: ownership.parts(matrix) for matrix in self.owners}
        self._sources = {m: ownership.sources(m, owner, self._parts[m]) for m, owner in self.owners.items()}
        self._momentum = {
            matrix: allocate(f"{MOMENTUM}.{matrix}", torch.empty(matrix.rows, matrix.columns, device="meta")).zero_()
            for matrix, owner in self.owners.items()
            if owner == ownership.rank
        }

    def __str__(self) -> str:
        weights, size = sum(matrix.size for matrix in self.owners), self._ownership.size
        return (
            f"Muon updates {len(self.owners)} matrices of {weights:,} weights in {self._config.dtype} products, AdamW the other "
            f"weights; this rank of {size} owns {len(self._momentum)} matrices"
        )

    @torch.no_grad()
    def replace(self, gradients: Mapping[str, Tensor], *, used: Collection[str], scale: float) -> None:
        """Replace this rank's part of each matrix gradient by its update; collective.

        Gradients are clipped by the factor `scale`. Weights that are not `used` by any rank stay unchanged.
        """
        rank = self._ownership.rank
        buffers = self._gather(gradients, used)
        works: list[Any] = [
            self._receive(self._part(matrix, gradients), owner, self._tag(matrix, is_update=True))
            for matrix, owner in self.owners.items()
            if matrix.name in used and owner != rank and rank in self._parts[matrix]
        ]
        while buffers:
            matrix, parts = buffers.popitem(last=False)
            whole = self._join(matrix, parts)
            whole.copy_(self._update(matrix, whole.mul_(scale)))
            works += self._scatter(matrix, whole, gradients)  # sent while the next update is computed
        self._wait(works)

    def _update(self, matrix: MuonMatrix, gradient: Tensor) -> Tensor:
        """(R, C) -> (R, C): momentum with Nesterov's look-ahead, orthogonalized, scaled to AdamW's updates."""
        config, momentum = self._config, self._momentum[matrix]
        # the scale has no effect on the update; this one keeps the scale of gradients
        momentum.lerp_(gradient, 1.0 - config.momentum)
        lookahead = gradient.lerp(momentum, config.momentum)
        factor = hcops.optimizer.orthogonalize(lookahead, iterations=config.newton_schulz_steps, dtype=config.dtype)
        return factor.float() * (RMS * math.sqrt(max(matrix.rows, matrix.columns)))

    def _gather(
        self, gradients: Mapping[str, Tensor], used: Collection[str]
    ) -> "OrderedDict[MuonMatrix, dict[int, Tensor]]":
        """Gather the gradient parts of the matrices that this rank owns, by rank."""
        rank, works, buffers = self._ownership.rank, list[Any](), OrderedDict[MuonMatrix, dict[int, Tensor]]()
        for matrix, owner in self.owners.items():
            sources = self._sources[matrix] if matrix.name in used else []
            tag = self._tag(matrix, is_update=False)
            if owner == rank and sources:
                buffers[matrix] = {source: self._buffer(matrix, source, gradients) for source in sources}
                works += [self._receive(part, peer, tag) for peer, part in buffers[matrix].items() if peer != rank]
            elif rank in sources:
                works.append(self._send(self._part(matrix, gradients), owner, tag))
        self._wait(works)
        return buffers

    def _buffer(self, matrix: MuonMatrix, source: int, gradients: Mapping[str, Tensor]) -> Tensor:
        """Return the buffer that receives, or already holds, a rank's part of a gradient."""
        if source == self._ownership.rank:
            return self._part(matrix, gradients)
        whole = torch.empty(matrix.rows, matrix.columns, device="meta")
        return torch.empty(self._parts[matrix][source].select(whole).shape)

    def _join(self, matrix: MuonMatrix, parts: Mapping[int, Tensor]) -> Tensor:
        """Return the matrix (R, C) from the parts of ranks; without a copy if one part is complete."""
        if len(parts) == 1:
            return next(iter(parts.values())).view(matrix.rows, matrix.columns)
        whole = torch.empty(matrix.rows, matrix.columns)
        for rank, part in parts.items():
            self._parts[matrix][rank].select(whole).copy_(part)
        return whole

    def _scatter(self, matrix: MuonMatrix, update: Tensor, gradients: Mapping[str, Tensor]) -> list[Any]:
        """Send each rank its part of an update; return the pending messages."""
        works = []
        for rank, target in self._parts[matrix].items():
            if rank != self._ownership.rank:
                works.append(self._send(target.select(update).contiguous(), rank, self._tag(matrix, is_update=True)))
            elif (local := self._part(matrix, gradients)).data_ptr() != update.data_ptr():
                local.copy_(target.select(update))
        return works

    def _part(self, matrix: MuonMatrix, tensors: Mapping[str, Tensor]) -> Tensor:
        return tensors[matrix.name][self._parts[matrix][self._ownership.rank].local]

    def _send(self, part: Tensor, rank: int, tag: int) -> Any:
        self._ownership.meter.sent(part.nbytes)
        return dist.isend(part, group=self._ownership.group, group_dst=rank, tag=tag)

    def _receive(self, part: Tensor, rank: int, tag: int) -> Any:
        return dist.irecv(part, group=self._ownership.group, group_src=rank, tag=tag)

    def _wait(self, works: list[Any]) -> None:
        for work in works:
            self._ownership.meter.wait(work)

    def _tag(self, matrix: MuonMatrix, *, is_update: bool) -> int:
        return 2 * self._number[matrix] + is_update

    def state(self) -> dict[str, Tensor]:
        """Return the momenta of this rank's matrices, by matrix name."""
        return {f"{MOMENTUM}.{matrix}": value for matrix, value in self._momentum.items()}

    def relocate(self, place: Allocator) -> None:
        self._momentum = {matrix: place(f"{MOMENTUM}.{matrix}", value) for matrix, value in self._momentum.items()}

    def pieces(self) -> list[TensorPiece]:
        """Return the momenta as pieces of `momentum.<name>`, of the weight's shape."""
        return [
            TensorPiece(
                name=f"{MOMENTUM}.{matrix.name}",
                values=value,
                shape=(matrix.count * matrix.rows, matrix.columns),
                dim=0,
                start=matrix.lines.start,
            )
            for matrix, value in self._momentum.items()
        ]

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load saved momenta, complete tensors `momentum.<name>`."""
        for matrix, value in self._momentum.items():
            value.copy_(tensors[f"{MOMENTUM}.{matrix.name}"][matrix.lines])
