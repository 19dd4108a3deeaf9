"""Turns results into the report's records: one function per record, nothing is computed that a stage did not say."""

import json
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import platform, python_version
from typing import Any

from dithc.config import Experiment
from dithc.log import logger, problem
from dithc.report.curves import Curve, read_curve
from dithc.report.facts import (
    Band,
    CodecFacts,
    DatasetFacts,
    EvaluationFacts,
    Facts,
    Origin,
    RunFacts,
    Score,
    Timing,
)
from dithc.report.gather import FOLDERS, Result, Results
from dithc.report.reference import Reference

PACKAGES = ("torch", "numpy", "snakemake", "mpi4py", "diffusers", "safetensors", "rasterio", "scipy", "matplotlib")
log = logger(__name__)


def collect(
    experiment: Experiment, results: Results, reference: Reference, *, bench: Path | None, machine: list[str]
) -> Facts:
    """All the report says, from results that belong together.

    Args:
        experiment: the configuration.
        results: what `gather` gave.
        reference: the paper's numbers.
        bench: JSON of the step bench, None where it was not run.
        machine: lines that describe the machine.

    Raises:
        UserError: a file beside a manifest, or the bench, is unreadable.
    """
    return Facts(
        name=experiment.name,
        title=experiment.title,
        written=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        datasets=[_dataset(experiment, results, name) for name in experiment.datasets],
        runs=[_run(experiment, results, name) for name in experiment.runs],
        evaluations=[_evaluation(experiment, results, reference, name) for name in experiment.evaluations],
        timings=[_timing(experiment, item) for item in results.items],
        origins=[_origin(item) for item in results.items],
        warnings=_warnings(experiment, results),
        machine=machine,
        versions=_versions(),
        bench=_json(bench) if bench else None,
    )


def _json(path: Path | None) -> dict[str, Any]:
    """A JSON mapping that must be readable; nothing for None."""
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text())
        return dict(content)
    except (OSError, ValueError, TypeError) as error:
        raise problem(
            f"{path} cannot be read", got=error, expected="a JSON mapping", remedy="remove it and rerun its stage"
        ) from error


def _numbers(result: Result | None) -> dict[str, Any]:
    return result.numbers if result else {}


def _dataset(experiment: Experiment, results: Results, name: str) -> DatasetFacts:
    settings = experiment.datasets[name]
    scenes, tiles = results.one("stage", name), results.one("tiles", name)
    info = _json(tiles.file("dataset.json")) if tiles else {}
    staged, cut = _numbers(scenes), _numbers(tiles)
    classes = info.get("classes")
    return DatasetFacts(
        name=name,
        title=settings.title,
        kind=settings.source.kind,
        synthetic=settings.source.synthetic is not None,
        scenes=staged.get("accepted", staged.get("scenes")),
        scenes_rejected=staged.get("rejected") or {},
        tiles=cut.get("accepted"),
        tiles_rejected=cut.get("rejected") or {},
        splits=cut.get("splits") or {},
        band_names=[str(band) for band in info.get("bands") or cut.get("bands") or []],
        size=cut.get("size"),
        gsd_m=info.get("gsd_m"),
        units=str(info.get("units") or ""),
        classes=len(classes) if isinstance(classes, list | dict) else None,
        bands=_bands(info),
        codec=_codec(experiment, results, name),
        grid=tiles.file("grid.png") if tiles else None,
    )


def _bands(info: dict[str, Any]) -> list[Band]:
    """Statistics per band of a dataset.json: a mapping or list of records by band, or a list of values by statistic."""
    names, given = info.get("bands") or [], info.get("statistics") or {}
    if isinstance(given, list):
        records = given
    elif all(name in given for name in names):
        records = [given[name] for name in names]
    else:
        records = [
            {key: values[place] for key, values in given.items() if isinstance(values, list) and len(values) == len(names)}
            for place in range(len(names))
        ]
    wanted = ("mean", "std", "low", "high")
    return [
        Band(name=str(name), **{key: float(record[key]) for key in wanted})
        for name, record in zip(names, records, strict=False)
        if all(record.get(key) is not None for key in wanted)
    ]


def _codec(experiment: Experiment, results: Results, dataset: str) -> CodecFacts:
    name = experiment.datasets[dataset].codec
    trained, latents = results.one("codec", name), results.one("latents", dataset)
    numbers = _numbers(trained)
    return CodecFacts(
        name=name,
        kind=experiment.codecs[name].kind,
        shape=_numbers(latents).get("shape"),
        psnr_db=numbers.get("psnr_db", _numbers(latents).get("psnr_db")),
        loss=numbers.get("loss"),
        steps=numbers.get("steps"),
        parameters=numbers.get("parameters"),
        grid=trained.file("grid.png") if trained else None,
    )


