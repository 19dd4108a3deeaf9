"""Interleaved training runs in separate processes, started by `dithc launch`, with their memory observed from outside."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, Literal

from dithc.bench.child_process import launch_argv, run_child
from dithc.bench.resume import MeasurementStopped, current_session
from dithc.bench.rooflines import Precision
from dithc.bench.timing import Timing, alternating, spread
from dithc.bench.training.memory_limit import MemoryLimit
from dithc.core.logging import get_logger, progress
from dithc.core.processes import descendants
from dithc.engine.numa import pss_bytes

log = get_logger(__name__)
# Reading the memory of a large process stops that process. This is the largest share of time for it.
SAMPLING_SHARE, SHORTEST_PAUSE_SECONDS = 0.1, 0.02
# Errors of a process after a failed allocation: torch's allocator, C++, threads of glibc and OpenMP, Python.
OOM_ERRORS = ("can't allocate memory", "bad_alloc", "Cannot allocate memory", "Thread creation failed", "MemoryError")
KILLED = 137
NOT_RUN = "the benchmark was stopped earlier"


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of interleaved training runs.

    Attributes:
        overrides: fields of `model` to change (hidden_size, depth, num_heads).
        rounds: runs of each variant; every second round reverses the order.
        warmup: untimed steps of a run.
        steps: timed steps of a run.
    """

    overrides: Mapping[str, Any] = field(default_factory=dict)
    dtype: Precision = "fp32"
    rounds: int = 2
    warmup: int = 2
    steps: int = 3

    def model_options(self, model: str, batch: int) -> list[str]:
        """Return the arguments of `dithc bench training` and `dithc tune-kernels` for a network."""
        options = ["--model", model, "--batch", str(batch), "--dtype", self.dtype]
        return options + [f"--override={name}={value}" for name, value in self.overrides.items()]

    def run_options(self, model: str, batch: int) -> list[str]:
        """Return the arguments of `dithc bench training`."""
        return [*self.model_options(model, batch), "--warmup", str(self.warmup), "--steps", str(self.steps)]


@dataclass(frozen=True, kw_only=True)
class TrainingVariant:
    """Strategy on a number of ranks.

    Attributes:
        ranks: processes over all nodes.
        cpus: compute threads of each process.
        allowed: logical CPUs of the ranks; None for all.
        launcher: mpiexec or srun.
        options: extra arguments of `dithc bench training`.
        environment: environment variables of the ranks.
        is_oversubscribed: whether ranks share cores, so that one run without a valid time is sufficient.
    """

    name: str
    strategy: str
    ranks: int
    cpus: int
    allowed: tuple[int, ...] | None = None
    launcher: str = "mpiexec"
    nodes: int = 1
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    is_oversubscribed: bool = False


@dataclass(kw_only=True)
class TrainingResult:
    """Outcome of one run, complete in `result`. Numbers stay None after a failure; `limit` describes a memory limit."""

    status: Literal["ok", "oom", "failed", "skipped", "stopped"] = "ok"
    reason: str = ""
    limit: str = ""
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    peak_pss_bytes: int | None = None
    memory_samples: int = 0
    peak_rss_bytes_each: list[int] = field(default_factory=list)
    sent_each: list[dict[str, float | None]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)


def run_training(
    variant: TrainingVariant,
    options: Sequence[str],
    *,
    limit_bytes: int | None = None,
    variables: Mapping[str, str] | None = None,
    parent: Path | None = None,
) -> TrainingResult:
    """Start the ranks, wait for them and read their results. A stopped measurement returns the status `stopped`.

    `options` are arguments of `dithc bench training`. `limit_bytes` limits the memory of all ranks. `variables` are
    environment variables of several ranks, such as an MPI profiling layer. `parent` contains the folder of the run,
    by default on this node.
    """
    unit = " ".join(("run", variant.name, *options, *variant.options))

    def make() -> dict[str, Any]:
        limit = MemoryLimit(limit_bytes, ranks=variant.ranks)
        with closing(limit), tempfile.TemporaryDirectory(prefix="dithc-run-", dir=parent) as folder:
            run = _execute(variant, options, folder=Path(folder), limit=limit, variables=variables or {})
        run.limit = limit.description
        if run.status == "ok":
            log.info("%s: %.3f s", unit, median(run.seconds))
        else:
            log.warning("%s: %s: %s", unit, run.status, run.reason)
        return asdict(run)

    try:
        return TrainingResult(**current_session().unit(unit, make, keep=lambda run: run["status"] in ("ok", "oom")))
    except MeasurementStopped:
        return TrainingResult(status="stopped", reason=NOT_RUN)


def interleaved(
    variants: Sequence[TrainingVariant],
    rounds: int,
    run: Callable[[TrainingVariant], TrainingResult],
    *,
    bar: progress,
    label: str = "",
) -> dict[str, list[TrainingResult]]:
    """Run all variants in alternating order, except variants that failed, and return comparable runs."""
    runs: dict[str, list[TrainingResult]] = {variant.name: [] for variant in variants}
    for variant in chain(*alternating(variants, rounds)):
        results = runs[variant.name]
        if not results or (results[-1].status == "ok" and not variant.is_oversubscribed):
            results.append(run(variant))
        bar.update(1, now=f"{label} {variant.name}".strip())
    return comparable_runs(runs)


