"""The ways to run one training step that a bench compares.

Legend: N batch, C channels.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from dithc.diffusion import Schedule, training_loss
from dithc.model import DiT

LEARNING_RATE = 1e-4
Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class Batch:
    """One batch of random latents with what diffusion adds: x0, noise and x_t (N, C, height, width); t and y (N)."""

    x0: Tensor
    noise: Tensor
    x_t: Tensor
    t: Tensor
    y: Tensor

    @classmethod
    def random(cls, model: DiT, schedule: Schedule, *, size: int, seed: int) -> "Batch":
        """A batch that depends on the seed alone."""
        generator = torch.Generator().manual_seed(seed)
        shape = (size, model.config.in_channels, *model.config.size)
        x0 = torch.randn(shape, generator=generator)  # (N, C, height, width)
        noise = torch.randn(shape, generator=generator)  # (N, C, height, width)
        t = torch.randint(0, len(schedule), (size,), generator=generator)  # (N)
        y = torch.randint(0, model.config.num_classes, (size,), generator=generator)  # (N)
        return cls(x0, noise, schedule.q_sample(x0, t, noise), t, y)


class TrainingStep:
    """Forward, loss, backward and AdamW of one model on one batch, again and again."""

    def __init__(
        self, model: DiT, forward: Callable[..., Tensor], *, batch: Batch, schedule: Schedule, dtype: Precision
    ) -> None:
        self._model, self._forward = model, forward
        self._batch, self._schedule, self._dtype = batch, schedule, dtype
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)

    def __call__(self) -> float:
        """Makes one step and returns its loss."""
        batch = self._batch
        autocast = torch.autocast("cpu", dtype=torch.bfloat16) if self._dtype == "bf16" else nullcontext()
        with autocast:
            output = self._forward(batch.x_t, batch.t, batch.y)  # (N, C or 2C, height, width)
        losses = training_loss(
            output, schedule=self._schedule, x0=batch.x0, x_t=batch.x_t, t=batch.t, noise=batch.noise
        )
        loss = losses["loss"].mean()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    @property
    def state_bytes(self) -> int:
        """Bytes of parameters, of gradients of their size, and of the optimizer's state; activations not counted."""
        parameters = [(p, p.requires_grad) for p in self._model.parameters()]
        weights = sum(p.nbytes * (2 if trained else 1) for p, trained in parameters)
        states = (value for state in self._optimizer.state.values() for value in state.values())
        return weights + sum(value.nbytes for value in states if isinstance(value, Tensor))


@dataclass(frozen=True)
class Contender:
    """One way to run the model: how to wrap it, and why it cannot run here (None when it can)."""

    what: str
    wrap: Callable[[nn.Module], Callable[..., Tensor]]
    obstacle: Callable[[], str | None]


def _compile(model: nn.Module) -> Callable[..., Tensor]:
    return cast(Callable[..., Tensor], torch.compile(model))


def _no_compiler() -> str | None:
    """torch.compile writes C++; without a compiler it fails at the first step."""
    candidates = [os.environ["CXX"]] if "CXX" in os.environ else ["g++", "clang++", "c++"]
    if any(shutil.which(name) for name in candidates):
        return None
    return f"torch.compile needs a C++ compiler: no {' or '.join(candidates)} on PATH"


CONTENDERS: Mapping[str, Contender] = {
    "eager": Contender("PyTorch operators, one by one", lambda model: model, lambda: None),
    "compile": Contender("torch.compile with its default back end", _compile, _no_compiler),
}
