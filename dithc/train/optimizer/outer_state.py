"""State of the outer optimizer of a worker: start of the round, momentum, rounding error.

Legend: n trained weights.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dithc.config import training
from dithc.core.tensor_files import TensorPiece


class OuterState:
    """Outer SGD with Nesterov momentum on the mean update of all workers (DiLoCo, arXiv 2311.08105, algorithm 1).

    Rank 0 has the tensors, each fp32 (n): `start`, the weights at the start of the round; `momentum` and `residual`, if the
    settings require them.

    Attributes:
        round: number of finished rounds.
        is_pending: whether updates of other workers of the last round are not added yet.
        lacks_average: whether the last round of a job is finished except for the mean of all workers.
    """

    FILE = "outer.safetensors"

    def __init__(self, model: nn.Module, settings: training.LocalUpdatesConfig, *, is_first_rank: bool) -> None:
        self.settings, self.round = settings, 0
        self.is_pending = self.lacks_average = False
        weights = [weight.detach().reshape(-1) for weight in model.parameters() if weight.requires_grad]
        self.tensors = {"start": torch.cat(weights)} if is_first_rank else {}
        names = {"momentum": settings.outer_momentum > 0.0, "residual": settings.dtype != "fp32"}
        for name in [name for name, is_used in names.items() if is_used and self.tensors]:
            self.tensors[name] = torch.zeros_like(self.tensors["start"])

    @property
    def size(self) -> int:
        """Number of trained weights; rank 0 only."""
        return len(self.tensors["start"])

    def update(self, weights: Tensor, part: slice) -> Tensor:
        """Return the update of this worker in this round for a part of the weights: start - weights + rounding error."""
        update = self.tensors["start"][part] - weights
        return update.add_(self.tensors["residual"][part]) if "residual" in self.tensors else update

    def step(self, total: Tensor, part: slice, *, error: Tensor) -> None:
        """Apply the sum of the updates of a part of the weights; `error` is the rounding error of this worker's update.

        `start` then has the weights at the start of the next round. Overwrites `total`.
        """
        mean, beta = total.div_(len(self.settings.workers)), self.settings.outer_momentum
        if "momentum" in self.tensors:
            momentum = self.tensors["momentum"][part].mul_(beta).add_(mean)
            mean.add_(momentum, alpha=beta)
        self.tensors["start"][part].sub_(mean, alpha=self.settings.outer_lr)
        if "residual" in self.tensors:
            self.tensors["residual"][part] = error

    def pieces(self) -> list[TensorPiece]:
        """Return the tensors for a checkpoint; none on other ranks than the first."""
        counts = {name: torch.tensor(int(getattr(self, name))) for name in ("round", "is_pending", "lacks_average")}
        return [TensorPiece.whole(name, value) for name, value in (counts | self.tensors).items() if self.tensors]

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the tensors of `pieces`."""
        self.round = int(tensors["round"])
        self.is_pending, self.lacks_average = bool(tensors["is_pending"]), bool(tensors["lacks_average"])
        for name, value in self.tensors.items():
            value.copy_(tensors[name])