def _run(experiment: Experiment, results: Results, name: str) -> RunFacts:
    settings, segments = experiment.runs[name], results.of("train", name)
    numbers = _numbers(results.one("train", name))
    curve = _curve(results.one("train", name), [int(item.numbers.get("step", 0)) for item in segments], settings.global_batch)
    same = ("parameters", "ranks", "threads", "step", "initial_loss", "loss_first10", "loss_last100", "images_per_second")
    changes = {key: getattr(settings.model, key) for key in ("hidden_size", "depth", "num_heads")}
    return RunFacts(
        name=name,
        dataset=settings.dataset,
        init=settings.init,
        preset=settings.model.preset,
        changes={key: value for key, value in changes.items() if value is not None},
        dtype=settings.dtype,
        steps_planned=settings.steps,
        global_batch=settings.global_batch,
        seconds=sum(item.manifest.seconds for item in segments),
        seconds_per_step=numbers.get("seconds_per_step_median"),
        peak_rss_bytes=numbers.get("peak_rss_bytes"),
        weights_note=str(numbers.get("weights_note") or numbers.get("note") or ""),
        segments=curve.segments if curve else [],
        resumes=curve.resumes if curve else [],
        loss_steps_6_to_10=curve.mean_loss(6, 10) if curve else None,
        curve=curve,
        **{key: numbers.get(key) for key in same},
    )


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
    return {"untrained": "untrained", "start": f"before {task}", "final": f"after {task}"}[chosen.at]


def _evaluation(experiment: Experiment, results: Results, reference: Reference, name: str) -> EvaluationFacts:
    settings = experiment.evaluations[name]
    dataset = experiment.runs[settings.run].dataset
    samples, compared = results.one("sample", name), results.one("fid", name)
    numbers = _numbers(samples)
    same = ("run", "at", "weights", "sampler", "steps", "guidance", "guidance_channels", "real_split")
    return EvaluationFacts(
        name=name,
        dataset=dataset,
        label=_label(experiment, name),
        images=numbers.get("images"),
        images_per_second=numbers.get("images_per_second"),
        score=_score(compared) if compared else None,
        paper=reference.fid_of(experiment.datasets[dataset].source.kind),
        grid=samples.file("grid.png") if samples else None,
        **{key: getattr(settings, key) for key in same},
    )


def _score(result: Result) -> Score:
    numbers = result.numbers
    try:
        return Score(
            fid=float(numbers["fid"]),
            n_real=int(numbers["n_real"]),
            n_generated=int(numbers["n_generated"]),
            extractor=str(numbers["extractor"]),
            sha256=str(numbers.get("sha256") or numbers["extractor_sha256"]),
            resize=str(numbers["resize"]),
            comparable=bool(numbers["comparable"]),
            note=str(numbers.get("note") or ""),
            warnings=[str(text) for text in numbers.get("warnings") or []],
            kid=numbers.get("kid"),
            floor=numbers.get("floor"),
            floor_n=numbers.get("floor_n"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise problem(
            f"manifest {result.path} lacks what a FID needs to be judged",
            got=f"{type(error).__name__}: {error}",
            expected="fid, n_real, n_generated, extractor, sha256, resize, comparable",
            remedy="run `dithc fid` again",
        ) from error


def _timing(experiment: Experiment, item: Result) -> Timing:
    """Wall time of a result, with the data set it is for."""
    name = item.name
    if name in experiment.runs and item.stage == "train":
        dataset = experiment.runs[name].dataset
    elif name in experiment.evaluations and item.stage in ("sample", "features", "fid"):
        dataset = experiment.runs[experiment.evaluations[name].run].dataset
    elif item.stage in ("codec", "extractor"):
        settings = experiment.codecs.get(name) if item.stage == "codec" else experiment.extractors.get(name)
        dataset = getattr(settings, "trained_on", None) or ""
    else:
        dataset = name.split(".")[0]
    return Timing(stage=item.stage, name=name, dataset=dataset, seconds=item.manifest.seconds)


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
    wanted = {stage: names for stage, names in _wanted(experiment).items() if names}
    for stage, names in wanted.items():
        missing = [name for name in names if results.one(stage, name) is None]
        if missing:
            texts.append(f"Not run: {stage} of {', '.join(missing)}")
    for name, run in experiment.runs.items():
        reached = results.one("train", name)
        if reached and int(reached.numbers.get("step", 0)) < run.steps:
            texts.append(f"Run {name} stands at step {reached.numbers.get('step')} of {run.steps}")
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


STAGES = list(FOLDERS.values())
