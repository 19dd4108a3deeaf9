"""One run of a strategy, started by `dithc launch` in separate processes, with its memory observed from outside."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from dithc.bench.bound_child import child_of
from dithc.bench.trainings.memory_limit import MemoryLimit
from dithc.comm import traffic
from dithc.sittings import Stopped, now

KIB = 1024
# Reading the memory of a large process stops that process. This is the largest share of time for it.
SHARE_OF_LOOKING, SHORTEST_PAUSE_SECONDS = 0.1, 0.02
# Errors of a process after a failed allocation: torch's allocator, C++, threads of glibc and OpenMP, Python.
REFUSED = ("can't allocate memory", "bad_alloc", "Cannot allocate memory", "Thread creation failed", "MemoryError")
KILLED = 137
NOT_MADE = "the benchmark was stopped earlier"
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Contender:
    """Strategy on a number of ranks.

    Attributes:
        ranks: processes over all nodes.
        cpus: compute threads of each process.
        allowed: logical CPUs of the ranks; None for all.
        launcher: mpiexec or srun.
        words: extra arguments of `dithc bench training`.
        environment: environment variables of the ranks.
    """

    name: str
    strategy: str
    ranks: int
    cpus: int
    allowed: tuple[int, ...] | None = None
    launcher: str = "mpiexec"
    nodes: int = 1
    words: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(kw_only=True)
class Run:
    """Outcome of one run, complete in `result`. Numbers stay None after a failure."""

    status: Literal["ok", "oom", "failed", "skipped", "stopped"] = "ok"
    reason: str = ""
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    peak_pss_bytes: int | None = None
    looks: int = 0
    peak_rss_bytes_each: list[int] = field(default_factory=list)
    sent_each: list[dict[str, float | None]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)


def run_once(
    contender: Contender, words: Sequence[str], *, folder: Path, limit: MemoryLimit, counter: Path | None
) -> Run:
    """Start the ranks, wait for them and read their results. A stopped measurement returns the status `stopped`.

    Args:
        contender: strategy to run.
        words: arguments of `dithc bench training`, without the arguments added here.
        folder: empty folder of this run.
        limit: limit on the memory of all ranks.
        counter: MPI profiling layer, preloaded into several ranks; one rank never loads MPI.
    """
    unit = " ".join(("run", contender.name, *words, *contender.words))

    def make() -> dict[str, Any]:
        return asdict(_made(contender, words, folder=folder, limit=limit, counter=counter))

    try:
        return Run(**now().unit(unit, make, keep=lambda run: run["status"] in ("ok", "oom")))
    except Stopped:
        return Run(status="stopped", reason=NOT_MADE)


def settled(runs: Mapping[Name, Sequence[Run]]) -> dict[Name, list[Run]]:
    """Return comparable runs: the same number for every variant with any runs."""
    made = {name: [run for run in own if run.status != "stopped"] for name, own in runs.items()}
    if all(len(made[name]) == len(own) and own for name, own in runs.items()):
        return made
    rounds = min((len(own) for own in made.values() if own), default=0)
    return {name: own[:rounds] or [Run(status="stopped", reason=NOT_MADE)] for name, own in made.items()}


def _made(contender: Contender, words: Sequence[str], *, folder: Path, limit: MemoryLimit, counter: Path | None) -> Run:
    out, said = folder / "run.json", folder / "said.txt"
    rank = [
        sys.executable,
        "-m",
        "dithc",
        "bench",
        "training",
        *words,
        *contender.words,
        "--strategy",
        contender.strategy,
    ]
    rank += ["--json", str(out)]
    rank += ["--data-limit", str(limit.data_bytes)] if limit.data_bytes is not None else []
    variables = dict(contender.environment)
    if counter is not None and contender.ranks > 1:
        variables |= {"LD_PRELOAD": str(counter), traffic.COUNT_VARIABLE: str(folder / "mpi")}
    if variables:
        rank = ["env", *(f"{name}={value}" for name, value in variables.items()), *rank]
    launcher = ["--launcher", contender.launcher if contender.ranks > 1 else "none", "--nodes", str(contender.nodes)]
    line = [sys.executable, "-m", "dithc", "launch", *launcher, "--ranks", str(contender.ranks)]
    line += ["--cpus", str(contender.cpus), "--", *rank]

    def prepare() -> None:
        limit.enter()
        if contender.allowed is not None:
            os.sched_setaffinity(0, contender.allowed)

    run = Run()
    with (
        said.open("w") as stream,
        child_of(line, stdout=stream, stderr=stream, env=_environment(), preexec_fn=prepare) as child,
    ):
        _watch(child, run, until=out.with_suffix(".warm"))
    return _read(run, child.returncode, out=out, said=said, limit=limit)


def _environment() -> dict[str, str]:
    """Return this environment without variables of a launcher or of thread settings."""
    unwanted = ("OMP_NUM_THREADS", "DITHC_EXPECTED_RANKS")
    return {name: value for name, value in os.environ.items() if name not in unwanted}


def _watch(child: "subprocess.Popen[bytes]", run: Run, *, until: Path) -> None:
    """Sample the memory of the ranks during warm-up, and stop before the timed steps."""
    while child.poll() is None and not until.exists():
        begun = time.perf_counter()
        found = [pss for pid in ranks_below(child.pid) if (pss := pss_of(pid)) is not None]
        if found:
            run.looks += 1
            run.peak_pss_bytes = max(run.peak_pss_bytes or 0, sum(found))
        spent = time.perf_counter() - begun
        time.sleep(max(SHORTEST_PAUSE_SECONDS, spent * (1 / SHARE_OF_LOOKING - 1)))
    child.wait()


def _read(run: Run, status: int, *, out: Path, said: Path, limit: MemoryLimit) -> Run:
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


def pss_of(pid: int, *, proc: Path = Path("/proc")) -> int | None:
    """Return the proportional set size of a process in bytes, or None after its end."""
    try:
        lines = (proc / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * KIB for line in lines if line.startswith("Pss:")), None)
