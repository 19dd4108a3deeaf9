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

from dithc.bench.child_process import child_of, launch_line
from dithc.bench.resume import MeasurementStopped, current_session
from dithc.bench.rooflines import Precision
from dithc.bench.timing import Timing, alternating, spread
from dithc.bench.training.memory_limit import MemoryLimit
from dithc.core.logging import get_logger, progress
from dithc.engine.numa import pss_bytes

log = get_logger(__name__)
# Reading the memory of a large process stops that process. This is the largest share of time for it.
SHARE_OF_LOOKING, SHORTEST_PAUSE_SECONDS = 0.1, 0.02
# Errors of a process after a failed allocation: torch's allocator, C++, threads of glibc and OpenMP, Python.
REFUSED = ("can't allocate memory", "bad_alloc", "Cannot allocate memory", "Thread creation failed", "MemoryError")
KILLED = 137
NOT_MADE = "the benchmark was stopped earlier"


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

    def of_model(self, model: str, batch: int) -> list[str]:
        """Return the arguments of `dithc bench training` and `dithc tune-kernels` for a network."""
        words = ["--model", model, "--batch", str(batch), "--dtype", self.dtype]
        return words + [f"--override={name}={value}" for name, value in self.overrides.items()]

    def of_run(self, model: str, batch: int) -> list[str]:
        """Return the arguments of `dithc bench training`."""
        return [*self.of_model(model, batch), "--warmup", str(self.warmup), "--steps", str(self.steps)]


