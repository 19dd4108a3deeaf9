"""Conversion of gathered results into records of the report."""

import time
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import platform, python_version

from dithc.config import ExperimentConfig
from dithc.core.reproduction import read_reference
from dithc.report import scaling_curves
from dithc.report.collect.datasets import dataset_record
from dithc.report.collect.evaluations import evaluation_record
from dithc.report.collect.gather import STAGES, ExperimentResults, StageResult
from dithc.report.collect.restorations import restoration_records
from dithc.report.collect.runs import run_record, run_seconds
from dithc.report.documents import read_bench, read_json
from dithc.report.records import Origin, ReportRecords, Timing

MUCH_CLIPPED = 0.02  # share of the observed values of a restoration
PACKAGES = ("dithc", "torch", "numpy", "snakemake", "mpi4py", "diffusers", "safetensors", "rasterio", "scipy")


def collect_records(
    experiment: ExperimentConfig,
    results: ExperimentResults,
    *,
    benches: Mapping[str, Path | None] | None = None,
    scaling: Iterable[Path] = (),
    machine: Iterable[str] = (),
    config: Path | None = None,
) -> ReportRecords:
    """Collect the records of the report from gathered results; see `write_report` for the arguments."""
    missing, published = _missing(experiment, results), read_reference().scaling
    return ReportRecords(
        name=experiment.name,
        title=experiment.title,
        written=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        datasets=[dataset_record(experiment, results, name) for name in experiment.datasets],
        runs=[run_record(experiment, results, name) for name in experiment.runs],
        evaluations=[evaluation_record(experiment, results, name) for name in experiment.scored],
        restorations=list(restoration_records(experiment, results)),
        timings=_timings(experiment, results),
        origins=[_origin(item) for item in results.items],
        warnings=_warnings(experiment, results, missing),
        missing=missing,
        machine=list(machine),
        versions=_versions() | {"code of the results": ", ".join(results.code) or "none"},
        benches={kind: read_bench(path, kind) for kind, path in (benches or {}).items() if path},
        scaling=scaling_curves.add_published(
            read_scaling(scaling), scaling_curves.parse_curves(published, origin="the paper's numbers")
        ),
        seed=experiment.seed,
        config=config,
    )


def read_scaling(paths: Iterable[Path]) -> list[scaling_curves.ScalingCurve]:
    """Read curves written by `dithc bench scaling --json` or `dithc simulate --json`."""
    files = ((path, read_json(path).get("curves")) for path in paths)
    return [curve for path, content in files for curve in scaling_curves.parse_curves(content, origin=str(path))]


def _timings(experiment: ExperimentConfig, results: ExperimentResults) -> list[Timing]:
    """Return wall times by stage, in data-flow order, and name; jobs of a run are summed."""
    results_of = {(stage, item.name): results.all(stage, item.name) for stage in STAGES for item in results.all(stage)}
    return [
        Timing(stage=stage, name=name, dataset=_dataset_of(experiment, stage, name), seconds=run_seconds(jobs))
        for (stage, name), jobs in results_of.items()
    ]


def _dataset_of(experiment: ExperimentConfig, stage: str, name: str) -> str:
    """Return the dataset of a result; empty if it serves several."""
    if stage == "train":
        return experiment.runs[name].dataset
    if name in experiment.evaluations and stage in ("sample", "features", "fid"):
        return experiment.runs[experiment.evaluations[name].run].dataset
    if stage == "restore":
        return experiment.restorations[name].dataset
    if stage in ("codec", "extractor"):
        settings = experiment.codecs.get(name) if stage == "codec" else experiment.extractors.get(name)
        return getattr(settings, "train_dataset", None) or ""
    return name.split(".")[0]  # a dataset, or real features as dataset.split.extractor


def _origin(item: StageResult) -> Origin:
    manifest = item.manifest
    step = f" step {item.summary['step']}" if item.stage == "train" and "step" in item.summary else ""
    return Origin(
        stage=item.stage,
        name=item.name + step,
        digest=manifest.digest,
        code=str(manifest.code.get("source", "unknown")),
        commit=str(manifest.code.get("commit", "")),
        host=f"{manifest.host.get('name', 'unknown')}, {manifest.host.get('cpus', '?')} CPUs",
        written=manifest.created_at,
        seconds=manifest.wall_seconds,
        path=str(item.path),
    )


def _warnings(experiment: ExperimentConfig, results: ExperimentResults, missing: Mapping[str, list[str]]) -> list[str]:
    texts = []
    if len(results.code) > 1:
        versions = "; ".join(f"{code}: {', '.join(results_of)}" for code, results_of in results.code.items())
        texts.append(f"The results come from {len(results.code)} different versions of the code. {versions}")
    if missing:
        absent = "; ".join(f"{stage} of {', '.join(names)}" for stage, names in missing.items())
        texts.append(f"Not run: {absent}")
    for name, run in experiment.runs.items():
        last_job = results.last("train", name)
        if last_job and last_job.summary["step"] < run.steps:
            texts.append(f"Run {name} is at step {last_job.summary['step']} of {run.steps}")
    for name in experiment.restorations:
        restored = results.last("restore", name)
        if restored and restored.summary.get("clipped", 0) > MUCH_CLIPPED * restored.summary.get("observed", 0):
            share = restored.summary["clipped"] / restored.summary["observed"]
            texts.append(
                f"Restoration {name}: its prior clips {share:.0%} of the observed values. Train on such scenes"
            )
    return texts


def _missing(experiment: ExperimentConfig, results: ExperimentResults) -> dict[str, list[str]]:
    """Return the names of missing results of a complete report by stage."""
    needed = {
        "tiles": experiment.tiled,
        "train": list(experiment.runs),
        "sample": list(experiment.evaluations),
        "fid": experiment.scored,
    }
    missing = {stage: [name for name in names if results.last(stage, name) is None] for stage, names in needed.items()}
    return {stage: names for stage, names in missing.items() if names}


def _versions() -> dict[str, str]:
    versions = {"python": python_version(), "platform": platform()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions
