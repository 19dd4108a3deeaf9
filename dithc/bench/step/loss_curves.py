"""Losses of training from scratch on one platform, with the same weights, images and noise everywhere (figure 7).

Legend: N batch, C channels.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from dithc.bench.environment import circumstances, prepare_threads, require_among, require_at_least
from dithc.bench.rooflines import Precision
from dithc.bench.step.variants import DITHC, VARIANTS, Batch, StepVariant, Training, TrainingStep, quiet_choices
from dithc.core.logging import get_logger, progress
from dithc.core.measurements import ABSENT, Measurement, Table, short
from dithc.diffusion import Schedule
from dithc.model import DiT

log = get_logger(__name__)

COARSE = 4  # resolution per side of the coarse field that dominates an image
SHARE = 0.9  # of the image's variance
DATA = "generated latents: smooth fields with noise, one field per class"


@dataclass(frozen=True)
class Platform:
    """Variant, type and torch device of a training run."""

    description: str
    variant: StepVariant
    dtype: Precision = "fp32"
    device: str = "cpu"

    def skip_reason(self) -> str | None:
        """Return the reason why it cannot run here, or None."""
        if self.device == "cuda" and not torch.cuda.is_available():
            return "this PyTorch finds no GPU"
        return self.variant.skip_reason(self.dtype)


PLATFORMS: Mapping[str, Platform] = {
    "reference": Platform("PyTorch's operators, fp32", VARIANTS["eager"]),
    "c-fp32": Platform("dithc's C operators, fp32", VARIANTS[DITHC]),
    "c-bf16": Platform("dithc's C operators, bf16 products", VARIANTS[DITHC], dtype="bf16"),
    "numba": Platform("dithc's Numba operators, fp32", VARIANTS["numba"]),
    "cuda": Platform("PyTorch's operators on a GPU, fp32", VARIANTS["eager"], device="cuda"),
}


@dataclass(frozen=True, kw_only=True)
class CurveSettings:
    """Settings of training runs with recorded losses, described by `dithc bench curves --help`."""

    platform: str = "c-fp32"
    compare: Sequence[str] = ()
    model: str = "DiT-S/2"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 16
    steps: int = 100
    seed: int = 0
    threads: int | None = None


def bench_curves(settings: CurveSettings) -> dict[str, Any]:
    """Train and return the loss of each step for JSON. An unavailable platform returns its reason."""
    require_among("bench curves --platform", (settings.platform, *settings.compare), PLATFORMS)
    require_at_least(settings, "bench curves", batch=1, steps=1, threads=1)
    machine, core_plan = prepare_threads(settings.threads)
    with quiet_choices():
        curves = [_train(name, settings) for name in (settings.platform, *settings.compare)]
    return {
        "bench": "curves",
        "settings": asdict(settings) | {"threads": torch.get_num_threads(), "optimizer": "AdamW", "lr": 1e-4},
        "data": DATA,
        "curves": curves,
        **circumstances(machine, core_plan),
    }


def _train(name: str, settings: CurveSettings) -> dict[str, Any]:
    platform, overrides, steps = PLATFORMS[name], settings.overrides, settings.steps
    row: dict[str, Any] = {
        "platform": name,
        "description": platform.description,
        "model": {"preset": settings.model, **overrides},
        "batch": settings.batch,
        "seed": settings.seed,
    }
    if reason := platform.skip_reason():
        log.warning("skipping %s: %s", name, reason)
        return row | {"status": "skipped", "reason": reason, "steps": 0, "losses": []}
    torch.manual_seed(settings.seed)
    model, schedule = DiT.from_preset(settings.model, **overrides), Schedule.linear()
    draw = _batch_source(model, schedule, settings, platform.device)
    training = Training(model.to(platform.device), batch=draw(0), dtype=platform.dtype)
    step, losses, start = TrainingStep(training, platform.variant), list[float](), time.monotonic()
    with progress(total=steps, label=f"{name}, seed {settings.seed}", unit="step") as bar:
        for number in range(steps):
            training.batch = draw(number)
            losses.append(step())
            bar.update(1, loss=f"{losses[-1]:.4f}")
    return row | {"status": "ok", "steps": steps, "losses": losses, "seconds": time.monotonic() - start}


def _batch_source(model: DiT, schedule: Schedule, settings: CurveSettings, device: str) -> Callable[[int], Batch]:
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
        [row["platform"], short(row["losses"][0]), short(row["losses"][-1]), str(row["steps"]), short(row["seconds"])]
        if row["status"] == "ok"
        else [row["platform"], row["status"], *[ABSENT] * 3]
        for row in result["curves"]
    ]
    head = ["Platform", "First loss", "Last loss", "Steps", "Seconds"]
    return Measurement(
        title=f"Losses of training from scratch; {result['data']}",
        tables=[Table(title="Losses by platform", head=head, rows=rows)],
        notes=[f"{row['platform']}: {row['reason']}" for row in result["curves"] if row["status"] != "ok"],
    )
