"""Ranks that a benchmark starts with `dithc launch`, and that end with the benchmark."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dithc.bench.resume import sigterm_exits
from dithc.core.logging import UserError, get_logger
from dithc.core.processes import die_with_parent
from dithc.engine.comm import traffic

REMOVED_VARIABLES = ("OMP_NUM_THREADS", "DITHC_EXPECTED_RANKS")  # variables of a launcher or of thread settings
log = get_logger(__name__)


def launch_argv(
    arguments: Sequence[str],
    *,
    ranks: int,
    cpus: int,
    launcher: str = "mpiexec",
    nodes: int = 1,
    variables: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the command that runs `dithc bench WORDS` on ranks with additional environment variables."""
    program = [sys.executable, "-m", "dithc"]
    launcher_name = launcher if ranks > 1 else "none"
    argv = [
        *program,
        "launch",
        "--launcher",
        launcher_name,
        "--nodes",
        str(nodes),
        "--ranks",
        str(ranks),
        "--cpus-per-rank",
        str(cpus),
    ]
    settings = ["env", *(f"{name}={value}" for name, value in variables.items())] if variables else []
    return [*argv, "--", *settings, *program, "bench", *arguments]


def message_counter(folder: Path) -> dict[str, str]:
    """Build the MPI profiling layer. Return the variables that enable it, or log why it is unavailable."""
    try:
        library = traffic.build_counter(folder)
    except UserError as error:
        log.warning("not counting MPI messages: %s", error)
        return {}
    return {"LD_PRELOAD": str(library), traffic.COUNT_VARIABLE: str(folder / "mpi")}


def sum_of(sent: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the bytes that all ranks sent; None if a rank did not count them. A single rank never loads MPI."""
    counts = {name: [rank[name] for rank in sent] for name in ("tcp_bytes", "mpi_bytes", "shared_bytes")}
    return {name: None if None in each and len(each) > 1 else sum(filter(None, each)) for name, each in counts.items()}


@contextmanager
def run_child(command: Sequence[str], **settings: Any) -> Iterator["subprocess.Popen[Any]"]:
    """Start a command without the thread settings of this process, and end it when the block exits.

    An error, Ctrl-C or SIGTERM (raised as SystemExit 143 inside the block) sends SIGTERM, which `dithc launch`
    forwards. The kernel sends it if this process is killed. `settings` are arguments of subprocess.Popen.
    """
    own_preparation = settings.pop("preexec_fn", None)

    def prepare() -> None:
        die_with_parent(signal.SIGTERM)
        if own_preparation is not None:
            own_preparation()

    environment = {name: value for name, value in os.environ.items() if name not in REMOVED_VARIABLES}
    with (
        sigterm_exits(),
        subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, preexec_fn=prepare, **settings) as child,
    ):
        try:
            yield child
        except BaseException:
            child.terminate()
            raise
