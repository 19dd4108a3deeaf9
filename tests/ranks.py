"""Several ranks in a test: started by the launcher that `dithc launch` takes, whichever MPI that belongs to."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from dithc.comm.launching.launch import MpiExec, find_mpiexec, launch_line
from dithc.log import UserError

ROOT = Path(__file__).parent.parent


def launcher() -> MpiExec | None:
    """The launcher, None where there is none."""
    try:
        return find_mpiexec()
    except UserError:
        return None


def openmpi_environment(home: Path) -> dict[str, str]:
    """The variables that make an Open MPI, with bin/mpiexec and libmpi.so.40 below `home`, the MPI of whatever is started."""
    library = next(home.glob("lib*/**/libmpi.so.40"))
    return {"DITHC_MPIEXEC": str(home / "bin/mpiexec"), "MPI4PY_LIBMPI": str(library), "OPAL_PREFIX": str(home)}


def started(ranks: int) -> list[str]:
    """The words before a command that start so many ranks of it; one rank has a launcher here too."""
    found = find_mpiexec()
    if ranks == 1:
        return [
            found.path,
            *(["--allow-run-as-root"] if found.vendor == "openmpi" and os.geteuid() == 0 else []),
            "-n",
            "1",
        ]
    return launch_line(["true"], launcher="mpiexec", ranks=ranks, mpiexec=found, root_user=os.geteuid() == 0)[:-1]


def on_ranks(
    program: str, *, ranks: int = 2, given: object = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a Python program on ranks, of which nobody waits for ever.

    Args:
        program: its text; its first argument is the path of a file with `given`, pickled, the next the number of ranks.
        ranks: how many.
        given: what it gets.
        folder: where that file goes; None where it gets nothing.
    """
    words = [*started(ranks), sys.executable, "-c", program]
    if folder is not None:
        (folder / "given.pickle").write_bytes(pickle.dumps(given))
        words += [str(folder / "given.pickle"), str(ranks)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


needs_launcher = pytest.mark.skipif(launcher() is None, reason="no MPI launcher: install an MPI, or set DITHC_MPIEXEC")
