"""Variants of a training step for the benchmarks.

Legend: N batch, C channels.
"""

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from dithc.bench.gemm_libraries import LIBRARIES, GemmLibrary, make_linear, use_linear
from dithc.bench.operators import autocast_context
from dithc.bench.rooflines import Precision, wait_for
from dithc.diffusion import Objective, Schedule, training_loss
from dithc.engine import hcops, native
from dithc.engine.cftp import ThreadTeam
from dithc.engine.hcops import tuning
from dithc.model import DiT

LEARNING_RATE = 1e-4
BETAS, EPS = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class Batch:
    """Batch of random latents with its diffusion inputs: x0, noise and x_t (N, C, height, width); t and y (N)."""

    x0: Tensor
    noise: Tensor
    x_t: Tensor
    t: Tensor
    y: Tensor

    def to(self, device: str) -> "Batch":
        """Return the batch on a torch device."""
        return Batch(*(part.to(device) for part in (self.x0, self.noise, self.x_t, self.t, self.y)))

    @classmethod
    def random(cls, model: DiT, schedule: Schedule, *, size: int, seed: int) -> "Batch":
        """Draw a batch by seed."""
        generator = torch.Generator().manual_seed(seed)
        shape = (size, model.config.in_channels, *model.config.size)
        x0 = torch.randn(shape, generator=generator)  # (N, C, height, width)
        noise = torch.randn(shape, generator=generator)  # (N, C, height, width)
        t = torch.randint(0, len(schedule), (size,), generator=generator)  # (N)
        y = torch.randint(0, model.config.num_classes, (size,), generator=generator)  # (N)
        return cls(x0, noise, schedule.q_sample(x0, t, noise), t, y)


class Training:
    """One model and one pair of moments that all variants train alternately, so that memory holds one copy.

    Step times do not depend on the values that a variant leaves.
    """

    def __init__(self, model: DiT, *, batch: Batch, dtype: Precision) -> None:
        self.model, self.batch, self.dtype = model, batch, dtype
        self.objective = Objective.of()
        self.weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.first = [torch.zeros_like(weight) for weight in self.weights]
        self.second = [torch.zeros_like(weight) for weight in self.weights]

    @cached_property
    def torch_adamw(self) -> torch.optim.AdamW:
        """PyTorch's fused AdamW over these moments."""
        optimizer = torch.optim.AdamW(
            self.weights, lr=LEARNING_RATE, betas=BETAS, eps=EPS, weight_decay=0.0, fused=True
        )
        for weight, first, second in zip(self.weights, self.first, self.second, strict=True):
            step = torch.zeros((), device=weight.device)  # the fused kernel requires it on the device of the weights
            optimizer.state[weight] = {"step": step, "exp_avg": first, "exp_avg_sq": second}
        return optimizer

    @property
    def state_bytes(self) -> int:
        """Bytes of parameters, gradients and moments, without activations."""
        return sum(value.nbytes for value in self.model.parameters()) + 3 * sum(value.nbytes for value in self.weights)


def _hcops_adamw(training: Training) -> Callable[[], object]:
    settings: dict[str, Any] = {"lr": LEARNING_RATE, "betas": BETAS, "eps": EPS, "weight_decay": 0.0}
    steps = 0

    def update() -> None:
        nonlocal steps
        steps += 1
        weights = [weight.detach() for weight in training.weights]  # AutoMem may have moved them since the last step
        gradients = [weight.grad for weight in training.weights if weight.grad is not None]
        hcops.optimizer.adamw(weights, gradients, training.first, training.second, step=steps, **settings)

    return update


def _no_library(dtype: Precision) -> str | None:
    return None if native.library() is not None else f"the C kernels are unavailable: {native.load_library().reason}"


def _no_second_cluster(dtype: Precision) -> str | None:
    count = len(ThreadTeam.of().clusters)
    return _no_library(dtype) or (f"the team has {count} core cluster(s), and 2 are required" if count < 2 else None)


def _no_compiler(dtype: Precision) -> str | None:
    """Return the reason against torch.compile, or None.

    torch.compile generates C++. Without a compiler it fails at the first step; without bf16 in oneDNN a step takes
    minutes.
    """
    if dtype == "bf16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "PyTorch uses a slow bf16 loop because oneDNN has no bf16 on this CPU; compare in fp32"
    candidates = [os.environ["CXX"]] if "CXX" in os.environ else ["g++", "clang++", "c++"]
    if any(shutil.which(name) for name in candidates):
        return None
    return f"torch.compile needs a C++ compiler: no {' or '.join(candidates)} on PATH"


