"""Multiple ranks in a test, started by the launcher of `dithc launch` with any MPI."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from dithc.core.logging import UserError
from dithc.engine import native
from dithc.engine.comm.launch.launch_command import MpiLauncher, find_mpiexec, launch_argv

ROOT = Path(__file__).parent.parent
WITHOUT_FINAL_COLLECTION = "import atexit, gc; atexit.register(gc.freeze)\n"  # a fifth of the CPU time of a short rank


def launcher() -> MpiLauncher | None:
    """Return the launcher, or None if it is not installed."""
    try:
        return find_mpiexec()
    except UserError:
        return None


def openmpi_environment(home: Path) -> dict[str, str]:
    """Return variables that select an Open MPI with bin/mpiexec and libmpi.so.40 below `home` for child processes."""
    library = next(home.glob("lib*/**/libmpi.so.40"))
    return {"DITHC_MPIEXEC": str(home / "bin/mpiexec"), "MPI4PY_LIBMPI": str(library), "OPAL_PREFIX": str(home)}


def launch_arguments(ranks: int) -> list[str]:
    """Return the launcher arguments that start this number of ranks; a single rank also has a launcher."""
    found = find_mpiexec()
    if ranks == 1:
        root = ["--allow-run-as-root"] if found.vendor == "openmpi" and os.geteuid() == 0 else []
        return [found.path, *root, "-n", "1"]
    return launch_argv(["true"], launcher="mpiexec", ranks=ranks, mpiexec=found, root_user=os.geteuid() == 0)[:-1]


def run_on_ranks(
    program: str, *, ranks: int = 2, given: object = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a Python program on ranks with a time limit.

    Args:
        program: Source text; its arguments are the path of a file with `given`, pickled, and the number of ranks.
        ranks: Number of ranks.
        given: Input of the program.
        folder: Folder of that file; None without input.
    """
    command = [*launch_arguments(ranks), sys.executable, "-c", WITHOUT_FINAL_COLLECTION + program]
    if folder is not None:
        (folder / "given.pickle").write_bytes(pickle.dumps(given))
        command += [str(folder / "given.pickle"), str(ranks)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


needs_kernels = pytest.mark.skipif(native.library() is None, reason=f"no C kernels: {native.load_library().reason}")
needs_launcher = pytest.mark.skipif(launcher() is None, reason="no MPI launcher: install an MPI, or set DITHC_MPIEXEC")
