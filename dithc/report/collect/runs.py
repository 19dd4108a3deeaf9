"""Records of a run, from its settings, the manifests of its segments, and its metrics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dithc.config import ExperimentConfig, training
from dithc.core.logging import get_logger
from dithc.report.collect.curves import read_curve
from dithc.report.collect.datasets import numbers_of, select_fields
from dithc.report.collect.gather import ExperimentResults, StageResult
from dithc.report.records import Curve, RunRecord

log = get_logger(__name__)


def run_record(experiment: ExperimentConfig, results: ExperimentResults, name: str) -> RunRecord:
    settings, segments = experiment.runs[name], results.all("train", name)
    numbers = numbers_of(results.last("train", name))
    curve = _curve(results.last("train", name), [item.summary["step"] for item in segments], settings.global_batch_size)
    fields = select_fields(RunRecord, numbers) | {
        "name": name,
        **{key: getattr(settings, key) for key in ("dataset", "init_from_run", "dtype", "global_batch_size")},
        "preset": settings.model.preset,
        "changes": _changes(settings),
        "settings": flatten(
            {**settings.model_dump(mode="json"), "lr": settings.peak_lr, "seed": experiment.seed_of(name)}
        ),
        "steps_planned": settings.steps,
        "seconds": run_seconds(segments),
        "seconds_per_step": numbers.get("seconds_per_step_median"),
        "weights_note": numbers.get("ema_note") or "",
        "segments": curve.segments if curve else [],
        "resumes": curve.resumes if curve else [],
        "curve": curve,
    }
    return RunRecord(**fields)


def _changes(settings: training.RunConfig) -> dict[str, Any]:
    """Return the differences of a run from a plain DiT with noise prediction."""
    changes: dict[str, Any] = {key: getattr(settings.model, key) for key in ("hidden_size", "depth", "num_heads")}
    changes |= settings.model.block_changes
    changes |= settings.objective.model_dump(mode="json", exclude_defaults=True)
    fields = {"lr_schedule", "decay_fraction", "betas", "augment"}
    changes |= settings.model_dump(mode="json", include=fields, exclude_defaults=True)
    optimizer = settings.optimizer.model_dump(mode="json", exclude_defaults=True)
    changes |= {"optimizer" if key == "kind" else key: value for key, value in optimizer.items()}
    return {key: value for key, value in changes.items() if value is not None}


def _curve(result: StageResult | None, segments: list[int], global_batch_size: int) -> Curve | None:
    """Read the curve of a run; paths are relative to the working folder or to the manifest."""
    if result is None or not result.summary.get("metrics"):
        return None
    metrics, store = Path(result.summary["metrics"]), result.summary.get("checkpoint_folder")
    for path in (metrics, result.path.parent / metrics):
        if path.exists():
            default_store = path if path.is_dir() else path.parent
            folder = Path(store) if store and Path(store).is_dir() else default_store
            return read_curve(
                result.name, metrics=path, store=folder, global_batch_size=global_batch_size, segments=segments
            )
    log.warning(f"run {result.name}: {metrics} does not exist, so the report has no curve of it")
    return None


def run_seconds(segments: list[StageResult]) -> float:
    """Return the wall time of a run from its jobs, or from its steps if stopped jobs left no manifest."""
    jobs = sum(item.manifest.wall_seconds for item in segments)
    steps: list[float] = [item.summary.get("training_seconds", 0.0) for item in segments]
    return max([jobs, *steps])


def flatten(settings: Mapping[str, Any], *, under: str = "") -> dict[str, str]:
    """Return settings as texts by dotted key; empty texts for unset values."""
    texts: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            texts |= flatten(value, under=f"{under}{key}.")
        else:
            texts[under + key] = "" if value is None else format_value(value)
    return texts


def format_value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(format_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
