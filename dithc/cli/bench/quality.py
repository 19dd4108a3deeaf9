"""`dithc bench quality`: time of several training runs to a score, as an experiment of the workflow."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dithc.cli.bench.arguments import Benchmark, add_json, add_option, emit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dithc.bench import time_to_quality
    from dithc.config import training
    from dithc.model import DiTConfig

    ComparisonPlan = time_to_quality.ComparisonPlan

PLAN_FILE, FIGURE_FILE, RESULT_FILE = "plan.json", "quality.png", "quality.json"


def _add(parser: argparse.ArgumentParser) -> None:
    config = "experiment whose `runs` contain the compared runs"
    add_option(parser, "--config", Path("config/experiments/quality.yaml"), config, metavar="FILE")
    add_option(parser, "--baseline", "baseline", "baseline run", metavar="RUN")
    candidates = "runs to compare with the baseline; the name of the baseline compares other seeds"
    parser.add_argument("--candidates", required=True, metavar="RUN,RUN", help=candidates)
    add_option(parser, "--seeds", "0,1", "seeds of the training runs")
    add_option(parser, "--evaluation", "scored", "evaluation for sampling and scoring", metavar="NAME")
    add_option(parser, "--budget-minutes", 10.0, "minutes per run", metavar="M")
    add_option(parser, "--profile", "profiles/local", "profile of the machine", metavar="FOLDER")
    add_json(parser)


def _run(args: argparse.Namespace) -> int:
    from dithc.bench import time_to_quality
    from dithc.config import load_experiment
    from dithc.core.artifacts import digest
    from dithc.core.logging import get_logger, user_error

    if not (minutes := args.budget_minutes) > 0:
        raise user_error("--budget-minutes", got=minutes, expected="a time above 0", fix="correct --budget-minutes")
    if not all(seed.isdigit() for seed in args.seeds.split(",")):
        raise user_error("--seeds", got=args.seeds, expected="numbers, as in 0,1", fix="correct --seeds")
    environment = _environment(Path(args.profile))
    plan = time_to_quality.ComparisonPlan(
        base=load_experiment([args.config]),
        baseline=args.baseline,
        candidates=tuple(args.candidates.split(",")),
        seeds=tuple(int(seed) for seed in args.seeds.split(",")),
        evaluation=args.evaluation,
        environment=digest(environment),
    )
    folder = Path(plan.base.results, f"{plan.base.name}-quality")
    seconds = _seconds(plan, folder, args.profile, environment)
    if seconds is None:
        return 1
    steps = time_to_quality.calibrated_steps(seconds, budget_seconds=60 * args.budget_minutes)
    get_logger("dithc.bench").info(
        f"steps in {args.budget_minutes:g} minutes here: "
        + ", ".join(f"{name} {count:,} at {seconds[name]:.3g} s" for name, count in steps.items())
    )
    if _workflow(plan.experiment(steps), folder / "experiment.json", args.profile):
        return 1
    return _finish(plan, folder, steps, seconds, args.json)


def _environment(profile: Path) -> dict[str, Any]:
    """Return the values that determine the seconds per step, without those of the machine if a scheduler selects it."""
    from dithc.bench import environment as record
    from dithc.config import load_machine

    content = load_machine(profile)[1] if profile.is_dir() else {"executor": f"profile {profile}"}
    values = record.environment() | {"profile": content}
    of_machine = record.MACHINE_TOPICS if content.get("executor", "local") != "local" else ()
    environment = {key: value for key, value in values.items() if key not in of_machine}
    return dict(json.loads(json.dumps(environment, default=str)))


def _seconds(
    plan: "ComparisonPlan", folder: Path, profile: str, environment: dict[str, Any]
) -> dict[str, float] | None:
    """Return the seconds per step of each variant, measured once per environment; None if a timing run failed."""
    from dithc.bench import time_to_quality
    from dithc.core.artifacts import atomic_write, difference
    from dithc.core.integrity import dump_checksummed, read_document
    from dithc.core.logging import get_logger

    path = folder / PLAN_FILE
    record = read_document(path) if path.exists() else {"environment": environment, "seconds": {}}
    if differing := difference(record.get("environment"), environment):
        text = f"discarding the seconds per step in {path}: the environment changed: {differing}"
        get_logger("dithc.bench").warning(text)
        record["seconds"] = {}
    timings = record["seconds"]
    keys = {name: f"{name} {plan.identity(name)} {profile}" for name in plan.variants}
    missing = [name for name in plan.variants if keys[name] not in timings]
    if missing:
        reference = next((name for name in plan.variants if keys[name] in timings), plan.baseline)
        group = [reference, *(name for name in missing if name != reference)]
        if _workflow(plan.calibration(group), folder / "calibration.json", profile, runs_alone=True):
            return None
        last = f"step_{plan.calibration_steps:07d}.json"
        measured = {
            name: [_seconds_per_step(folder / "runs" / run / last) for run in plan.calibrations(name, group)]
            for name in group
        }
        seconds = time_to_quality.calibrated_seconds(measured, reference=reference, known=timings.get(keys[reference]))
        timings |= {keys[name]: seconds[name] for name in missing}
        atomic_write(path, dump_checksummed({"environment": environment, "seconds": timings}))
    return {name: float(timings[keys[name]]) for name in plan.variants}


def _seconds_per_step(path: Path) -> float:
    from dithc.core.artifacts import Manifest
    from dithc.core.logging import user_error

    seconds: float | None = Manifest.read(path, stage="train").summary["seconds_per_step_median"]
    if seconds is None or seconds <= 0:
        raise user_error(
            f"{path}: `numbers.seconds_per_step_median` is not a measured time",
            got="null" if seconds is None else seconds,
            expected="seconds above 0; null means that the metrics of the training run were missing at its end",
            fix="remove that manifest and the folder of its store, then restart",
        )
    return seconds


def _workflow(content: dict[str, Any], path: Path, profile: str, *, runs_alone: bool = False) -> int:
    """Run the experiment to its scores, or only to the ends of its runs. Return Snakemake's status."""
    from dithc.cli.experiment import run
    from dithc.config import load
    from dithc.core.artifacts import atomic_write

    experiment = load(content)
    root = path.parent
    ends = [f"{root}/runs/{name}/step_{one.steps:07d}.json" for name, one in experiment.runs.items()]
    scores = [f"{root}/fid/{name}/manifest.json" for name in experiment.scored]
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, json.dumps(content, indent=1) + "\n")
    arguments = ["--", *(ends if runs_alone else [*ends, *scores])]
    return run.run(argparse.Namespace(profile=profile, configfile=[path], verbose=False, words=arguments))


