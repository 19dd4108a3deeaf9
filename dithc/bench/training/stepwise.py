"""Training with dithc's components added one by one (figure 9).

All stages run the same program on the same weights and batches, interleaved as complete runs. A speedup compares runs
of the same round with the baseline.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from dithc.bench.environment import (
    circumstances,
    prepare_threads,
    require,
    require_among,
    require_at_least,
    require_library,
)
from dithc.bench.resume import current_session
from dithc.bench.training import run as processes
from dithc.bench.training.run import RunSettings, TrainingResult, TrainingVariant
from dithc.core.caches import OFF, TUNING_VARIABLE
from dithc.core.logging import get_logger, progress, user_error
from dithc.engine import native
from dithc.engine.hardware import Machine
from dithc.model import PRESETS

log = get_logger(__name__)


@dataclass(frozen=True)
class OptimizationStep:
    """Stage, defined by its difference from the previous stage.

    Attributes:
        options: arguments of `dithc bench training`; later stages override earlier ones.
        environment: environment variables, with the same rule.
        several_ranks: the difference exists only on several ranks.
    """

    name: str
    label: str
    description: str
    options: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    several_ranks: bool = False


OPTIMIZATION_STEPS = (
    OptimizationStep(
        "baseline",
        "baseline",
        "PyTorch's operators (its BLAS, oneDNN), AdamW and allocator; DistributedDataParallel over blocking MPI",
        {"--operators": "torch", "--gradients": "ddp", "--automem": "off", "--collectives": "blocking"},
        {"DITHC_OUTPUT_POOL": "off", TUNING_VARIABLE: OFF},
    ),
    OptimizationStep(
        "gemm", "+ GEMM", "matrix products of linear layers by dithc's kernels", {"--operators": "products"}
    ),
    OptimizationStep(
        "mpi",
        "+ async MPI",
        "gradients summed in shared memory during the backward pass",
        {"--gradients": "overlapped", "--collectives": "hierarchical"},
        several_ranks=True,
    ),
    OptimizationStep(
        "operators", "+ AI operators", "all other operators and AdamW by dithc's kernels", {"--operators": "default"}
    ),
    OptimizationStep(
        "automem",
        "+ AutoMem",
        "outputs in huge pages; weights and activations moved if the machine has several memory tiers",
        {"--automem": "auto"},
        {"DITHC_OUTPUT_POOL": "on"},
    ),
    OptimizationStep("tuned", "+ tuning", "the tuned choice for each matrix product", {}, {TUNING_VARIABLE: ""}),
)
NAMES = tuple(stage.name for stage in OPTIMIZATION_STEPS)
BASELINE = OPTIMIZATION_STEPS[0].name


@dataclass(frozen=True, kw_only=True)
class StepwiseSettings(RunSettings):
    """Settings of the stepwise benchmark, described by `dithc bench stepwise --help`."""

    model: str = "DiT-S/2"
    batch: int = 8
    ranks: int = 1
    stages: tuple[str, ...] = NAMES
    tune: bool = False
    rounds: int = 3


def bench_stepwise(settings: StepwiseSettings) -> dict[str, Any]:
    """Run the benchmark and return its result for JSON, with a row per stage."""
    _check(settings)
    machine, core_plan = prepare_threads(None)
    variants = variants_of(settings, machine)
    total = len(variants) * settings.rounds
    with (
        tempfile.TemporaryDirectory(prefix="dithc-stepwise-") as folder,
        progress(total=total, label="stepwise", unit="run") as bar,
    ):
        tuned = None
        if settings.tune and variants[-1].name == "tuned":  # a unit: one tuning serves all rounds of all executions
            tuned = Path(folder) / "tuning"
            tuned.mkdir()
            for file, text in current_session().unit("tuning", partial(_tune, settings, variants[-1])).items():
                (tuned / file).write_text(text)
        runs = processes.interleaved(variants, settings.rounds, partial(_run, settings=settings, tuned=tuned), bar=bar)
    return {
        "bench": "stepwise",
        "settings": asdict(settings),
        "ranks": {"ranks": settings.ranks, "cpus": variants[0].cpus},
        "stages": rows_of(settings, runs),
        **circumstances(machine, core_plan),
    }


def variants_of(settings: StepwiseSettings, machine: Machine) -> list[TrainingVariant]:
    """Return the requested stages as variants, each with the settings of all earlier stages."""
    options: dict[str, str] = {}
    environment: dict[str, str] = {}
    variants = []
    for stage in OPTIMIZATION_STEPS:
        options |= stage.options
        environment |= stage.environment
        if stage.name in settings.stages and (settings.ranks > 1 or not stage.several_ranks):
            variants.append(
                TrainingVariant(
                    name=stage.name,
                    strategy="cftp",
                    ranks=settings.ranks,
                    cpus=max(1, len(machine.visible_cores) // settings.ranks),
                    options=tuple(option for pair in options.items() for option in pair),
                    environment=dict(environment),
                )
            )
    return variants


def rows_of(settings: StepwiseSettings, runs: Mapping[str, Sequence[TrainingResult]]) -> list[dict[str, Any]]:
    """Return a row per stage: seconds, speedups over baseline and previous stage (None if missing), losses."""
    rows: list[dict[str, Any]] = []
    baseline: Mapping[str, Any] | None = None
    previous: Mapping[str, Any] | None = None
    for stage in OPTIMIZATION_STEPS:
        if stage.name not in settings.stages:
            continue
        row: dict[str, Any] = {"name": stage.name, "label": stage.label, "description": stage.description}
        rows.append(row)
        results = runs.get(stage.name)
        if results is None:  # the previous stage stays the reference, because the program is the same
            row |= {"status": "same", "reason": "one rank does not communicate: same as the previous stage"}
            continue
        row |= processes.row_of(results)
        if row["status"] != "ok":
            previous = None
            continue
        ranks = results[-1].result["each_rank"]
        row |= {"page_faults": median(rank["page_faults"] for rank in ranks), "operators": ranks[0]["operators"]}
        if stage.name == BASELINE:
            baseline = previous = row
        row |= _compared(row, baseline=baseline, previous=previous)
        previous = row
    return rows


def _compared(
    row: Mapping[str, Any], *, baseline: Mapping[str, Any] | None, previous: Mapping[str, Any] | None
) -> dict[str, Any]:
    differences = [] if baseline is None else zip(row["losses"], baseline["losses"], strict=True)
    return {
        "speedup": None if baseline is None else processes.time_over(baseline, row),
        "speedup_over_previous": None if previous is None else processes.time_over(previous, row),
        "largest_difference_of_losses": max(
            (abs(loss - truth) / abs(truth) for loss, truth in differences), default=None
        ),
    }


def _run(variant: TrainingVariant, *, settings: StepwiseSettings, tuned: Path | None) -> TrainingResult:
    if variant.name == "tuned":  # by the new tuning, or by the tuning of this machine
        default_folder = os.environ.get(TUNING_VARIABLE, "")
        folder = str(tuned) if tuned else "" if default_folder == OFF else default_folder
        variant = replace(variant, environment={**variant.environment, TUNING_VARIABLE: folder})
    # One instruction set in all stages: without a tuning folder it would not be measured.
    isa = {} if native.library() is None else {native.ISA_VARIABLE: native.instruction_set()}
    variant = replace(variant, environment={**isa, **variant.environment})
    run = processes.run_training(variant, settings.run_options(settings.model, settings.batch))
    if run.status == "ok" and variant.name == "tuned" and not _is_tuned(run):
        reason = "no tuning for this machine and thread count; add --tune, or run `dithc tune-kernels`"
        log.warning("skipping tuned: %s", reason)
        return TrainingResult(status="skipped", reason=reason)
    return run


def _is_tuned(run: TrainingResult) -> bool:
    reasons = [row["reason"] for rank in run.result["each_rank"] for row in rank["operators"] if row["op"] == "linear"]
    return all("tuning file" in explanation for explanation in reasons)


def _tune(settings: StepwiseSettings, variant: TrainingVariant) -> dict[str, str]:
    """Tune the products of one rank in a process with the cores of one rank. Return the tuning files by name."""
    command = settings.model_options(settings.model, -(-settings.batch // settings.ranks))
    command = [sys.executable, "-m", "dithc", "tune-kernels", *command, "--threads", str(variant.cpus)]
    log.info("tuning the matrix products of %s, %d thread(s)", settings.model, variant.cpus)
    cpus = sorted(os.sched_getaffinity(0))
    cpus = cpus[: variant.cpus] if settings.ranks > 1 else cpus
    with tempfile.TemporaryDirectory(prefix="dithc-tuning-") as folder:
        environment = os.environ | {TUNING_VARIABLE: folder, native.ISA_VARIABLE: native.instruction_set()}
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, preexec_fn=partial(os.sched_setaffinity, 0, cpus)
        )
        if result.returncode:
            got = "".join(f"\n    {line}" for line in result.stderr[-2000:].splitlines())
            expected, fix = "a complete search", "fix the error in `got`"
            raise user_error("bench stepwise --tune", got=got, expected=expected, fix=fix)
        return {path.name: path.read_text() for path in Path(folder).iterdir()}


def _check(settings: StepwiseSettings) -> None:
    require_among("bench --model", [settings.model], PRESETS)
    require_among("bench --stages", settings.stages, NAMES)
    require_at_least(settings, rounds=1, warmup=2, steps=1, ranks=1, batch=1)
    is_valid = settings.batch % settings.ranks == 0
    require(is_valid, "bench --batch", f"{settings.batch} images on {settings.ranks} ranks", "equal shares")
    require_library("bench stepwise")
