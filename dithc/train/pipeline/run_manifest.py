"""Manifest of a segment, derived from the checkpoint and the metrics in the store; it can be rewritten at any time."""

import math
import os
from pathlib import Path
from statistics import fmean, median

from dithc.config import training
from dithc.core.artifacts import CheckpointStore, Manifest, summaries
from dithc.core.logging import get_logger, read_metrics
from dithc.engine.cost import records
from dithc.train.job import TrainingJob
from dithc.train.monitoring import METRICS_FOLDER
from dithc.train.optimizer import initial_weight_fraction

log = get_logger(__name__)
FIRST, LAST = 10, 100
WARMUP_STEPS = 2  # first steps after a start are slower: first touch of memory, caches of the kernels


def write_manifest(job: TrainingJob, *, store: CheckpointStore, inputs: dict[str, str], seconds: float) -> None:
    """Protect the last checkpoint of a job, then write its manifest; `inputs` are digests of manifests by path."""
    checkpoint, out = store.open(job.until), job.paths.out
    store.pin(checkpoint.step)
    Manifest(
        stage="train",
        name=job.name,
        spec=job.spec,
        summary=_numbers(store, checkpoint),
        files=[
            entry | {"path": os.path.relpath(checkpoint.folder / entry["path"], out.parent)}
            for entry in checkpoint.files
        ],
        inputs=inputs,
        wall_seconds=round(seconds, 3),
    ).write(out)


def record_outcome(job: TrainingJob, store: CheckpointStore) -> None:
    """Append predicted and measured numbers to the file of this machine, if the run follows a plan."""
    plan = records.read_plan(records.plan_path(job.paths.out.resolve().parent.parent.parent, job.name))
    predicted = records.estimate_of(plan, job.run, job.machine)
    numbers = _numbers(store, store.open(job.until))
    seconds = numbers["seconds_per_step_median"]
    if predicted is not None and seconds:
        records.append_outcome(predicted, seconds=seconds, rank_bytes=numbers["peak_rss_bytes"])
        log.info(f"plan: {predicted['seconds']:.3g} s per step predicted, {seconds:.3g} s measured")


def _numbers(store: CheckpointStore, checkpoint: CheckpointStore.Checkpoint) -> summaries.TrainSummary:
    meta = checkpoint.meta
    rows = [row for row in read_metrics(store.folder / METRICS_FOLDER) if row["step"] <= checkpoint.step]
    losses = [row["loss"] for row in rows if math.isfinite(row["loss"])]  # a dropped step has no loss
    val_losses = [row["val_loss"] for row in rows if math.isfinite(row.get("val_loss", math.nan))]
    times = [row["step_seconds"] for row in rows]
    settled = times[WARMUP_STEPS:] or times
    seconds = median(settled) if settled else None
    return {
        "step": checkpoint.step,
        "initial_loss": losses[0] if losses and rows[0]["step"] == 1 else None,
        "mean_loss_first_10": fmean(losses[:FIRST]) if losses else None,
        "mean_loss_last_100": fmean(losses[-LAST:]) if losses else None,
        "val_loss": val_losses[-1] if val_losses else None,
        "seconds_per_step_median": seconds,
        "exposed_seconds_median": _median_of(rows, "exposed_seconds"),
        "overlap_fraction_median": _median_of(rows, "overlap_fraction"),
        "images_per_second": meta["global_batch_size"] / seconds if seconds else None,
        "training_seconds": sum(times),
        "peak_rss_bytes": int(max((row["peak_rss_bytes"] for row in rows), default=0)) or None,
        "loaded_bytes_median": _median_of(rows, "loaded_bytes"),
        "offloaded_bytes_median": _median_of(rows, "offloaded_bytes"),
        "stall_seconds_median": _median_of(rows, "stall_seconds"),
        "fast_peak_bytes": int(max((row.get("fast_peak_bytes", 0) for row in rows), default=0)) or None,
        "ranks": meta["ranks"],
        "threads": meta["threads"],
        "global_batch_size": meta["global_batch_size"],
        "parameters": meta["parameters"],
        "dtype": meta["dtype"],
        "preset": meta["preset"],
        "model": meta["model"],
        "codec": meta["codec"],
        "epochs": meta["position"]["epoch"],
        "skipped_steps": [step for step in meta.get("skipped_steps", []) if step <= checkpoint.step],
        "checkpoint_folder": str(store.folder),
        "metrics": str(Path(store.folder) / METRICS_FOLDER / "metrics.jsonl"),
        "ema_note": _ema_note(training.EmaConfig(**meta["ema"]), checkpoint.step),
    }


def _median_of(rows: list[dict[str, float]], name: str) -> float | None:
    """Return the median of settled steps' values; None without values, as on one rank."""
    values = [row[name] for row in rows[WARMUP_STEPS:] if math.isfinite(row.get(name, math.nan))]
    return median(values) if values else None


def _ema_note(settings: training.EmaConfig, step: int) -> str:
    share = initial_weight_fraction(step, decay=settings.decay, warmup=settings.warmup)
    mode = "with warm-up" if settings.warmup else "without warm-up"
    remaining = f"{100 * share:.2g}% of the initial weights are left after {step} steps"
    return f"EMA of decay {settings.decay:g} {mode}: {remaining}"
