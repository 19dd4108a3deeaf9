"""One optimizer step: micro-batches, the mean gradient over the global batch, clipping, update, average.

Legend: N images of a micro-batch, C channels.
"""

import math
from typing import Protocol

import torch
from torch import Tensor

from dithc.cftp import partition
from dithc.comm import Group
from dithc.config import training
from dithc.diffusion import Schedule, training_loss
from dithc.log import problem
from dithc.train.ema import Ema
from dithc.train.optimizer import Optimizer
from dithc.train.strategy import Strategy

PARTS = ("loss", "mse", "vb")


class Batch(Protocol):
    """Images to learn from, with everything random about them drawn already."""

    @property
    def x(self) -> Tensor:
        """(N, C, height, width), clean latents."""

    @property
    def y(self) -> Tensor:
        """(N) labels, the null label where it was dropped."""

    @property
    def t(self) -> Tensor:
        """(N) timesteps."""

    @property
    def noise(self) -> Tensor:
        """(N, C, height, width), standard normal."""


class Source(Protocol):
    """Where batches come from."""

    def batch(self, step: int, part: slice) -> Batch:
        """Images `part` of the global batch of `step` (0 is the first)."""


class Trainer:
    """Makes optimizer steps on one rank of a group."""

    def __init__(
        self, *, run: training.Run, source: Source, strategy: Strategy, optimizer: Optimizer, ema: Ema, group: Group
    ) -> None:
        layout = strategy.layout
        if layout.data_size > run.global_batch:
            raise problem(
                "ranks of the training",
                got=f"{layout.data_size} ranks for a global batch of {run.global_batch}",
                expected="at least one image a rank",
                remedy="start fewer ranks, or raise `global_batch`",
            )
        self.run, self.source, self.strategy = run, source, strategy
        self.optimizer, self.ema, self.group = optimizer, ema, group
        self.schedule = Schedule.linear()
        share = partition(run.global_batch, layout.data_size)[layout.data_rank]
        width = run.micro_batch or share.stop - share.start
        starts = range(share.start, share.stop, width)
        self._micro_batches = [slice(start, min(start + width, share.stop)) for start in starts]

    def settle(self) -> None:
        """Prepares the strategy with one image; changes nothing."""
        batch = self.source.batch(0, slice(0, 1))
        with self._arithmetic():
            self.strategy.settle(batch.x, batch.t, batch.y)

    def step(self, number: int) -> dict[str, float]:
        """Makes optimizer step `number` (1 is the first).

        Returns:
            loss, mse and vb (means over the global batch), grad_norm (before clipping), lr, ema_decay; and with several shares of
            the batch what `Strategy.finish` tells.

        Raises:
            UserError: the loss or the gradient is not finite; the weights are those before the step.
        """
        self.optimizer.zero()
        sums = torch.zeros(len(PARTS), dtype=torch.float64)
        for part in self._micro_batches:
            with self.strategy.accumulating(last=part is self._micro_batches[-1]):
                losses = self._losses(self.source.batch(number - 1, part))
                share = losses["loss"].sum() * (self.strategy.scale / self.run.global_batch)
                share.backward()  # type: ignore[no-untyped-call]
            sums += torch.stack([losses[name].detach().double().sum() for name in PARTS])
        exchange = self.strategy.finish()
        own_loss = float(sums[0])
        sums /= self.strategy.layout.tensor_size  # ranks that share the layers have the same losses
        loss, mse, vb = (self.group.all_reduce_(sums) / self.run.global_batch).tolist()
        norm = self.optimizer.clip()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise self._not_finite(number, own_loss=own_loss, loss=loss, norm=norm)
        rate = self.optimizer.step(number, ema=self.ema)
        decay = self.ema.decay(number)
        return {"loss": loss, "mse": mse, "vb": vb, "grad_norm": norm, "lr": rate, "ema_decay": decay} | exchange

    def _losses(self, batch: Batch) -> dict[str, Tensor]:
        x_t = self.schedule.q_sample(batch.x, batch.t, batch.noise)  # (N, C, h, w)
        with self._arithmetic():
            output: Tensor = self.strategy.module(x_t, batch.t, batch.y)  # (N, C or 2C, h, w)
        return training_loss(
            output, schedule=self.schedule, x0=batch.x, x_t=x_t, t=batch.t, noise=batch.noise
        )  # (N) each

    def _arithmetic(self) -> torch.autocast:
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.run.dtype == "bf16")

    def _not_finite(self, number: int, *, own_loss: float, loss: float, norm: float) -> Exception:
        finite = self.group.gather_objects(math.isfinite(own_loss))
        ranks = ", ".join(str(rank) for rank, good in enumerate(finite) if not good)
        where = f"the loss of rank {ranks}" if ranks else "the gradient (the loss of every rank is finite)"
        return problem(
            f"training left the finite numbers at step {number}: {where}",
            got=f"loss {loss}, gradient norm {norm}",
            expected="finite numbers",
            remedy="look at the last metrics; lower `lr`, raise `warmup_steps`, set `clip`, use `dtype: fp32`, or look for "
            "NaN in the latents. Nothing was saved after the last checkpoint, from which a new start continues",
        )