def _flops(run: "training.RunConfig", network: "DiTConfig") -> float:
    from dithc.model import flops_per_image

    return float(flops_per_image(network).training_total * run.global_batch_size + run.update_flops)


def _finish(
    plan: "ComparisonPlan", folder: Path, steps: dict[str, int], seconds: dict[str, float], path: Path | None
) -> int:
    """Read the manifests, draw the figure and print the table."""
    from dithc.bench import time_to_quality
    from dithc.config import load
    from dithc.core.artifacts import CheckpointStore, Manifest, atomic_write
    from dithc.core.logging import get_logger
    from dithc.model import DiTConfig
    from dithc.report import quality_figure

    experiment = load(plan.experiment(steps))
    last = {name: folder / "runs" / name / f"step_{run.steps:07d}.json" for name, run in experiment.runs.items()}
    runs = {name: Manifest.read(manifest, stage="train").summary for name, manifest in last.items()}
    scores = {
        name: Manifest.read(folder / "fid" / name / "manifest.json", stage="fid").summary for name in experiment.scored
    }
    codecs, flops = {}, {}
    for name in plan.variants:
        run = plan.base.runs[name]
        codec = folder / "codecs" / plan.base.datasets[run.dataset].codec / "manifest.json"
        codecs[name] = {"seconds": Manifest.read(codec, stage="codec").wall_seconds} if codec.exists() else {}
        store, step = CheckpointStore.of_run(last[plan.first_run(name, steps)])
        flops[name] = _flops(run, DiTConfig(**store.open(step).meta["model"]))
    result = time_to_quality.compare_runs(
        plan, steps=steps, seconds=seconds, runs=runs, scores=scores, codecs=codecs, flops=flops
    )
    result["inputs"] = {  # equal digests mean that two results used the same inputs
        f"{stage}/{path.parent.name}": Manifest.read(path).digest
        for stage in ("tiles", "codecs", "extractors")
        for path in sorted((folder / stage).glob("*/manifest.json"))
    }
    status = emit(result, path or folder / RESULT_FILE, [])
    pictures = {
        (name, at_step): _samples(
            folder / "samples" / time_to_quality.plan.evaluation_name(plan.first_run(name, steps), at_step)
        )
        for name in quality_figure.shown(result)
        for at_step in time_to_quality.plan.evaluation_steps(steps[name])
    }
    atomic_write(folder / FIGURE_FILE, quality_figure.draw_quality(result, pictures))
    get_logger("dithc.bench").info(f"figure: {folder / FIGURE_FILE}")
    return status


def _samples(folder: Path) -> "NDArray[np.uint8]":
    """Return the first images of a sample stage, shape (N, 3, H, W)."""
    import numpy as np

    from dithc.core.artifacts import Manifest
    from dithc.report import quality_figure

    Manifest.read(folder / "manifest.json", stage="sample")
    images = np.load(Manifest.verified(folder / "rgb-00000.npy"), mmap_mode="r")
    return np.array(images[: quality_figure.IMAGES_SHOWN])


QUALITY = Benchmark(
    "time of several training runs to a score: FID over time, R",
    "dithc bench quality --candidates flow,baseline --seeds 0,1 --budget-minutes 10 --json quality.json",
    _add,
    _run,
)
