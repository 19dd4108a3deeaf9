"""Guidance trained into one pass: what labelled images ought to give is moved away from a prediction without a label.

Legend: N images of a micro-batch, n of them guided, C channels.
Sources: Model-guidance (Tang et al. 2025, arXiv 2502.12154): by the network itself, at times below 0.75. DogFit (Bahram et al.
2025, arXiv 2508.05685): by the weights before the fine-tuning. There the labelled prediction, and the network's own without a
label, are of the averaged weights; here of the raw ones, the labelled one being that of the pass that is trained: a pass less,
nothing that ranks which share the average lack, and the same point of rest (see `guidance_offset`).
"""

import copy

import torch
from torch import Tensor, nn

from dithc.config import training
from dithc.diffusion import Objective, guidance_offset
from dithc.model import DiT
from dithc.train.memory import TrainingMemory
from dithc.train.strategies import Strategy


class Guide:
    """Runs the second pass of a step, of the guided images alone, and makes of it what their targets move by.

    Attributes:
        start: the network of `by: start`, never trained and in no checkpoint; None for `by: self`.
    """

    def __init__(
        self,
        run: training.Run,
        model: DiT,
        strategy: Strategy,
        *,
        start: DiT | None = None,
        memory: TrainingMemory | None = None,
    ) -> None:
        """Prepares to guide `model`, which `strategy` has prepared.

        Args:
            run: with `guide`.
            model: with a null label.
            strategy: of the ranks, which may leave this one its share of the layers of `start`.
            start: what `start_of` made of the model that the strategy was given.
            memory: that manages the model's; the second pass is none of its business.
        """
        assert run.guide is not None
        assert model.config.null_label is not None, "refused with the configuration"
        if start is not None:
            strategy.share(start)
        self.start = start
        self._share, self._model, self._memory = run.guide.share, model, memory or TrainingMemory()
        self._null, self._channels = model.config.null_label, model.config.in_channels
        low, high = run.guide.interval or (0.0, 1.0)
        last = Objective.of(run.objective).last
        self._low, self._high = low * last, high * last

    def away(self, x_t: Tensor, t: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Predicts without a label, in the arithmetic that is on; to be called before the pass that is trained.

        Args:
            x_t: (N, C, h, w), noisy images.
            t: (N), timesteps.
            y: (N), labels, the null label where it was dropped.

        Returns:
            (n, C or 2C, h, w), the predictions, and (n), which of the N images they are of: those with a label, at guided times.
        """
        rows = ((y != self._null) & (t >= self._low) & (t <= self._high)).nonzero().squeeze(1)  # (n)
        if not len(rows):
            return x_t[:0], rows
        with torch.no_grad(), self._memory.paused():
            network = self._model if self.start is None else self.start
            predicted: Tensor = network(x_t[rows], t[rows], torch.full_like(rows, self._null))
        return predicted, rows

    def offset(self, output: Tensor, away: Tensor, rows: Tensor) -> Tensor:
        """What the targets move by (N, C, h, w), of the output of the trained pass (N, C or 2C, h, w) and what `away` gave."""
        return guidance_offset(output, away, rows, channels=self._channels, share=self._share)


def start_of(model: DiT, run: training.Run) -> DiT | None:
    """A copy of a model that has its initial weights still, for `by: start`: its matrices in the compute type.

    All else stays fp32, so that what it predicts is the same to the bit as with fp32 matrices.
    """
    if run.guide is None or run.guide.by != "start":
        return None
    start = copy.deepcopy(model).requires_grad_(False)
    if run.dtype == "bf16":
        for layer in start.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.weight.data = layer.weight.data.bfloat16()
    return start
