"""One optimizer step: micro-batches, the mean gradient over the global batch, clipping, update, average.

Legend: N images of a micro-batch, C channels.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from dithc.config import training
from dithc.core.logging import user_error
from dithc.diffusion import BandLevels, Objective, training_loss
from dithc.engine import hcops
from dithc.engine.cftp import partition
from dithc.engine.comm import Group
from dithc.latents import Batch, Batches
from dithc.train.checkpoints import TrainingState
from dithc.train.memory_tiers import TrainingMemory
from dithc.train.step.nonfinite import NonFiniteError
from dithc.train.step.nonfinite_search import NonFiniteSearch, bad_weights, describe_weights, weights_of
from dithc.train.strategies import Strategy

PARTS = ("loss", "mse", "vb")


class BatchSource(Protocol):
    def batch(self, step: int, part: slice) -> Batch:
        """Return images `part` of the global batch of `step` (from 0)."""


def prepare_strategy(strategy: Strategy, source: BatchSource, run: training.RunConfig) -> None:
    """Prepare a strategy with one image, before optimizer and average exist."""
    batch = source.batch(0, slice(0, 1))
    with autocast_context(run):
        strategy.prepare(batch.x, batch.t, batch.y)


class Trainer:
    """Optimizer steps on one rank of a group; benchmarks set `span`, called for each phase."""

    span: Callable[[str], AbstractContextManager[object]] = nullcontext

    def __init__(
        self,
        *,
        run: training.RunConfig,
        source: BatchSource,
        state: TrainingState,
        group: Group,
        memory: TrainingMemory | None = None,
    ) -> None:
        layout = state.strategy.layout
        if layout.data_size > run.global_batch_size:
            raise user_error(
                "ranks of the training run",
                got=f"{layout.data_size} ranks for a global batch of {run.global_batch_size}",
                expected="at least one image per rank",
                fix="start fewer ranks, or raise `global_batch_size`",
            )
        self.run, self.source, self.state, self.group = run, source, state, group
        self.strategy, self.optimizer, self.ema = state.strategy, state.optimizer, state.ema
        self.memory = memory or TrainingMemory()
        self.objective = Objective.of(run.objective)
        config = state.model.config
        self._levels = BandLevels(config.band_groups, num_bands=config.in_channels)
        self.divide([part.stop - part.start for part in partition(run.global_batch_size, layout.data_size)])

    def divide(self, shares: Sequence[int]) -> None:
        """Give each data-parallel rank, in order, this number of images of the global batch. The mean stays exact."""
        self.shares = list(shares)
        rank = self.strategy.layout.data_rank
        first = sum(shares[:rank])
        last, equal_share = first + shares[rank], -(-self.run.global_batch_size // len(shares))
        width = self.run.micro_batch_size or equal_share  # for which the memory is planned
        self._micro_batches = micro_batches(first, last, width)

    def step(self, number: int) -> dict[str, float]:
        """Run optimizer step `number` (from 1).

        Returns:
            loss, mse and vb (means over the global batch), grad_norm (before clipping), lr, ema_decay, data_seconds
            (time spent waiting for images), and the values of `Strategy.finish` and `TrainingMemory.metrics`.

        Raises:
            NonFiniteError: loss or gradient is not finite, on all ranks together; the weights are unchanged.
        """
        self.optimizer.zero_grad()
        if self.memory.tiers is not None:
            with self.span("memory"):
                self.memory.begin_step()
        sums, data_seconds = torch.zeros(len(PARTS), dtype=torch.float64), 0.0
        in_flight: deque[tuple[Tensor, bool]] = deque()
        self.strategy.expect(part.stop - part.start for part in self._micro_batches)
        for part in self._micro_batches:
            start = time.perf_counter()
            with self.span("batch"):
                batch = self.source.batch(number - 1, part)
            data_seconds += time.perf_counter() - start
            is_last = part is self._micro_batches[-1]
            with self.strategy.accumulating(last=is_last), self.span("forward"):
                losses = self._losses(batch)
            del batch
            sums += torch.stack([losses[name].detach().double().sum() for name in PARTS])
            in_flight.append((losses["loss"], is_last))
            del losses
            while len(in_flight) > (0 if is_last else self.strategy.layout.num_ahead):
                self._backward(*in_flight.popleft())
        with self.span("wait for gradients"):
            exchange = self.strategy.finish()
        local_loss = float(sums[0])
        sums *= self.strategy.layout.loss_weight
        with self.span("clip"):
            norm = self.optimizer.clip()
        overflow = torch.tensor([not self.optimizer.accepts(norm)], dtype=torch.float64)
        with self.span("loss of all ranks"):
            *totals, overflows = self.group.all_reduce_(torch.cat([sums, overflow])).tolist()
        values = {name: total / self.run.global_batch_size for name, total in zip(PARTS, totals, strict=True)}
        if not math.isfinite(values["loss"]) or overflows:
            raise self._locate_nonfinite(number, local_loss=local_loss, loss=values["loss"], norm=norm)
        with self.span("update"):
            rate = self.optimizer.update(number, ema=self.ema, defers=True)
        values |= {"grad_norm": norm, "lr": rate, "ema_decay": self.ema.decay(number), "data_seconds": data_seconds}
        return values | exchange | self.memory.metrics()

    def check_weights(self, number: int) -> None:
        """Raise NonFiniteError for the next step if weights of any rank are bad after step `number`."""
        self.strategy.wait_for_weights()
        weights = weights_of(self.strategy.module)
        is_finite = math.isfinite(hcops.optimizer.sum_of_squares([value.detach() for value in weights.values()]))
        if not self.group.any(not is_finite):
            return
        names = bad_weights(weights)
        sites = dict(enumerate(self.group.gather_objects(describe_weights(names) if names else None)))
        raise NonFiniteError(
            number + 1,
            subject=f"the weights after step {number}, although its loss and gradient were finite",
            got=_describe_locations(sites),
            in_weights=True,
            found={rank: location for rank, location in sites.items() if location},
        )

    def _backward(self, losses: Tensor, is_last: bool) -> None:
        self.strategy.begin_backward(last=is_last)
        with self.strategy.accumulating(last=is_last), self.span("backward"):
            self._accumulate_gradients(losses)

    def _accumulate_gradients(self, losses: Tensor) -> None:
        share = losses.sum() * (self.strategy.scale / self.run.global_batch_size)
        share.backward()  # type: ignore[no-untyped-call]

    def _losses(self, batch: Batch) -> dict[str, Tensor]:
        x_t, visible, weight = self._levels.noisy(self.objective, **vars(batch))
        with autocast_context(self.run):
            output: Tensor = self.strategy.module(x_t, batch.t, batch.y)  # (N, C or 2C, h, w)
        offset = None
        if visible is not None and (gaussian := self.state.model.gaussian) is not None:
            offset = gaussian.hidden_offset(x_t, batch.t, batch.y, visible)
        inputs = {"x0": batch.x, "x_t": x_t, "t": batch.t, "noise": batch.noise}
        return training_loss(
            output, objective=self.objective, **inputs, offset=offset, visible=visible, weight=weight
        )  # (N) each

    def _locate_nonfinite(self, number: int, *, local_loss: float, loss: float, norm: float) -> NonFiniteError:
        """Repeat the step on every rank to locate the error, without communication except in shared layers."""
        self.strategy.wait_for_weights()
        self.optimizer.zero_grad()
        with NonFiniteSearch(self.strategy.module) as search:
            for part in self._micro_batches:
                with self.strategy.accumulating(last=False):
                    batch = self.source.batch(number - 1, part)
                    bad = search.images(batch.x, batch.noise, part=part)
                    if bad and isinstance(self.source, Batches):
                        rows = self.source.rows(number - 1)[bad].tolist()
                        search.found = f"{search.found} (row {', '.join(map(str, rows))} of the latents)"
                    losses = self._losses(batch)["loss"]
                    search.loss(losses)
                    self._accumulate_gradients(losses)
        self.optimizer.zero_grad()
        gathered = self.group.gather_objects((math.isfinite(local_loss), search.in_weights, search.found))
        sites = {rank: location for rank, (_, _, location) in enumerate(gathered)}
        ranks = ", ".join(str(rank) for rank, (good, _, _) in enumerate(gathered) if not good)
        cause = "finite, but its squares are beyond fp32" if math.isfinite(norm) else "the loss of every rank is finite"
        return NonFiniteError(
            number,
            subject=f"the loss of rank {ranks}" if ranks else f"the gradient ({cause})",
            got=f"loss {loss}, gradient norm {norm}; first, in a repeated computation: {_describe_locations(sites)}",
            in_weights=any(in_weights for _, in_weights, _ in gathered),
            found={rank: location for rank, location in sites.items() if location},
        )


def _describe_locations(sites: Mapping[int, str | None]) -> str:
    locations = [f"rank {rank}: {location}" for rank, location in sites.items() if location]
    return "; ".join(locations) or "none on any rank: the sum over ranks, or a transient fault of the machine"


def micro_batches(first: int, last: int, width: int) -> list[slice]:
    """Divide images first..last into slices of a width; the remainder comes first.

    Gradients are exchanged during the last backward pass, which therefore has the full width.
    """
    starts = [first, *range(first + ((last - first) % width or width), last, width)]
    return [slice(start, stop) for start, stop in zip(starts, [*starts[1:], last], strict=True)]


def autocast_context(run: training.RunConfig) -> torch.autocast:
    """Return the autocast context for forward passes of a run, in its compute type."""
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=run.dtype == "bf16")
