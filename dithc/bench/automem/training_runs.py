"""Training runs of `dithc bench automem` in separate processes: with and without AutoMem, with and without a limit."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from dithc.bench import training
from dithc.bench.resume import MeasurementStopped
from dithc.bench.timing import spread
from dithc.bench.training import RunSettings, TrainingResult, TrainingVariant
from dithc.core.logging import get_logger, progress, user_error
from dithc.core.units import GIB, MIB

log = get_logger(__name__)
PARTS = ("budget", "file", "pool", "resident")
UNMANAGED, MANAGED = "unmanaged", "AutoMem"
FAST_SHARE = 0.75  # of the limit, for the fastest tier
OFF = ("--automem", "off")


@dataclass(frozen=True, kw_only=True)
class AutoMemSettings(RunSettings):
    """Settings of the AutoMem benchmark, described by `dithc bench automem --help`."""

    parts: tuple[str, ...] = PARTS
    model: str = "DiT-XL/2"
    batch: int = 8
    fast_memory_fraction: float = 0.4
    memory_limit_fraction: float = 0.6
    spill_folder: Path = Path()
    spill_gib: float = 16.0
    step_models: tuple[str, ...] = ("DiT-S/2", "DiT-B/2")
    step_rounds: int = 15
    threads: int | None = None
    warmup: int = 3
    seed: int = 0


class TrainingRuns:
    """Runs of one model on one rank, for the parts that compare training runs."""

    def __init__(self, settings: AutoMemSettings, *, threads: int) -> None:
        self._settings, self._threads = settings, threads
        self._unmanaged: TrainingResult | None = None

    def budget(self) -> dict[str, Any]:
        """Compare AutoMem under a fast-tier budget with unmanaged training, interleaved."""
        first = self._unmanaged_run()
        budget_bytes = int(used_bytes(first) * self._settings.fast_memory_fraction) // MIB * MIB
        log.info(
            "unmanaged training needs %.2f GiB: using a budget of %.2f GiB", used_bytes(first) / GIB, budget_bytes / GIB
        )
        managed = self._variant(MANAGED, ("--automem", "on", "--fast-bytes", str(budget_bytes)))
        first_run = iter([first])  # the run above is the first of its rounds

        def run(variant: TrainingVariant) -> TrainingResult:
            return (next(first_run, None) if variant.name == UNMANAGED else None) or self._run(variant)

        variants, rounds = [self._variant(UNMANAGED, OFF), managed], self._settings.rounds
        with progress(total=2 * rounds, label="budget", unit="run") as bar:
            runs = training.interleaved(variants, rounds, run, bar=bar)
        rows = [automem_row(UNMANAGED, runs[UNMANAGED]), automem_row(MANAGED, runs[MANAGED], base=runs[UNMANAGED])]
        return {"takes_bytes": used_bytes(first), "budget_bytes": budget_bytes, "rows": rows}

    def file(self) -> dict[str, Any]:
        """Compare both under a process limit below the unmanaged peak; AutoMem adds a file tier."""
        settings, first = self._settings, self._unmanaged_run()
        limit_bytes = int(peak_bytes(first) * settings.memory_limit_fraction)
        options = self._file_tier_options(limit_bytes, base=base_bytes(first))
        unmanaged, managed = (
            self._run(self._variant(name, flags), limit_bytes=limit_bytes)
            for name, flags in ((UNMANAGED, OFF), (MANAGED, options))
        )
        rows = [automem_row(UNMANAGED, [unmanaged]), automem_row(MANAGED, [managed])]
        rows[1]["losses_identical"] = managed.status == "ok" and same_training(first, managed)
        sizes = {"unmanaged_peak_bytes": peak_bytes(first), "limit_bytes": limit_bytes}
        return sizes | {"how": managed.limit, "rows": rows}

    def _unmanaged_run(self) -> TrainingResult:
        if self._unmanaged is None:
            run = self._run(self._variant(UNMANAGED, OFF))
            if run.status != "ok":
                raise user_error(
                    "the unmanaged training run",
                    got=f"{run.status}: {run.reason}",
                    expected="a run that measures its memory",
                    fix="choose a smaller --model or --batch: the run without AutoMem must fit once",
                )
            self._unmanaged = run
        return self._unmanaged

    def _variant(self, name: str, options: tuple[str, ...]) -> TrainingVariant:
        return TrainingVariant(name=name, strategy="cftp", ranks=1, cpus=self._threads, options=options)

    def _file_tier_options(self, limit_bytes: int, *, base: int) -> tuple[str, ...]:
        """Return options for AutoMem with a fraction of the limit as its fastest tier, and a file tier."""
        fast_bytes = int((limit_bytes - base) * FAST_SHARE) // MIB * MIB
        if fast_bytes <= 0:
            got = f"{limit_bytes / GIB:.2f} GiB, of which the bare process has {base / GIB:.2f}"
            raise user_error(
                "memory limit",
                got=got,
                expected="space for training",
                fix="raise --memory-limit-fraction",
            )
        file_bytes = int(self._settings.spill_gib * GIB)
        folder = str(self._settings.spill_folder.resolve())
        return (
            *("--automem", "on", "--fast-bytes", str(fast_bytes)),
            *("--spill-folder", folder, "--spill-bytes", str(file_bytes)),
        )

    def _run(self, variant: TrainingVariant, *, limit_bytes: int | None = None) -> TrainingResult:
        config = self._settings
        run = training.run_training(variant, config.run_options(config.model, config.batch), limit_bytes=limit_bytes)
        if run.status == "stopped":
            raise MeasurementStopped
        return run


def peak_bytes(run: TrainingResult) -> int:
    """Return the peak resident size of the process, in bytes."""
    return run.peak_rss_bytes_each[0]


def base_bytes(run: TrainingResult) -> int:
    """Return the peak resident size before the model was built, in bytes."""
    return int(run.result["each_rank"][0]["before_bytes"])


def used_bytes(run: TrainingResult) -> int:
    """Return the bytes of training: weights, gradients, moments, average, activations."""
    return peak_bytes(run) - base_bytes(run)


def same_training(first: TrainingResult, other: TrainingResult) -> bool:
    """Test whether all losses and gradient norms are bitwise equal."""
    return first.losses == other.losses and first.result["grad_norms"] == other.result["grad_norms"]


def automem_row(name: str, runs: Sequence[TrainingResult], *, base: Sequence[TrainingResult] = ()) -> dict[str, Any]:
    """Return the row of a variant, compared with the runs in `base` if given."""
    row = {"name": name} | training.row_of(runs)
    if row["status"] != "ok":
        return row
    row["peak_rss_bytes"] = max(map(peak_bytes, runs))
    if memory := runs[-1].result["each_rank"][0].get("memory"):
        row |= _memory_numbers(runs) | {"memory": memory}
    if base and all(run.status == "ok" for run in base):
        row["losses_identical"] = all(same_training(base[0], run) for run in (*base, *runs))
        row["slower"] = training.time_over(row, training.row_of(base))
    return row


def _memory_numbers(runs: Sequence[TrainingResult]) -> dict[str, Any]:
    """Return the worst fast-tier and copy numbers over the runs of a managed variant."""
    reports = [run.result["each_rank"][0]["memory"] for run in runs]
    shares = [
        stall / seconds
        for run, memory in zip(runs, reports, strict=True)
        for stall, seconds in zip(memory["steps"]["stall_seconds"], run.seconds, strict=True)
    ]
    tiers = [memory["tiers"][0] for memory in reports]
    peak, budget = max(tier["peak_backed_bytes"] for tier in tiers), tiers[0]["budget_bytes"]
    return {
        "budget_bytes": budget,
        "peak_fast_bytes": peak,
        "within_budget": budget is None or peak <= budget,
        "stall_share": spread(shares),
        "per_step": {name: median(values) for name, values in reports[-1]["steps"].items()},
    }
