"""Turns results into the report's records: one function per record, nothing is computed that a stage did not say."""

import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import platform, python_version
from typing import Any

from dithc.config import Experiment
from dithc.log import logger, problem
from dithc.report.automem import read_automem
from dithc.report.collect_data import dataset_facts, numbers_of, read_json
from dithc.report.curves import Curve, read_curve
from dithc.report.facts import EvaluationFacts, Facts, Origin, RunFacts, Score, Timing
from dithc.report.gains import gain_of
from dithc.report.gather import STAGES, Result, Results
from dithc.report.reference import Reference
from dithc.report.scaling import ScalingCurve, curves_of, together
from dithc.report.stepwise import read_stepwise
from dithc.report.strategies import read_strategies
from dithc.runs import outcome

PACKAGES = (
    "dithc",
    "torch",
    "numpy",
    "snakemake",
    "mpi4py",
    "diffusers",
    "safetensors",
    "rasterio",
    "scipy",
    "matplotlib",
)
log = logger(__name__)


def collect(
    experiment: Experiment,
    results: Results,
    reference: Reference,
    *,
    bench: Path | None,
    machine: list[str],
    strategies: Path | None = None,
    scaling: Iterable[Path] = (),
    stepwise: Path | None = None,
    automem: Path | None = None,
) -> Facts:
    """All the report says, from results that belong together.

    Args:
        experiment: the configuration.
        results: what `gather` gave.
        reference: the paper's numbers.
        bench: JSON of the step bench, None where it was not run.
        machine: lines that describe the machine.
        strategies: JSON of the comparison of strategies, None where it was not run.
        scaling: JSON files of measured and of simulated scaling.
        stepwise: JSON of the training by stages, None where it was not run.
        automem: JSON of what AutoMem gives, None where it was not measured.

    Raises:
        UserError: a file beside a manifest, or the bench, is unreadable.
    """
    return Facts(
        name=experiment.name,
        title=experiment.title,
        written=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        datasets=[dataset_facts(experiment, results, name) for name in experiment.datasets],
        runs=[_run(experiment, results, name) for name in experiment.runs],
        evaluations=[_evaluation(experiment, results, reference, name) for name in experiment.evaluations],
        timings=_timings(experiment, results),
        origins=[_origin(item) for item in results.items],
        warnings=_warnings(experiment, results),
        machine=machine,
        versions=_versions() | {"code of the results": ", ".join(results.code) or "none"},
        bench=_bench(bench) if bench else None,
        strategies=read_strategies(strategies) if strategies else None,
        scaling=together(read_scaling(scaling), reference.scaling),
        stepwise=read_stepwise(stepwise) if stepwise else None,
        stepwise_paper=reference.tables.get("figure9"),
        automem=read_automem(automem) if automem else None,
    )


def _run(experiment: Experiment, results: Results, name: str) -> RunFacts:
    settings, segments = experiment.runs[name], results.of("train", name)
    numbers = numbers_of(results.one("train", name))
    curve = _curve(results.one("train", name), [item.numbers["step"] for item in segments], settings.global_batch)
    same = (
        "parameters",
        "ranks",
        "threads",
        "step",
        "initial_loss",
        "loss_first10",
        "loss_last100",
        "val_loss",
        "images_per_second",
    )
    changes: dict[str, Any] = {key: getattr(settings.model, key) for key in ("hidden_size", "depth", "num_heads")}
    changes |= settings.model.block_changes
    changes |= settings.objective.model_dump(mode="json", exclude_defaults=True)
    chosen = {"lr_schedule", "decay_share", "betas", "augment"}
    changes |= settings.model_dump(mode="json", include=chosen, exclude_defaults=True)
    other = settings.optimizer.model_dump(mode="json", exclude_defaults=True)
    changes |= {"optimizer" if key == "kind" else key: value for key, value in other.items()}
    guide = settings.model_dump(mode="json", include={"guide"}, exclude_defaults=True).get("guide", {})
    changes |= {f"guide.{key}": value for key, value in guide.items()}
    return RunFacts(
        name=name,
        dataset=settings.dataset,
        init=settings.init,
        preset=settings.model.preset,
        changes={key: value for key, value in changes.items() if value is not None},
        dtype=settings.dtype,
        steps_planned=settings.steps,
        global_batch=settings.global_batch,
        seconds=_run_seconds(segments),
        seconds_per_step=numbers.get("seconds_per_step_median"),
        peak_rss_bytes=numbers.get("peak_rss_bytes"),
        weights_note=str(numbers.get("ema_note") or ""),
        segments=curve.segments if curve else [],
        resumes=curve.resumes if curve else [],
        loss_steps_6_to_10=curve.mean_loss(6, 10) if curve else None,
        curve=curve,
        **{key: numbers.get(key) for key in same},
    )


