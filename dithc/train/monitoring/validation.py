"""Validation loss on held-out tiles during a training run, at fixed times with fixed noise, for comparison over steps.

N images of a micro-batch, C channels, K times.
"""

import time

import numpy as np
import torch
from torch import Tensor

from dithc.config import training
from dithc.core.logging import get_logger
from dithc.diffusion import BandLevels, Objective, training_loss
from dithc.engine.cftp import partition
from dithc.engine.comm import Group
from dithc.latents import Latents, ValidationLatents
from dithc.train.checkpoints import TrainingState
from dithc.train.job import StepTimer
from dithc.train.memory_tiers import TrainingMemory
from dithc.train.step import autocast_context

NUM_TIMES = 8
NAME = "val_loss"
log = get_logger(__name__)


class Validation:
    """Squared prediction error of the raw weights on held-out tiles, without effect on the run.

    The times are the midpoints of equal intervals from image to noise, equally weighted, so that runs are comparable.
    """

    def __init__(
        self,
        run: training.RunConfig,
        latents: Latents,
        *,
        seed: int,
        state: TrainingState,
        group: Group,
        memory: TrainingMemory | None = None,
    ) -> None:
        """Select the tiles. `is_due` stays False if the run has or requests none. `seed` determines the noise."""
        self._run, self._state, self._group, self._memory = run, state, group, memory or TrainingMemory()
        self._objective = Objective.of(training.ObjectiveConfig(prediction_type=run.objective.prediction_type))
        groups = list(run.band_groups.values())
        self._levels = BandLevels(latents.channels(run.band_groups), num_bands=latents.shape[0])
        self._tiles = ValidationLatents(latents, seed=seed, draws=NUM_TIMES, conditions=run.conditions, groups=groups)
        if run.validate_every is not None and not len(self._tiles.rows) and group.rank == 0:
            log.warning(f"no loss on held-out tiles: {latents.folder} has none in the split val")

    def is_due(self, step: int, *, until: int) -> bool:
        """Return whether the loss is due after a step of a job that ends at `until`."""
        every = self._run.validate_every
        return every is not None and len(self._tiles.rows) > 0 and (step % every == 0 or step == until)

    def values(self, timer: StepTimer) -> dict[str, float]:
        """Return `val_loss`, the mean of `val_loss_0` (least noise) to `val_loss_7`; report to `timer`; collective."""
        start = time.monotonic()
        layout, num_tiles = self._state.strategy.layout, len(self._tiles.rows)
        share = partition(num_tiles, layout.data_size)[layout.data_rank]
        batch_size = self._run.micro_batch_size or -(-self._run.global_batch_size // layout.data_size)
        sums = torch.zeros(NUM_TIMES, dtype=torch.float64)
        self._state.strategy.wait_for_weights()
        with torch.no_grad(), self._memory.paused():
            for first in range(share.start, share.stop, batch_size):
                sums += self._errors(slice(first, min(first + batch_size, share.stop)))
        sums = self._group.all_reduce_(sums * layout.loss_weight) / num_tiles
        timer.validation(time.monotonic() - start)
        return {NAME: float(sums.mean()), **{f"{NAME}_{k}": value for k, value in enumerate(sums.tolist())}}

    def _errors(self, part: slice) -> Tensor:
        """Return the summed errors of the tiles at each time (K), float64."""
        x, y, noises = self._tiles.batch(part)  # (N, C, h, w), (N, ...), (K, N, C, h, w)
        clear, weights = (None, None) if self._run.masked_training is None else self._tiles.masks(part)
        times = self._objective.times((np.arange(NUM_TIMES) + 0.5) / NUM_TIMES)  # (K)
        sums = []
        for t, noise in zip(torch.from_numpy(times), noises, strict=True):
            steps = t.expand(len(x))  # (N)
            x_t, visible, weight = self._levels.noisy(
                self._objective, x=x, t=steps, y=y, noise=noise, visible=clear, weight=weights
            )
            with autocast_context(self._run):
                output: Tensor = self._state.model(x_t, steps, y)  # (N, C or 2C, h, w)
            inputs = {"x0": x, "x_t": x_t, "t": steps, "noise": noise, "visible": visible, "weight": weight}
            offset = None
            if visible is not None and (gaussian := self._state.model.gaussian) is not None:
                offset = gaussian.hidden_offset(x_t, steps, y, visible)
            losses = training_loss(output, objective=self._objective, offset=offset, **inputs)
            sums.append(losses["mse"].double().sum())
        return torch.stack(sums)
