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
from dithc.bench.training.run import (
    RunSettings,
    TrainingResult,
    TrainingVariant,
    interleaved,
    row_of,
    run_training,
    time_over,
)
from dithc.core.logging import get_logger, progress, user_error
from dithc.engine.hardware import Machine
from dithc.engine.hcops import tuning
from dithc.model import PRESETS

log = get_logger(__name__)


@dataclass(frozen=True)
class OptimizationStep:
    """Stage, defined by its difference from the previous stage.

    Attributes:
        words: arguments of `dithc bench training`; later stages override earlier ones.
        environment: environment variables, with the same rule.
        several_ranks: the difference exists only on several ranks.
    """

    name: str
    label: str
    what: str
    words: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    several_ranks: bool = False


STAGES = (
    OptimizationStep(
        "baseline",
        "baseline",
        "PyTorch's operators (its BLAS, oneDNN), AdamW and allocator; DistributedDataParallel over blocking MPI",
        {"--operators": "torch", "--gradients": "ddp", "--automem": "off", "--collectives": "blocking"},
        {"DITHC_OUTPUT_POOL": "off", "DITHC_TUNING_FOLDER": tuning.OFF},
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
    OptimizationStep("tuned", "+ tuning", "the tuned choice for each matrix product", {}, {"DITHC_TUNING_FOLDER": ""}),
)
NAMES = tuple(stage.name for stage in STAGES)
BASELINE = STAGES[0].name


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
    contenders = contenders_of(settings, machine)
    total = len(contenders) * settings.rounds
    with (
        tempfile.TemporaryDirectory(prefix="dithc-stepwise-") as folder,
        progress(total=total, label="stepwise", unit="run") as bar,
    ):
        tuned = None
        if settings.tune and contenders[-1].name == "tuned":  # a unit: one tuning serves all rounds of all executions
            tuned = Path(folder) / "tuning"
            tuned.mkdir()
            for file, text in current_session().unit("tuning", partial(_tune, settings, contenders[-1])).items():
                (tuned / file).write_text(text)
        runs = interleaved(contenders, settings.rounds, partial(_run, settings=settings, tuned=tuned), bar=bar)
    return {
        "bench": "stepwise",
        "settings": asdict(settings),
        "ranks": {"ranks": settings.ranks, "cpus": contenders[0].cpus},
        "stages": rows_of(settings, runs),
        **circumstances(machine, core_plan),
    }


def contenders_of(settings: StepwiseSettings, machine: Machine) -> list[TrainingVariant]:
    """Return the requested stages as variants, each with the settings of all earlier stages."""
    words: dict[str, str] = {}
    environment: dict[str, str] = {}
    found = []
    for stage in STAGES:
        words |= stage.words
        environment |= stage.environment
        if stage.name in settings.stages and (settings.ranks > 1 or not stage.several_ranks):
            found.append(
                TrainingVariant(
                    name=stage.name,
                    strategy="cftp",
                    ranks=settings.ranks,
                    cpus=max(1, len(machine.visible_cores) // settings.ranks),
                    words=tuple(word for pair in words.items() for word in pair),
                    environment=dict(environment),
                )
            )
    return found


def rows_of(settings: StepwiseSettings, runs: Mapping[str, Sequence[TrainingResult]]) -> list[dict[str, Any]]:
    """Return a row per stage: seconds, speedups over baseline and previous stage (None if missing), losses."""
    rows: list[dict[str, Any]] = []
    baseline: Mapping[str, Any] | None = None
    before: Mapping[str, Any] | None = None
    for stage in STAGES:
        if stage.name not in settings.stages:
            continue
        row: dict[str, Any] = {"name": stage.name, "label": stage.label, "what": stage.what}
        rows.append(row)
        own = runs.get(stage.name)
        if own is None:  # the previous stage stays the reference, because the program is the same
            row |= {"status": "same", "reason": "one rank does not communicate: same as the previous stage"}
            continue
        row |= row_of(own)
        if row["status"] != "ok":
            before = None
            continue
        ranks = own[-1].result["each_rank"]
        row |= {"page_faults": median(rank["page_faults"] for rank in ranks), "operators": ranks[0]["operators"]}
        if stage.name == BASELINE:
            baseline = before = row
        row |= _compared(row, baseline=baseline, before=before)
        before = row
    return rows


def _compared(
    row: Mapping[str, Any], *, baseline: Mapping[str, Any] | None, before: Mapping[str, Any] | None
) -> dict[str, Any]:
    differences = [] if baseline is None else zip(row["losses"], baseline["losses"], strict=True)
    return {
        "speedup": None if baseline is None else time_over(baseline, row),
        "speedup_over_previous": None if before is None else time_over(before, row),
        "largest_difference_of_losses": max(
            (abs(ours - truth) / abs(truth) for ours, truth in differences), default=None
        ),
    }


def _run(contender: TrainingVariant, *, settings: StepwiseSettings, tuned: Path | None) -> TrainingResult:
    if contender.name == "tuned":  # by the new tuning, or by the tuning of this machine
        given = os.environ.get(tuning.FOLDER_VARIABLE, "")
        folder = str(tuned) if tuned else "" if given == tuning.OFF else given
        contender = replace(contender, environment={**contender.environment, tuning.FOLDER_VARIABLE: folder})
    run = run_training(contender, settings.of_run(settings.model, settings.batch))
    if run.status == "ok" and contender.name == "tuned" and not _is_tuned(run):
        reason = "no tuning for this machine and thread count; add --tune, or run `dithc tune-kernels`"
        log.warning("skipping tuned: %s", reason)
        return TrainingResult(status="skipped", reason=reason)
    return run


def _is_tuned(run: TrainingResult) -> bool:
    """Test whether every rank found a tuning."""
    told = [row["why"] for rank in run.result["each_rank"] for row in rank["operators"] if row["op"] == "linear"]
    return all("tuning file" in why for why in told)


def _tune(settings: StepwiseSettings, contender: TrainingVariant) -> dict[str, str]:
    """Tune the products of one rank in a process with the cores of one rank. Return the tuning files by name."""
    words = settings.of_model(settings.model, -(-settings.batch // settings.ranks))
    words = [sys.executable, "-m", "dithc", "tune-kernels", *words, "--threads", str(contender.cpus)]
    log.info("tuning the matrix products of %s, %d thread(s)", settings.model, contender.cpus)
    cpus = sorted(os.sched_getaffinity(0))
    cpus = cpus[: contender.cpus] if settings.ranks > 1 else cpus
    with tempfile.TemporaryDirectory(prefix="dithc-tuning-") as folder:
        environment = os.environ | {tuning.FOLDER_VARIABLE: folder}
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, preexec_fn=partial(os.sched_setaffinity, 0, cpus)
        )
        if done.returncode:
            got = "".join(f"\n    {line}" for line in done.stderr[-2000:].splitlines())
            raise user_error(
                "bench stepwise --tune", got=got, expected="a complete search", fix="fix the error in `got`"
            )
        return {path.name: path.read_text() for path in Path(folder).iterdir()}


def _check(settings: StepwiseSettings) -> None:
    require_among("bench --model", [settings.model], PRESETS)
    require_among("bench --stages", settings.stages, NAMES)
    require_at_least(settings, rounds=1, warmup=2, steps=1, ranks=1, batch=1)
    is_valid = settings.batch % settings.ranks == 0
    require(is_valid, "bench --batch", f"{settings.batch} images on {settings.ranks} ranks", "equal shares")
    require_library("bench stepwise")