def _bench(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if "contenders" not in content:
        raise problem(
            f"{path} is no bench of a training step",
            got=f"keys {', '.join(content) or 'none'}",
            expected="what `dithc bench step --json` wrote, with `contenders`",
            remedy="run the bench again, or leave out --bench",
        )
    return content


def read_scaling(paths: Iterable[Path]) -> list[ScalingCurve]:
    """The curves in files that `dithc bench scaling --json` or `dithc simulate --json` wrote.

    Raises:
        UserError: a file is unreadable, or something else.
    """
    return [one for path in paths for one in curves_of(read_json(path).get("curves"), origin=str(path))]


def _curve(result: Result | None, segments: list[int], global_batch: int) -> Curve | None:
    """The curve of a run from the metrics its manifest names, relative to the working folder or to the manifest."""
    if result is None or not result.numbers.get("metrics"):
        return None
    named, store = Path(result.numbers["metrics"]), result.numbers.get("store")
    for path in (named, result.path.parent / named):
        if path.exists():
            beside = path if path.is_dir() else path.parent
            folder = Path(store) if store and Path(store).is_dir() else beside
            return read_curve(result.name, metrics=path, store=folder, global_batch=global_batch, segments=segments)
    log.warning(f"run {result.name}: {named} is gone, so the report has no curve of it")
    return None


def _label(experiment: Experiment, evaluation: str) -> str:
    """What the evaluated weights are, in words."""
    chosen = experiment.evaluations[evaluation]
    run = experiment.runs[chosen.run]
    task = "fine-tuning" if run.init or run.init_file else "training"
    if isinstance(chosen.at, int):
        return f"after step {chosen.at:,}"
    words = {"untrained": "untrained", "start": f"before {task}", "final": f"after {task}", "codec": "the codec alone"}
    return words[chosen.at]


def _evaluation(experiment: Experiment, results: Results, reference: Reference, name: str) -> EvaluationFacts:
    settings = experiment.evaluations[name]
    dataset = experiment.runs[settings.run].dataset
    samples, compared = results.one("sample", name), results.one("fid", name)
    numbers = numbers_of(samples)
    same = ("run", "at", "weights", "ema", "order", "steps", "times", "epsilon_scaling", "real_split")
    guided = ("guidance", "guidance_channels", "guidance_interval", "guide")
    return EvaluationFacts(
        name=name,
        dataset=dataset,
        label=_label(experiment, name),
        images=numbers.get("images"),
        images_per_second=numbers.get("images_per_second"),
        network_evaluations=numbers.get("network_evaluations"),
        score=_score(compared) if compared else None,
        gain=gain_of(experiment, results, name),
        paper=reference.fid_of(experiment.datasets[dataset].source.kind),
        grid=samples.file("grid.png") if samples else None,
        curves=read_json(curves) if compared and (curves := compared.file(outcome.CURVES_FILE)) else None,
        sampler=str(settings.sampler),
        **{key: getattr(settings, key) for key in (*same, *guided)},
    )


def _score(result: Result) -> Score:
    numbers = result.numbers
    always = ("fid", "n_real", "n_generated", "extractor", "sha256", "resize", "comparable")
    younger = (
        *("kid", "kid_interval", "floor", "floor_n", "copies", "copies_held_out"),
        *("fid_interval", "floor_at_n", "clipped_real", "clipped_generated"),
    )
    asked = ("precision", "recall", "density", "coverage", "triplets", "pixels")
    known: dict[str, Any] = {key: numbers[key] for key in always} | {key: numbers.get(key) for key in younger}
    return Score(
        **known,
        note=numbers.get("note", ""),
        warnings=numbers.get("warnings", []),
        more={key: numbers[key] for key in asked if key in numbers},
    )


def _run_seconds(segments: list[Result]) -> float:
    """Wall time of a run: of its jobs, or of its steps where jobs that were stopped left no manifest."""
    jobs = sum(item.manifest.seconds for item in segments)
    steps: list[float] = [item.numbers.get("training_seconds", 0.0) for item in segments]
    return max([jobs, *steps])


def _timings(experiment: Experiment, results: Results) -> list[Timing]:
    """Wall time by stage, in the order in which data flows, and name; all jobs of a run together."""
    names = {stage: list(dict.fromkeys(item.name for item in results.of(stage))) for stage in STAGES}
    return [
        Timing(
            stage=stage,
            name=name,
            dataset=_served(experiment, stage, name),
            seconds=_run_seconds(results.of(stage, name)),
        )
        for stage, found in names.items()
        for name in found
    ]


def _served(experiment: Experiment, stage: str, name: str) -> str:
    """The data set a result is for; empty if it is for several."""
    if stage == "train":
        return experiment.runs[name].dataset
    if name in experiment.evaluations and stage in ("sample", "features", "fid"):
        return experiment.runs[experiment.evaluations[name].run].dataset
    if stage in ("codec", "extractor"):
        settings = experiment.codecs.get(name) if stage == "codec" else experiment.extractors.get(name)
        return getattr(settings, "trained_on", None) or ""
    return name.split(".")[0]  # a data set, or real features as dataset.split.extractor


def _origin(item: Result) -> Origin:
    manifest = item.manifest
    step = f" step {item.numbers['step']}" if item.stage == "train" and "step" in item.numbers else ""
    return Origin(
        stage=item.stage,
        name=item.name + step,
        digest=manifest.digest,
        code=str(manifest.code.get("source", "unknown")),
        host=f"{manifest.host.get('name', 'unknown')}, {manifest.host.get('cpus', '?')} CPUs",
        written=manifest.written,
        seconds=manifest.seconds,
        path=str(item.path),
    )


def _warnings(experiment: Experiment, results: Results) -> list[str]:
    """What a reader must know before trusting the whole."""
    texts = []
    if len(results.code) > 1:
        said = "; ".join(f"{code}: {', '.join(made)}" for code, made in results.code.items())
        texts.append(f"The results were made by {len(results.code)} different versions of the code. {said}")
    missing = {
        stage: [name for name in names if results.one(stage, name) is None]
        for stage, names in _wanted(experiment).items()
    }
    if any(missing.values()):
        said = "; ".join(f"{stage} of {', '.join(names)}" for stage, names in missing.items() if names)
        texts.append(f"Not run: {said}")
    for name, run in experiment.runs.items():
        reached = results.one("train", name)
        if reached and reached.numbers["step"] < run.steps:
            texts.append(f"Run {name} stands at step {reached.numbers['step']} of {run.steps}")
    return texts


def _wanted(experiment: Experiment) -> dict[str, list[str]]:
    """The results a complete report needs."""
    return {
        "tiles": list(experiment.datasets),
        "train": list(experiment.runs),
        "sample": list(experiment.evaluations),
        "fid": list(experiment.evaluations),
    }


def _versions() -> dict[str, str]:
    """Versions of the interpreter and of the packages that matter, in the environment that writes the report."""
    found = {"python": python_version(), "platform": platform()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