@dataclass(frozen=True)
class StepVariant:
    """Variant of training, by default dithc's operators and AdamW.

    Attributes:
        description: text for the result.
        backend: backend of hcops.
        wrap: function that builds the callable from the model.
        optimizer: function that builds the weight update.
        skip_reason: function that returns the reason why a type is unsupported here, or None.
        context: context of its steps: CPU affinity, or the library of its linear layers.
    """

    description: str
    backend: str = "c"
    wrap: Callable[[nn.Module], Callable[..., Tensor]] = lambda model: model
    optimizer: Callable[[Training], Callable[[], object]] = _hcops_adamw
    skip_reason: Callable[[Precision], str | None] = _no_library
    context: Callable[[], AbstractContextManager[None]] = nullcontext

    @contextmanager
    def active(self) -> Iterator[None]:
        """Activate its backend and context."""
        with hcops.use(self.backend), self.context():
            yield


class TrainingStep:
    """Repeatable training step of one variant: forward, loss, backward and AdamW."""

    def __init__(self, training: Training, variant: StepVariant) -> None:
        self._training, self._variant = training, variant
        with hcops.use(variant.backend):
            self._forward = variant.wrap(training.model)
            self._update = variant.optimizer(training)

    def __call__(self, *, updates: bool = True) -> float:
        """Run one step, optionally without the update of the weights, and return its loss."""
        training, batch = self._training, self._training.batch
        with self._variant.active():
            with autocast_context(training.dtype, batch.x_t.device.type):
                output = self._forward(batch.x_t, batch.t, batch.y)  # (N, C or 2C, height, width)
            inputs = {"x0": batch.x0, "x_t": batch.x_t, "t": batch.t, "noise": batch.noise}
            loss = training_loss(output, objective=training.objective, **inputs)["loss"].mean()
            loss.backward()  # type: ignore[no-untyped-call]
            if updates:
                self._update()
        for weight in training.weights:
            weight.grad = None
        wait_for(loss)
        return float(loss.detach())


@contextmanager
def one_cluster() -> Iterator[None]:
    """Run operators on the thread count of one core cluster, unpinned, unlike `cftp-1-cluster` of `bench strategies`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(len(ThreadTeam.of().clusters[0]))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _medium_precision() -> Iterator[None]:
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous)


def _library_variant(name: str, library: GemmLibrary) -> StepVariant:
    return StepVariant(
        f"products of linear layers by {name}, other operators by dithc",
        skip_reason=lambda dtype: _no_library(dtype) or library.skip_reason(dtype),
        context=lambda: use_linear(make_linear(library)),
    )


def _torch_variant(description: str, **changes: Any) -> StepVariant:
    options: dict[str, Any] = {"backend": "reference", "skip_reason": lambda dtype: None} | changes
    return StepVariant(description, optimizer=lambda training: training.torch_adamw.step, **options)


DITHC, ONE_CLUSTER, OWN_PRODUCTS, UNTUNED = "dithc", "one-cluster", "own-products", "untuned"
VARIANTS: Mapping[str, StepVariant] = {
    DITHC: StepVariant("dithc's C operators and AdamW"),
    UNTUNED: StepVariant("dithc without a tuning", context=lambda: tuning.use_blocking(None)),
    OWN_PRODUCTS: StepVariant(
        "products of linear layers by dithc, without fused epilogues", context=lambda: use_linear(hcops.linear)
    ),
    **{name: _library_variant(name, library) for name, library in LIBRARIES.items()},
    ONE_CLUSTER: StepVariant(
        "dithc on the core count of one core cluster", skip_reason=_no_second_cluster, context=one_cluster
    ),
    "numba": StepVariant("dithc's Numba operators and AdamW", backend="numba", skip_reason=lambda dtype: None),
    "eager": _torch_variant("PyTorch's operators, eager; fused AdamW"),
    "compile": _torch_variant(
        "PyTorch's operators under torch.compile; fused AdamW",
        wrap=lambda model: cast(Callable[..., Tensor], torch.compile(model)),
        skip_reason=_no_compiler,
    ),
    "max-autotune": _torch_variant(
        "PyTorch's operators under torch.compile with mode max-autotune; fused AdamW",
        wrap=lambda model: cast(Callable[..., Tensor], torch.compile(model, mode="max-autotune")),
        skip_reason=_no_compiler,
    ),
    "medium": _torch_variant(
        'eager PyTorch with set_float32_matmul_precision("medium"), which may round operands to bf16; fused AdamW',
        skip_reason=lambda dtype: "it changes only fp32 products" if dtype == "bf16" else None,
        context=_medium_precision,
    ),
}
PEERS = ("eager", "compile", "max-autotune", "medium")
"""Variants of PyTorch that a speedup is compared with. "medium" computes fp32 less exactly than the others."""
EXACT_PEERS = PEERS[:3]


@contextmanager
def quiet_choices() -> Iterator[None]:
    """Silence the log of backend choices, which each step repeats."""
    choices = logging.getLogger("dithc.engine.hcops")
    level = choices.level
    choices.setLevel(logging.WARNING)
    try:
        yield
    finally:
        choices.setLevel(level)
