"""Interleaved training steps of a model by three variants: plain torch, torch.compile, and patched."""

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dithc.bench.environment import circumstances, prepare_threads, require_among
from dithc.bench.patching import reference_models, third_party_models
from dithc.bench.timing import spread, time_runs
from dithc.core.logging import get_logger
from dithc.engine import hcops

log = get_logger(__name__)

EAGER, COMPILE, PATCHED = "eager", "compile", "patched"
DTYPES = ("fp32", "autocast", "bf16")
LEARNING_RATE = 1e-4

Loss = Callable[[nn.Module, int], Tensor]


@dataclass(frozen=True, kw_only=True)
class PatchSettings:
    """Settings of the patch benchmark, described by `dithc bench patch --help`."""

    models: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("fp32", "autocast")
    compare: tuple[str, ...] = (EAGER, COMPILE)
    batch: int = 4
    threads: int | None = None
    warmup: int = 2
    rounds: int = 7
    seed: int = 0


def _random_input(model: nn.Module, *shape: int) -> tuple[Tensor, Tensor]:
    numbers = torch.randn(*shape)
    return numbers, numbers.to(next(model.parameters()).dtype)


def _class_loss(model: nn.Module, batch: int) -> Tensor:
    return F.cross_entropy(model(_random_input(model, batch, 3, 224, 224)[1]).float(), torch.arange(batch))


def _token_loss(model: nn.Module, batch: int) -> Tensor:
    tokens = torch.randint(0, 4096, (batch, 256))
    output = model(tokens)
    return F.cross_entropy(getattr(output, "logits", output).flatten(0, 1).float(), tokens.flatten())


def _noise_loss(model: nn.Module, batch: int, *, channels: int, labels: int) -> Tensor:
    noise, typed = _random_input(model, batch, channels, 32, 32)
    return F.mse_loss(model(typed, *[torch.arange(batch)] * labels).sample.float(), noise)


def _siglip_loss(model: nn.Module, batch: int) -> Tensor:
    embedding: Tensor = model(pixel_values=_random_input(model, batch, 3, 224, 224)[1]).pooler_output
    return embedding.float().square().mean()


MODELS: Mapping[str, tuple[Callable[[], nn.Module], Loss]] = {
    "vit": (reference_models.Vit, _class_loss),
    "decoder": (reference_models.Decoder, _token_loss),
    "timm-vit": (third_party_models.vit, _class_loss),
    "diffusers-unet": (third_party_models.unet, partial(_noise_loss, channels=3, labels=1)),
    "diffusers-dit": (third_party_models.dit, partial(_noise_loss, channels=4, labels=2)),
    "transformers-siglip": (third_party_models.siglip, _siglip_loss),
    "transformers-llama": (third_party_models.llama, _token_loss),
}
"""Factory and loss of each model. The first two are dithc's, with the structure of third-party models."""


def bench_patch(settings: PatchSettings) -> dict[str, Any]:
    """Measure every model in every type and return the result for JSON."""
    models = settings.models or tuple(MODELS)
    require_among("bench patch, models", models, MODELS)
    require_among("bench patch, dtypes", settings.dtypes, DTYPES)
    require_among("bench patch, compare", settings.compare, (EAGER, COMPILE))
    machine, core_plan = prepare_threads(settings.threads)
    cases = [_case(name, dtype, settings) for name in models for dtype in settings.dtypes]
    return {
        "bench": "patch",
        "settings": {**asdict(settings), "models": models, "threads": torch.get_num_threads()},
        "cases": cases,
        **circumstances(machine, core_plan),
    }


def _case(name: str, dtype: str, settings: PatchSettings) -> dict[str, Any]:
    build, loss = MODELS[name]
    torch.manual_seed(settings.seed)
    try:
        model = build().train()
    except (ImportError, RuntimeError, AttributeError) as error:  # not installed, or incompatible with this torch
        return {"model": name, "dtype": dtype, "status": "not here", "reason": f"{type(error).__name__}: {error}"[:200]}
    model = model.bfloat16() if dtype == "bf16" else model
    log.info("%s, %s", name, dtype)
    steps, failures = {}, {}
    for variant in (*settings.compare, PATCHED):
        step = _Step(model, variant, dtype, loss, settings)
        try:
            for _ in range(settings.warmup):
                step()
        except Exception as error:  # a compiler may raise any error
            failures[variant] = f"{type(error).__name__}: {error}"[:200]
        else:
            steps[variant] = step
    times = time_runs(steps, repeats=settings.rounds)
    record: dict[str, Any] = {"model": name, "dtype": dtype, "status": "ok" if PATCHED in steps else "failed"}
    record |= {"failures": failures, "seconds": {variant: timing.to_dict() for variant, timing in times.items()}}
    if PATCHED in steps:
        record["speedup_of_patched_over"] = {
            variant: spread([1 / ratio for ratio in times[PATCHED].ratios_to(times[variant])])
            for variant in times
            if variant != PATCHED
        }
        record["served"] = [asdict(row) for row in steps[PATCHED].patched.table()]
        record["gradients_off"] = _gradient_errors(model, dtype, loss, settings)
    return record


class _Step:
    """A training step of a copy of the model: forward, loss, backward, torch's default AdamW."""

    def __init__(self, model: nn.Module, variant: str, dtype: str, loss: Loss, settings: PatchSettings) -> None:
        self._model, self._dtype, self._loss, self._settings = copy.deepcopy(model), dtype, loss, settings
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LEARNING_RATE)
        self._forward: Any = torch.compile(self._model) if variant == COMPILE else self._model
        if variant == PATCHED:
            self.patched = hcops.patch(self._model, self._optimizer)

    def __call__(self) -> None:
        torch.manual_seed(self._settings.seed)  # also seeds label dropout
        self._optimizer.zero_grad(set_to_none=True)
        with _precision(self._dtype):
            loss = self._loss(self._forward, self._settings.batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()


def _gradient_errors(model: nn.Module, dtype: str, loss: Loss, settings: PatchSettings) -> dict[str, float]:
    """Return relative gradient errors of the first step, plain and patched; nan without float64 support."""
    double = copy.deepcopy(model).double()
    try:
        truth = _gradient(double, "fp64", loss, settings)
    except RuntimeError:
        return {EAGER: math.nan, PATCHED: math.nan}
    gradients = {EAGER: _gradient(model, dtype, loss, settings)}
    hcops.patch(model)
    gradients[PATCHED] = _gradient(model, dtype, loss, settings)
    return {variant: ((gradient - truth).norm() / truth.norm()).item() for variant, gradient in gradients.items()}


def _gradient(model: nn.Module, dtype: str, loss: Loss, settings: PatchSettings) -> Tensor:
    torch.manual_seed(settings.seed)
    model.zero_grad(set_to_none=True)
    with _precision(dtype):
        value = loss(model, 1)
    value.backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])


def _precision(dtype: str) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "autocast")
