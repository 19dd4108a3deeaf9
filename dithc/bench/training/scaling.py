"""Training on increasing numbers of ranks (figures 10 and 11): weak and strong scaling, exposed communication.

Each rank count is a separate launch with equal core shares. Counts are interleaved; efficiencies compare runs of the
same round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal

from dithc.bench.environment import circumstances, prepare_threads, require, require_among, require_at_least
from dithc.bench.rooflines import Precision
from dithc.bench.timing import Timing, spread
from dithc.bench.training.run import RunSettings, TrainingResult, TrainingVariant, interleaved, row_of, run_training
from dithc.config import training
from dithc.core.logging import get_logger, progress
from dithc.engine.hardware import Machine as Node
from dithc.model import PRESETS, DiTConfig, Flops, flops_per_image

log = get_logger(__name__)
OVERSUBSCRIBED = "oversubscribed: correctness check only"
ROUNDOFF = {"fp32": 2.0**-24, "bf16": 2.0**-9}
COUNTED = {
    "seconds": "seconds per step of the slowest rank: median over the steps of a run, then over rounds",
    "efficiency": "weak: seconds on the fewest ranks over seconds; strong: also times the ratio of the fewest ranks to "
    "these; for runs of the same round",
    "exposed_seconds": "wait for gradients after the backward pass of a step, on the rank that waited longest, with "
    "the wait for slower ranks",
    "flops_per_second": "all ranks, linear layers and attention, forward and backward, without recomputation; "
    "linear_flops_per_second: only linear layers, as in the paper",
    "same_training": "strong: losses and gradient norms of all steps compared with the run on the fewest ranks; with "
    "AdamW, losses alone would hide a wrong scale of gradients",
    "no_communication_baseline": "joint steps over steps in which every rank works independently, in pairs within one run, "
    "in alternating order, each after a barrier; seconds of the slowest rank",
}


@dataclass(frozen=True, kw_only=True)
class ScalingSettings(RunSettings):
    """Settings of the scaling benchmark, described by `dithc bench scaling --help`."""

    mode: Literal["weak", "strong"]
    models: tuple[str, ...] = ("DiT-B/2",)
    ranks: tuple[int, ...] = (1, 2)
    batch: int = 8
    strategy: training.StrategyName = "cftp"
    no_communication_baseline: bool = False
    launcher: Literal["mpiexec", "srun"] = "mpiexec"
    ranks_per_node: int | None = None
    cpus_per_rank: int | None = None

    def images(self, ranks: int) -> int:
        """Return the images per step over this many ranks."""
        return self.batch * ranks if self.mode == "weak" else self.batch


def bench_scaling(settings: ScalingSettings, *, folder: Path | None = None) -> dict[str, Any]:
    """Measure and return the results for JSON, with a curve per model.

    `folder` contains the files of the runs and is shared by all nodes; None selects a temporary folder of this node.
    """
    _check(settings)
    machine, core_plan = prepare_threads(None)
    variants = variants_on(machine, settings)
    for variant in variants:
        if variant.is_oversubscribed:
            log.warning("%d ranks x %d core(s) per node: %s", variant.ranks, variant.cpus, OVERSUBSCRIBED)
    curves = []
    total = len(settings.models) * len(variants) * settings.rounds
    with progress(total=total, label=f"{settings.mode} scaling", unit="run") as bar:
        for model in settings.models:
            run = partial(_run, model=model, settings=settings, parent=folder)
            runs = interleaved(variants, settings.rounds, run, bar=bar, label=model)
            curves.append(curve(model, settings, variants, runs))
    return {
        "bench": "scaling",
        "settings": asdict(settings),
        "curves": curves,
        "counted": COUNTED,
        **circumstances(machine, core_plan),
    }


def variants_on(machine: Node, settings: ScalingSettings) -> list[TrainingVariant]:
    """Return ranks, nodes and cores of each count. Smaller counts keep the same core share per rank."""
    cores = machine.visible_cores
    full = settings.ranks_per_node or max((count for count in settings.ranks if count <= len(cores)), default=1)
    cpus = settings.cpus_per_rank or max(1, len(cores) // full)
    variants = []
    for count in settings.ranks:
        nodes, subset = -(-count // (settings.ranks_per_node or count)), cores[: count * cpus]
        is_part = settings.ranks_per_node is None and settings.launcher == "mpiexec" and len(subset) < len(cores)
        allowed = tuple(cpu for core in subset for cpu in core.cpus if cpu in machine.limits.allowed_cpus)
        variants.append(
            TrainingVariant(
                name=f"{count} rank(s)",
                strategy=settings.strategy,
                ranks=count,
                cpus=cpus,
                allowed=allowed if is_part else None,
                launcher=settings.launcher,
                nodes=nodes,
                # Without srun, all nodes are assumed to be equal to this one.
                is_oversubscribed=settings.launcher != "srun" and -(-count // nodes) * cpus > len(cores),
            )
        )
    return variants


def curve(
    model: str,
    settings: ScalingSettings,
    variants: Sequence[TrainingVariant],
    runs: Mapping[str, Sequence[TrainingResult]],
) -> dict[str, Any]:
    """Return the curve of a model with a point per rank count."""
    config = replace(PRESETS[model], **settings.overrides)
    points = [_point(variant, runs[variant.name], settings, flops_per_image(config)) for variant in variants]
    measured = [point for point in points if point["status"] == "ok"]
    fair = [point for point in measured if not point["oversubscribed"]]
    for point in fair:
        point |= _efficiency(point, fair[0], strong=settings.mode == "strong")
    if settings.mode == "strong" and measured:
        tolerance = _tolerance(config, settings.dtype)
        for point in measured:
            series = [[*row["losses"], *row["grad_norms"]] for row in (measured[0], point)]
            point["same_training"] = agreement(*series, tolerance=tolerance)
    return {
        "label": model.removeprefix("DiT-"),
        "kind": "measured",
        "model": model,
        "mode": settings.mode,
        "global_batch_size": settings.batch if settings.mode == "strong" else None,
        "points": points,
    }


def _point(
    variant: TrainingVariant, runs: Sequence[TrainingResult], settings: ScalingSettings, flops: Flops
) -> dict[str, Any]:
    point = {
        "nodes": variant.nodes,
        "ranks": variant.ranks,
        "cpus": variant.cpus,
        "oversubscribed": variant.is_oversubscribed,
        **dict.fromkeys(("seconds", "efficiency", "exposed_seconds", "flops_per_second")),
    }
    row = row_of(runs)
    if row["status"] != "ok":
        return point | row
    seconds, images = row["seconds"]["median"], settings.images(variant.ranks)
    exposed = [_exchange(run, "exposed_seconds") for run in runs]
    overlaps = [overlap for run in runs if (overlap := _exchange(run, "overlap_fraction", pick=min)) is not None]
    measured = {
        "seconds": seconds,
        "seconds_spread": row["seconds"],
        "images": images,
        "images_per_second": images / seconds,
        "flops_per_second": images * flops.training_total / seconds,
        "linear_flops_per_second": images * flops.training_linear / seconds,
        "exposed_seconds": median(value or 0.0 for value in exposed),
        "overlap_fraction": median(overlaps) if overlaps else None,
        "no_communication_baseline": no_communication_baseline(runs),
        "each_rank": [run.result["each_rank"] for run in runs],
    }
    return point | row | measured


def _exchange(run: TrainingResult, name: str, *, pick: Any = max) -> float | None:
    """Return the median over steps of the worst rank's number, or None if unknown."""
    series = [values for rank in run.result["each_rank"] if (values := rank.get("exchange", {}).get(name))]
    return median(pick(values) for values in zip(*series, strict=True)) if series else None