@dataclass(frozen=True, kw_only=True)
class TrainingVariant:
    """Strategy on a number of ranks.

    Attributes:
        ranks: processes over all nodes.
        cpus: compute threads of each process.
        allowed: logical CPUs of the ranks; None for all.
        launcher: mpiexec or srun.
        words: extra arguments of `dithc bench training`.
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
    words: tuple[str, ...] = ()
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
    looks: int = 0
    peak_rss_bytes_each: list[int] = field(default_factory=list)
    sent_each: list[dict[str, float | None]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)


def run_training(
    contender: TrainingVariant,
    words: Sequence[str],
    *,
    limit_bytes: int | None = None,
    variables: Mapping[str, str] | None = None,
    parent: Path | None = None,
) -> TrainingResult:
    """Start the ranks, wait for them and read their results. A stopped measurement returns the status `stopped`.

    `words` are arguments of `dithc bench training`. `limit_bytes` limits the memory of all ranks. `variables` are
    environment variables of several ranks, such as an MPI profiling layer. `parent` contains the folder of the run,
    by default on this node.
    """
    unit = " ".join(("run", contender.name, *words, *contender.words))

    def make() -> dict[str, Any]:
        limit = MemoryLimit(limit_bytes, ranks=contender.ranks)
        with closing(limit), tempfile.TemporaryDirectory(prefix="dithc-run-", dir=parent) as folder:
            run = _made(contender, words, folder=Path(folder), limit=limit, variables=variables or {})
        run.limit = limit.how
        if run.status == "ok":
            log.info("%s: %.3f s", unit, median(run.seconds))
        else:
            log.warning("%s: %s: %s", unit, run.status, run.reason)
        return asdict(run)

    try:
        return TrainingResult(**current_session().unit(unit, make, keep=lambda run: run["status"] in ("ok", "oom")))
    except MeasurementStopped:
        return TrainingResult(status="stopped", reason=NOT_MADE)


def interleaved(
    contenders: Sequence[TrainingVariant],
    rounds: int,
    run: Callable[[TrainingVariant], TrainingResult],
    *,
    bar: progress,
    label: str = "",
) -> dict[str, list[TrainingResult]]:
    """Run all variants in alternating order, except variants that failed, and return comparable runs."""
    runs: dict[str, list[TrainingResult]] = {contender.name: [] for contender in contenders}
    for contender in chain(*alternating(contenders, rounds)):
        own = runs[contender.name]
        if not own or (own[-1].status == "ok" and not contender.is_oversubscribed):
            own.append(run(contender))
        bar.update(1, now=f"{label} {contender.name}".strip())
    return settled(runs)


def settled(runs: Mapping[str, Sequence[TrainingResult]]) -> dict[str, list[TrainingResult]]:
    """Return comparable runs: the same number for every variant with any runs."""
    made = {name: [run for run in own if run.status != "stopped"] for name, own in runs.items()}
    if all(len(made[name]) == len(own) and own for name, own in runs.items()):
        return made
    rounds = min((len(own) for own in made.values() if own), default=0)
    return {name: own[:rounds] or [TrainingResult(status="stopped", reason=NOT_MADE)] for name, own in made.items()}


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


def _made(
    contender: TrainingVariant, words: Sequence[str], *, folder: Path, limit: MemoryLimit, variables: Mapping[str, str]
) -> TrainingResult:
    out, said = folder / "run.json", folder / "said.txt"
    words = ["training", *words, *contender.words, "--strategy", contender.strategy, "--json", str(out)]
    words += ["--data-limit", str(limit.data_bytes)] if limit.data_bytes is not None else []
    line = launch_line(
        words,
        ranks=contender.ranks,
        cpus=contender.cpus,
        launcher=contender.launcher,
        nodes=contender.nodes,
        variables={**contender.environment, **(variables if contender.ranks > 1 else {})},
    )

    def prepare() -> None:
        limit.enter()
        if contender.allowed is not None:
            os.sched_setaffinity(0, contender.allowed)

    run = TrainingResult()
    with said.open("w") as stream, child_of(line, stdout=stream, stderr=stream, preexec_fn=prepare) as child:
        _watch(child, run, until=out.with_suffix(".warm"))
    return _read(run, child.returncode, out=out, said=said, limit=limit)


def _watch(child: "subprocess.Popen[bytes]", run: TrainingResult, *, until: Path) -> None:
    """Sample the memory of the ranks during warm-up, and stop before the timed steps."""
    while child.poll() is None and not until.exists():
        begun = time.perf_counter()
        found = [pss for pid in ranks_below(child.pid) if (pss := pss_bytes(pid)) is not None]
        if found:
            run.looks += 1
            run.peak_pss_bytes = max(run.peak_pss_bytes or 0, sum(found))
        spent = time.perf_counter() - begun
        time.sleep(max(SHORTEST_PAUSE_SECONDS, spent * (1 / SHARE_OF_LOOKING - 1)))
    child.wait()


def _read(run: TrainingResult, status: int, *, out: Path, said: Path, limit: MemoryLimit) -> TrainingResult:
    text = said.read_text(errors="replace")
    if status == 0 and out.exists():
        result = json.loads(out.read_text())
        run.result = result
        run.seconds, run.losses = result["seconds"], result["losses"]
        run.peak_rss_bytes_each = [rank["peak_rss_bytes"] for rank in result["each_rank"]]
        run.sent_each = [rank["sent"] for rank in result["each_rank"]]
        return run
    refused = limit.struck() or (limit.how and status in (KILLED, -9)) or any(words in text for words in REFUSED)
    run.status = "oom" if refused else "failed"
    run.reason = f"status {status}; {_words_of_the_end(text, is_refused=bool(refused))}"
    run.peak_pss_bytes = None
    return run


def _words_of_the_end(text: str, *, is_refused: bool) -> str:
    """Return the last log lines of a failed run, or the line that reports a failed allocation."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" ^~")]
    if is_refused:
        said = [line for line in lines if any(words in line for words in REFUSED)]
        return said[-1] if said else "killed, out of memory"
    return " | ".join(lines[-12:]) or "no message"


def ranks_below(launcher: int, *, proc: Path = Path("/proc")) -> list[int]:
    """Return the processes below the launcher that run `dithc bench training`."""
    children: dict[int, list[int]] = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
    found, waiting = [], [launcher]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        with suppress(OSError):
            words = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
            if words[1:5] == [b"-m", b"dithc", b"bench", b"training"]:
                found.append(pid)
    return found
