"""Guidance in one pass: moves the targets of labeled images away from a prediction without label.

N images of a micro-batch, n of them guided, C channels.
Sources: Model-guidance (Tang et al. 2025, arXiv 2502.12154) guides by the network itself, at times below 0.75. DogFit
(Bahram et al. 2025, arXiv 2508.05685) guides by the weights before the fine-tuning. Both use averaged weights; this
module uses the raw weights and the labeled prediction of the trained pass. That saves a pass and has the same fixed
point (see `guidance_offset`).
"""

import copy

import torch
from torch import Tensor, nn

from dithc.config import training
from dithc.diffusion import Objective, guidance_offset, without_labels
from dithc.model import DiT
from dithc.train.memory_tiers import TrainingMemory
from dithc.train.strategies import Strategy


class GuidanceTraining:
    """The second pass of a step, on guided images only; `start` is the frozen network of `reference: start`, else None."""

    def __init__(
        self,
        run: training.RunConfig,
        model: DiT,
        strategy: Strategy,
        *,
        start: DiT | None = None,
        memory: TrainingMemory | None = None,
    ) -> None:
        """Prepare to guide `model`, prepared by `strategy`, suspending `memory` in the second pass; see `initial_copy`."""
        assert run.guidance_training is not None
        assert model.config.null_label is not None, "checked with the configuration"
        if start is not None:
            strategy.shard_like(start)
        self.start = start
        self._share, self._model, self._memory = run.guidance_training.share, model, memory or TrainingMemory()
        self._null, self._channels = model.config.null_label, model.config.in_channels
        low, high = run.guidance_training.interval or (0.0, 1.0)
        last = Objective.of(run.objective).last
        self._low, self._high = low * last, high * last

    def predict_null(self, x_t: Tensor, t: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Predict without labels in the active arithmetic, before the trained pass.

        Returns predictions (n, C or 2C, h, w) and their indices (n) among the images x_t (N, C, h, w) with times t (N) and
        labels y (N), or (N, 1 + K) with conditions, which are kept: labeled images at guided times.
        """
        labels = y if y.dim() == 1 else y[:, 0]
        rows = ((labels != self._null) & (t >= self._low) & (t <= self._high)).nonzero().squeeze(1)  # (n)
        if not len(rows):
            return x_t[:0], rows
        with torch.no_grad(), self._memory.paused():
            network = self._model if self.start is None else self.start
            predicted: Tensor = network(x_t[rows], t[rows], without_labels(y[rows], self._null))
        return predicted, rows

    def offset(self, output: Tensor, null: Tensor, rows: Tensor) -> Tensor:
        """Return the shift of the targets (N, C, h, w) for the trained output (N, C or 2C, h, w) and `null`."""
        return guidance_offset(output, null, rows, channels=self._channels, share=self._share)


def initial_copy(model: DiT, run: training.RunConfig) -> DiT | None:
    """Return a copy of the initial model for `reference: start`. Matrices have the compute type, other weights fp32."""
    if run.guidance_training is None or run.guidance_training.reference != "start":
        return None
    start = copy.deepcopy(model).requires_grad_(False)
    if run.dtype == "bf16":
        for layer in start.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.weight.data = layer.weight.data.bfloat16()
    return start