def comparable_runs(runs: Mapping[str, Sequence[TrainingResult]]) -> dict[str, list[TrainingResult]]:
    """Return comparable runs: the same number for every variant with any runs."""
    finished = {name: [run for run in results if run.status != "stopped"] for name, results in runs.items()}
    if all(len(finished[name]) == len(results) and results for name, results in runs.items()):
        return finished
    rounds = min((len(results) for results in finished.values() if results), default=0)
    stopped = TrainingResult(status="stopped", reason=NOT_RUN)
    return {name: results[:rounds] or [stopped] for name, results in finished.items()}


def row_of(runs: Sequence[TrainingResult]) -> dict[str, Any]:
    """Return the numbers of a variant that all measurements report, or status and reason of a failed run."""
    bad = next((run for run in runs if run.status != "ok"), None)
    if bad is not None:
        return {"status": bad.status, "reason": bad.reason}
    return {
        "status": "ok",
        "seconds": Timing(tuple(median(run.seconds) for run in runs)).to_dict(),
        "steps_seconds": [run.seconds for run in runs],
        "peak_rss_bytes_each": runs[-1].peak_rss_bytes_each,
        "losses": runs[-1].losses,
        "grad_norms": runs[-1].result.get("grad_norms"),
    }


def time_over(row: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spread of the seconds of a row relative to the seconds of another row in the same round."""
    times = (Timing(tuple(one["seconds"]["all"])) for one in (row, base))
    return spread(next(times).ratios_to(next(times)))


def _execute(
    variant: TrainingVariant, options: Sequence[str], *, folder: Path, limit: MemoryLimit, variables: Mapping[str, str]
) -> TrainingResult:
    out, log_path = folder / "run.json", folder / "output.txt"
    options = [*options, "--rlimit-data", str(limit.data_bytes)] if limit.data_bytes is not None else options
    argv = training_argv(variant, options, out=out, variables=variables)

    def prepare() -> None:
        limit.enter()
        if variant.allowed is not None:
            os.sched_setaffinity(0, variant.allowed)

    run = TrainingResult()
    with log_path.open("w") as stream, run_child(argv, stdout=stream, stderr=stream, preexec_fn=prepare) as child:
        _watch(child, run, until=out.with_suffix(".warm"))
    return read_result(run, child.returncode, out=out, log_path=log_path, limit=limit)


def training_argv(
    variant: TrainingVariant, options: Sequence[str], *, out: Path, variables: Mapping[str, str] | None = None
) -> list[str]:
    """Return the command of a run; `variables` are environment variables of several ranks."""
    return launch_argv(
        ["training", *options, *variant.options, "--strategy", variant.strategy, "--json", str(out)],
        ranks=variant.ranks,
        cpus=variant.cpus,
        launcher=variant.launcher,
        nodes=variant.nodes,
        variables={**variant.environment, **(variables or {} if variant.ranks > 1 else {})},
    )


def _watch(child: "subprocess.Popen[bytes]", run: TrainingResult, *, until: Path) -> None:
    """Sample the memory of the ranks during warm-up, and stop before the timed steps."""
    while child.poll() is None and not until.exists():
        start = time.perf_counter()
        sizes = [pss for pid in ranks_below(child.pid) if (pss := pss_bytes(pid)) is not None]
        if sizes:
            run.memory_samples += 1
            run.peak_pss_bytes = max(run.peak_pss_bytes or 0, sum(sizes))
        spent = time.perf_counter() - start
        time.sleep(max(SHORTEST_PAUSE_SECONDS, spent * (1 / SAMPLING_SHARE - 1)))
    child.wait()


def read_result(run: TrainingResult, status: int, *, out: Path, log_path: Path, limit: MemoryLimit) -> TrainingResult:
    """Return `run` with the numbers of a finished process, or with the status and the reason of its failure."""
    if status == 0 and out.exists():
        result = json.loads(out.read_text())
        run.result = result
        run.seconds, run.losses = result["seconds"], result["losses"]
        run.peak_rss_bytes_each = [rank["peak_rss_bytes"] for rank in result["each_rank"]]
        run.sent_each = [rank["sent"] for rank in result["each_rank"]]
        return run
    lines = [line.strip() for line in log_path.read_text(errors="replace").splitlines() if line.strip(" ^~")]
    causes = [line for line in lines if any(phrase in line for phrase in OOM_ERRORS)]
    is_oom = causes or limit.has_killed() or (limit.description and status in (KILLED, -9))
    run.status, run.peak_pss_bytes = "oom" if is_oom else "failed", None
    log_end = " | ".join(lines[-12:]) or "no message"
    run.reason = f"status {status}; {causes[-1] if causes else 'killed, out of memory' if is_oom else log_end}"
    return run


def ranks_below(launcher: int, *, proc: Path = Path("/proc")) -> list[int]:
    """Return the processes below the launcher that run `dithc bench training`."""
    pids = []
    for pid in descendants(launcher, proc=proc):
        with suppress(OSError):
            options = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
            if options[1:5] == [b"-m", b"dithc", b"bench", b"training"]:
                pids.append(pid)
    return pids