def no_communication_baseline(runs: Sequence[TrainingResult]) -> dict[str, Any] | None:
    """Return the ratio of joint steps to independent steps of the same pair, or None without pairs."""
    pairs = [pair for run in runs if (pair := run.result.get("pairs"))]
    if not pairs:
        return None
    joint, independent, exposed = (
        [value for pair in pairs for value in pair[name]] for name in ("together", "alone", "exposed_seconds")
    )
    return {
        "seconds": median(independent),
        "ratio": spread(Timing(tuple(joint)).ratios_to(Timing(tuple(independent)))),
        "exposed_share": spread([wait / step for wait, step in zip(exposed, joint, strict=True)]),
    }


def _efficiency(point: Mapping[str, Any], base: Mapping[str, Any], *, strong: bool) -> dict[str, Any]:
    ratios = Timing(tuple(base["seconds_spread"]["all"])).ratios_to(Timing(tuple(point["seconds_spread"]["all"])))
    efficiency = spread([ratio * (base["ranks"] / point["ranks"] if strong else 1.0) for ratio in ratios])
    return {"efficiency": efficiency["median"], "efficiency_spread": efficiency}


def agreement(first: Sequence[float], other: Sequence[float], *, tolerance: float) -> dict[str, Any]:
    """Return the largest relative difference of two sequences, and whether it is within the tolerance."""
    largest = max(abs(loss - reference) / abs(reference) for loss, reference in zip(other, first, strict=True))
    return {"largest_difference": largest, "tolerance": tolerance, "same": largest <= tolerance}


def _tolerance(config: DiTConfig, dtype: Precision) -> float:
    """Return the rounding errors of a layer's output (fp32: at every term of the longest product), over all layers."""
    terms = max(config.mlp_rows, config.mlp_width) if dtype == "fp32" else 1
    return ROUNDOFF[dtype] * terms * config.depth


def _run(variant: TrainingVariant, *, model: str, settings: ScalingSettings, parent: Path | None) -> TrainingResult:
    options = settings.run_options(model, settings.images(variant.ranks))
    options += ["--pairs", str(settings.steps)] if settings.no_communication_baseline and variant.ranks > 1 else []
    return run_training(variant, options, parent=parent)


def _check(settings: ScalingSettings) -> None:
    require_among("bench --models", settings.models, PRESETS)
    require_at_least(settings, rounds=1, warmup=2, steps=1, batch=1, ranks=1)
    is_valid = list(settings.ranks) == sorted(set(settings.ranks))
    require(is_valid, "bench --ranks", ",".join(map(str, settings.ranks)), "ascending numbers, each once")
    for count in settings.ranks:
        is_valid = settings.images(count) % count == 0
        require(is_valid, "bench --batch", f"{settings.batch} images on {count} ranks", "equal shares")
