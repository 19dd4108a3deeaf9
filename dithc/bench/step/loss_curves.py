"""Losses of training from scratch on one platform, with the same weights, images and noise on every platform (figure
7).

Legend: N batch, C channels.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from dithc.bench.environment import circumstances, prepare_threads, require_among, require_at_least
from dithc.bench.gemm_libraries import EMULATED, make_linear, use_linear
from dithc.bench.rooflines import Precision
from dithc.bench.step.variants import CONTENDERS, DITHC, Batch, StepVariant, Training, TrainingStep, quiet_choices
from dithc.core.logging import get_logger, progress
from dithc.core.summaries import ABSENT, Measurement, Table, short
from dithc.diffusion import Schedule
from dithc.model import DiT

log = get_logger(__name__)

COARSE = 4  # resolution per side of the coarse field that dominates an image
SHARE = 0.9  # of the image's variance
DATA = "generated latents: smooth fields with noise, one field per class"
# Emulation takes seconds for an operation of milliseconds.
TINY: Mapping[str, Any] = {"hidden_size": 64, "depth": 1, "num_heads": 2}
MOST_EMULATED_STEPS = 20


@dataclass(frozen=True)
class Platform:
    """Variant, type and torch device of a training run."""

    what: str
    contender: StepVariant
    dtype: Precision = "fp32"
    device: str = "cpu"

    def obstacle(self) -> str | None:
        """Return the reason why it cannot run here, or None."""
        if self.device == "cuda" and not torch.cuda.is_available():
            return "this PyTorch finds no GPU"
        return self.contender.obstacle(self.dtype)


_SME = StepVariant(
    "products of linear layers by the emulated SME kernels, other operators by PyTorch",
    backend="reference",
    obstacle=EMULATED["sme"].obstacle,
    around=lambda: use_linear(make_linear(EMULATED["sme"])),
)
PLATFORMS: Mapping[str, Platform] = {
    "reference": Platform("PyTorch's operators, fp32", CONTENDERS["eager"]),
    "c-fp32": Platform("dithc's C operators, fp32", CONTENDERS[DITHC]),
    "c-bf16": Platform("dithc's C operators, bf16 products", CONTENDERS[DITHC], dtype="bf16"),
    "numba": Platform("dithc's Numba operators, fp32", CONTENDERS["numba"]),
    "sme": Platform(f"{EMULATED['sme'].what()}; other operators by PyTorch, fp32", _SME),
    "cuda": Platform("PyTorch's operators on a GPU, fp32", CONTENDERS["eager"], device="cuda"),
}


@dataclass(frozen=True, kw_only=True)
class CurveSettings:
    """Settings of training runs with recorded losses, described by `dithc bench curves --help`."""

    platform: str = "c-fp32"
    beside: Sequence[str] = ()
    model: str = "DiT-S/2"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 16
    steps: int = 100
    seed: int = 0
    threads: int | None = None


def bench_curves(settings: CurveSettings) -> dict[str, Any]:
    """Train and return the loss of each step for JSON. An unavailable platform returns its reason.

    `sme` trains a tiny network for at most 20 steps, because each product is emulated. The entries of `curves` name the
    network.
    """
    require_among("bench curves --platform", (settings.platform, *settings.beside), PLATFORMS)
    require_at_least(settings, "bench curves", batch=1, steps=1, threads=1)
    machine, core_plan = prepare_threads(settings.threads)
    overrides, steps = dict(settings.overrides), settings.steps
    if settings.platform == "sme":
        overrides |= TINY
        steps = min(steps, MOST_EMULATED_STEPS)
    curves = []
    with quiet_choices():
        for name in (settings.platform, *settings.beside):
            curves.append(_trained(name, settings, overrides, steps))
    return {
        "bench": "curves",
        "settings": asdict(settings) | {"threads": torch.get_num_threads(), "optimizer": "AdamW", "lr": 1e-4},
        "data": DATA,
        "curves": curves,
        **circumstances(machine, core_plan),
    }


def _trained(name: str, settings: CurveSettings, overrides: Mapping[str, Any], steps: int) -> dict[str, Any]:
    platform = PLATFORMS[name]
    told: dict[str, Any] = {
        "platform": name,
        "what": platform.what,
        "model": {"preset": settings.model, **overrides},
        "batch": settings.batch,
        "seed": settings.seed,
    }
    if why := platform.obstacle():
        log.warning("skipping %s: %s", name, why)
        return told | {"status": "skipped", "reason": why, "steps": 0, "losses": []}
    torch.manual_seed(settings.seed)
    model, schedule = DiT.from_preset(settings.model, **overrides), Schedule.linear()
    draw = _draws(model, schedule, settings, platform.device)
    training = Training(model.to(platform.device), batch=draw(0), dtype=platform.dtype)
    step, losses, start = TrainingStep(training, platform.contender), list[float](), time.monotonic()
    with progress(total=steps, label=f"{name}, seed {settings.seed}", unit="step") as bar:
        for number in range(steps):
            training.batch = draw(number)
            losses.append(step())
            bar.update(1, loss=f"{losses[-1]:.4f}")
    return told | {"status": "ok", "steps": steps, "losses": losses, "seconds": time.monotonic() - start}


def _draws(model: DiT, schedule: Schedule, settings: CurveSettings, device: str) -> Callable[[int], Batch]:
    """Return a function that draws the batch of a step by seed, on the CPU for every platform."""
    shape = (settings.batch, model.config.in_channels, *model.config.size)
    of_classes = torch.Generator().manual_seed(settings.seed)
    fields = torch.randn(model.config.num_classes, shape[1], COARSE, COARSE, generator=of_classes)

    def draw(number: int) -> Batch:
        generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + number + 1)
        y = torch.randint(0, model.config.num_classes, shape[:1], generator=generator)  # (N)
        smooth = F.interpolate(fields[y], size=shape[2:], mode="nearest")  # (N, C, height, width)
        x0 = SHARE**0.5 * smooth + (1 - SHARE) ** 0.5 * torch.randn(shape, generator=generator)
        noise = torch.randn(shape, generator=generator)
        t = torch.randint(0, len(schedule), shape[:1], generator=generator)  # (N)
        return Batch(x0, noise, schedule.q_sample(x0, t, noise), t, y).to(device)

    return draw


def curves_summary(result: Mapping[str, Any]) -> Measurement:
    """Summarize the first and last loss of each platform."""
    rows = [
        [one["platform"], short(one["losses"][0]), short(one["losses"][-1]), str(one["steps"]), short(one["seconds"])]
        if one["status"] == "ok"
        else [one["platform"], one["status"], *[ABSENT] * 3]
        for one in result["curves"]
    ]
    head = ["Platform", "First loss", "Last loss", "Steps", "Seconds"]
    return Measurement(
        title=f"Losses of training from scratch; {result['data']}",
        tables=[Table(title="Losses by platform", head=head, rows=rows)],
        notes=[f"{one['platform']}: {one['reason']}" for one in result["curves"] if one["status"] != "ok"],
    )
