"""Several ranks in a test: started by the launcher that `dithc launch` takes, whichever MPI that belongs to."""

import os
from pathlib import Path

import pytest

from dithc.comm.launch import MpiExec, find_mpiexec, launch_line
from dithc.log import UserError


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


needs_launcher = pytest.mark.skipif(launcher() is None, reason="no MPI launcher: install an MPI, or set DITHC_MPIEXEC")
