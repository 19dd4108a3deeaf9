"""Injection of numbers that are not finite into training, for tests of their handling."""

import math
from typing import Any

import torch

from dithc.latents import Batches
from dithc.train.optimizer.optimizer import Optimizer
from dithc.train.step import step


def inject(kind: str, *, at: int, image: int = 0, rank: int | None = None, times: int | None = None) -> None:
    """Inject a fault into all training runs of this process from now on.

    Args:
        kind: `latents` (NaN in an image), `weights` (NaN in the weights of a layer of the second block, like faulty
            memory), `gradient` (the gradient overflows, the loss does not), `update` (the update yields a NaN weight),
            `once` (a loss is NaN; with `times` 1 it is finite in a repeated computation).
        at: optimizer step.
        image: image of the global batch, for `latents`.
        rank: affected rank; None for all.
        times: number of faults; None for every execution of the step.
    """
    FAULTS[kind](_Fault(at, image, rank, math.inf if times is None else times))


def heal() -> None:
    for (owner, name), value in TRUE.items():
        setattr(owner, name, value)


class _Fault:
    def __init__(self, at: int, image: int, rank: int | None, times: float) -> None:
        self.at, self.image, self.rank, self.times = at, image, rank, times

    def strikes(self, number: int, rank: int) -> bool:
        if number != self.at or self.rank not in (None, rank) or self.times <= 0:
            return False
        self.times -= 1
        return True


def _latents(fault: _Fault) -> None:
    true = Batches.batch

    def batch(self: Batches, number: int, part: slice = slice(None)) -> Any:
        found = true(self, number, part)
        if number + 1 == fault.at and part.start is not None and part.start <= fault.image < part.stop:
            found.x[fault.image - part.start, 0, 0, 0] = math.nan
        return found

    Batches.batch = batch  # type: ignore[method-assign]


def _weights(fault: _Fault) -> None:
    true = step.Trainer.step

    def make(self: step.Trainer, number: int) -> dict[str, float]:
        if fault.strikes(number, self.group.rank):
            weight = next(
                v for name, v in self.strategy.module.named_parameters() if name.endswith("1.attn.qkv.weight")
            )
            weight.detach()[0, 0] = math.nan
        return true(self, number)

    step.Trainer.step = make  # type: ignore[method-assign]


class _Overflow(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 1e38 * 1e38


def _gradient(fault: _Fault) -> None:
    true, now = step.Trainer.step, [0]

    def make(self: step.Trainer, number: int) -> dict[str, float]:
        now[0] = number
        block = next(layer for name, layer in self.strategy.module.named_modules() if name.endswith("blocks.0"))
        if not hasattr(block, "overflows"):
            is_hit = fault.rank in (None, self.group.rank)
            block.overflows = block.register_forward_hook(
                lambda _, __, y: _Overflow.apply(y) if is_hit and now[0] == fault.at else y
            )
        return true(self, number)

    step.Trainer.step = make  # type: ignore[method-assign]


def _update(fault: _Fault) -> None:
    true = Optimizer.update

    def update(self: Optimizer, number: int, **more: Any) -> float:
        rate = true(self, number, **more)
        if fault.strikes(number, 0):
            next(iter(self._named.values())).detach().view(-1)[0] = math.nan
        return rate

    Optimizer.update = update  # type: ignore[method-assign]


def _once(fault: _Fault) -> None:
    true, now = step.training_loss, [0]
    make_step = step.Trainer.step

    def make(self: step.Trainer, number: int) -> dict[str, float]:
        now[0] = number
        return make_step(self, number)

    def loss(*args: Any, **more: Any) -> Any:
        found = true(*args, **more)
        if fault.strikes(now[0], 0):
            found["loss"] = found["loss"] * math.nan
        return found

    step.Trainer.step, step.training_loss = make, loss  # type: ignore[method-assign]


TRUE = {
    (owner, name): getattr(owner, name)
    for owner, name in ((Batches, "batch"), (step.Trainer, "step"), (Optimizer, "update"), (step, "training_loss"))
}
FAULTS = {"latents": _latents, "weights": _weights, "gradient": _gradient, "update": _update, "once": _once}
