"""Training runs of `dithc bench automem` in separate processes: with and without AutoMem, with and without a limit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from dithc.bench.resume import MeasurementStopped
from dithc.bench.timing import spread
from dithc.bench.training import (
    RunSettings,
    TrainingResult,
    TrainingVariant,
    interleaved,
    row_of,
    run_training,
    time_over,
)
from dithc.core.logging import get_logger, progress, user_error

log = get_logger(__name__)
PARTS = ("budget", "file", "largest-batch", "pool", "resident")
GIB, MIB = 1 << 30, 1 << 20
UNMANAGED, MANAGED, PLAIN = "unmanaged", "AutoMem", "plain torch"
FAST_SHARE = 0.75  # of the limit, for the fastest tier
OFF = ("--automem", "off")
PLAIN_WORDS = (*OFF, "--operators", "torch")
PLAIN_ENVIRONMENT = {"DITHC_OUTPUT_POOL": "off"}


@dataclass(frozen=True, kw_only=True)
class AutoMemSettings(RunSettings):
    """Settings of the AutoMem benchmark, described by `dithc bench automem --help`."""

    only: tuple[str, ...] = PARTS
    model: str = "DiT-XL/2"
    batch: int = 8
    budget: float = 0.4
    limit: float = 0.6
    folder: Path = Path()
    spill_gib: float = 16.0
    memory_gib: float = 24.0
    most: int = 64
    step_models: tuple[str, ...] = ("DiT-S/2", "DiT-B/2")
    repeats: int = 15
    threads: int | None = None
    warmup: int = 3
    seed: int = 0


class TrainingRuns:
    """Runs of one model on one rank, for the parts that compare training runs."""

    def __init__(self, settings: AutoMemSettings, *, threads: int) -> None:
        self._settings, self._threads = settings, threads
        self._unmanaged: TrainingResult | None = None
        self._how = ""  # enforcement of the last limit

    def budget(self) -> dict[str, Any]:
        """Compare AutoMem under a fast-tier budget with unmanaged training, interleaved."""
        first = self._bare()
        budget_bytes = int(takes_of(first) * self._settings.budget) // MIB * MIB
        log.info(
            "unmanaged training needs %.2f GiB: using a budget of %.2f GiB", takes_of(first) / GIB, budget_bytes / GIB
        )
        managed = self._contender(MANAGED, ("--automem", "on", "--fast-bytes", str(budget_bytes)))
        bare = iter([first])  # the run above is the first of its rounds

        def run(contender: TrainingVariant) -> TrainingResult:
            return (next(bare, None) if contender.name == UNMANAGED else None) or self._run(contender)

        contenders, rounds = [self._contender(UNMANAGED, OFF), managed], self._settings.rounds
        with progress(total=2 * rounds, label="budget", unit="run") as bar:
            runs = interleaved(contenders, rounds, run, bar=bar)
        rows = [automem_row(UNMANAGED, runs[UNMANAGED]), automem_row(MANAGED, runs[MANAGED], beside=runs[UNMANAGED])]
        return {"takes_bytes": takes_of(first), "budget_bytes": budget_bytes, "rows": rows}

    def file(self) -> dict[str, Any]:
        """Compare both under a process limit below the unmanaged peak; AutoMem adds a file tier."""
        settings, first = self._settings, self._bare()
        limit_bytes = int(peak_of(first) * settings.limit)
        words = self._with_file(limit_bytes, before_bytes=before_of(first))
        bare, managed = (
            self._run(self._contender(name, options), limit_bytes=limit_bytes)
            for name, options in ((UNMANAGED, OFF), (MANAGED, words))
        )
        rows = [automem_row(UNMANAGED, [bare]), automem_row(MANAGED, [managed])]
        rows[1]["losses_identical"] = managed.status == "ok" and same_training(first, managed)
        found = {"unmanaged_peak_bytes": peak_of(first), "limit_bytes": limit_bytes}
        return found | {"how": managed.limit, "rows": rows}

    def largest_batch(self) -> dict[str, Any]:
        """Find the largest batch that fits into the limit: PyTorch alone, and AutoMem with a file and recomputation."""
        settings = replace(self._settings, warmup=2, steps=1)  # two warm-up steps complete the plan
        limit_bytes = int(settings.memory_gib * GIB)
        words = (*self._with_file(limit_bytes, before_bytes=before_of(self._bare())), "--recompute", "block")
        plain = self._contender(PLAIN, PLAIN_WORDS, PLAIN_ENVIRONMENT)
        rows: list[dict[str, Any]] = []
        for contender in (plain, self._contender(MANAGED, words)):

            def tried(batch: int, contender: TrainingVariant = contender) -> TrainingResult:
                return self._run(contender, replace(settings, batch=batch), limit_bytes=limit_bytes)

            largest, probes = largest_of(tried, first=settings.batch, most=settings.most)
            said = {"status": "ok" if largest else "oom", "reason": "" if largest else "one image does not fit"}
            rows.append({"name": contender.name, "largest": largest, **said, "probes": probes})
        ratio = rows[1]["largest"] / rows[0]["largest"] if rows[0]["largest"] else None
        return {"limit_bytes": limit_bytes, "how": self._how, "most": settings.most, "ratio": ratio, "rows": rows}

    def _bare(self) -> TrainingResult:
        """Return the unmanaged run without a limit, executed once."""
        if self._unmanaged is None:
            run = self._run(self._contender(UNMANAGED, OFF))
            if run.status != "ok":
                raise user_error(
                    "the unmanaged training run",
                    got=f"{run.status}: {run.reason}",
                    expected="a run that measures its memory",
                    fix="choose a smaller --model or --batch: the run without AutoMem must fit once",
                )
            self._unmanaged = run
        return self._unmanaged

    def _contender(
        self, name: str, words: tuple[str, ...], environment: Mapping[str, str] | None = None
    ) -> TrainingVariant:
        return TrainingVariant(
            name=name, strategy="cftp", ranks=1, cpus=self._threads, words=words, environment=environment or {}
        )

    def _with_file(self, limit_bytes: int, *, before_bytes: int) -> tuple[str, ...]:
        """Return options for AutoMem with a fraction of the limit as its fastest tier, and a file tier."""
        fast_bytes = int((limit_bytes - before_bytes) * FAST_SHARE) // MIB * MIB
        if fast_bytes <= 0:
            got = f"{limit_bytes / GIB:.2f} GiB, of which the bare process has {before_bytes / GIB:.2f}"
            raise user_error("memory limit", got=got, expected="space for training", fix="raise --memory or --limit")
        file_bytes = int(self._settings.spill_gib * GIB)
        folder = str(self._settings.folder.resolve())
        return (
            *("--automem", "on", "--fast-bytes", str(fast_bytes)),
            *("--spill-folder", folder, "--file-bytes", str(file_bytes)),
        )

    def _run(
        self, contender: TrainingVariant, settings: AutoMemSettings | None = None, *, limit_bytes: int | None = None
    ) -> TrainingResult:
        chosen = settings or self._settings
        run = run_training(contender, chosen.of_run(chosen.model, chosen.batch), limit_bytes=limit_bytes)
        if run.status == "stopped":
            raise MeasurementStopped
        self._how = run.limit
        return run


def peak_of(run: TrainingResult) -> int:
    """Return the peak resident size of the process, in bytes."""
    return run.peak_rss_bytes_each[0]


def before_of(run: TrainingResult) -> int:
    """Return the peak resident size before the model was built, in bytes."""
    return int(run.result["each_rank"][0]["before_bytes"])


def takes_of(run: TrainingResult) -> int:
    """Return the bytes of training: weights, gradients, moments, average, activations."""
    return peak_of(run) - before_of(run)


def same_training(first: TrainingResult, other: TrainingResult) -> bool:
    """Test whether all losses and gradient norms are bitwise equal."""
    return first.losses == other.losses and first.result["grad_norms"] == other.result["grad_norms"]


def automem_row(name: str, runs: Sequence[TrainingResult], *, beside: Sequence[TrainingResult] = ()) -> dict[str, Any]:
    """Return the row of a variant, compared with the runs in `beside` if given."""
    row = {"name": name} | row_of(runs)
    if row["status"] != "ok":
        return row
    row["peak_rss_bytes"] = max(map(peak_of, runs))
    if memory := runs[-1].result["each_rank"][0].get("memory"):
        row |= _managed(runs) | {"memory": memory}
    if beside and all(run.status == "ok" for run in beside):
        row["losses_identical"] = all(same_training(beside[0], run) for run in (*beside, *runs))
        row["slower"] = time_over(row, row_of(beside))
    return row


def _managed(runs: Sequence[TrainingResult]) -> dict[str, Any]:
    """Return the worst fast-tier and copy numbers over the runs of a managed variant."""
    told = [run.result["each_rank"][0]["memory"] for run in runs]
    shares = [
        stall / seconds
        for run, memory in zip(runs, told, strict=True)
        for stall, seconds in zip(memory["steps"]["stall_seconds"], run.seconds, strict=True)
    ]
    tiers = [memory["tiers"][0] for memory in told]
    peak, budget = max(tier["peak_backed_bytes"] for tier in tiers), tiers[0]["budget_bytes"]
    return {
        "budget_bytes": budget,
        "peak_fast_bytes": peak,
        "within_budget": budget is None or peak <= budget,
        "stall_share": spread(shares),
        "per_step": {name: median(values) for name, values in told[-1]["steps"].items()},
    }


def largest_of(tried: Callable[[int], TrainingResult], *, first: int, most: int) -> tuple[int, list[dict[str, Any]]]:
    """Find the largest batch that runs: double or halve to a bracket, then bisect. Return it and all probes."""
    probes: list[dict[str, Any]] = []
    good, bad, batch = 0, most + 1, min(first, most)
    while good + 1 < bad:
        run = tried(batch)
        if run.status == "failed":
            expected = "success, or a lack of memory"
            raise user_error(
                f"a step of batch {batch}", got=run.reason, expected=expected, fix="fix the error in `got`"
            )
        seconds = median(run.seconds) if run.seconds else None
        probes.append({"batch": batch, "status": run.status, "seconds": seconds})
        if run.status == "ok":
            good = batch
        else:
            bad = batch
        batch = min(2 * good, most) if bad > most else (good + bad) // 2
    return good, probes
