"""Tests of groups at 1, 2 and 4 ranks: agreement, exchange, failed starts, and joint termination."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from dithc.core.logging import UserError
from dithc.engine.comm import Group, connect_ranks
from dithc.engine.comm.launch.launch_command import find_mpiexec, launch_argv

PROGRAM = Path(__file__).parent / "rank_program.py"
LIMIT_SECONDS = 600
LAUNCHER_VARIABLES = ("PMI_", "PMIX_", "OMPI_", "SLURM_", "DITHC_")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in list(os.environ):
        if name.startswith(LAUNCHER_VARIABLES):
            monkeypatch.delenv(name)


def run_ranks(ranks: int, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return run_program(PROGRAM.name, ranks, *arguments, **environment)


def run_program(program: str, ranks: int, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a program of this folder on several ranks."""
    return run_line(ranks, str(PROGRAM.parent / program), *arguments, **environment)


def run_line(ranks: int, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run Python with these arguments on several ranks."""
    try:
        mpiexec = find_mpiexec()
    except UserError as error:
        pytest.skip(str(error))
    argv = launch_argv(
        [sys.executable, *arguments], launcher="mpiexec", ranks=ranks, mpiexec=mpiexec, root_user=os.geteuid() == 0
    )
    return subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def done_lines(ranks: int) -> list[str]:
    return [f"rank {rank} of {ranks} is done" for rank in range(ranks)]


def test_single_rank_group_works_without_mpi(monkeypatch):
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)  # an earlier test of this process may have used it
    with connect_ranks(1) as group:
        assert (group.rank, group.size, group.local_rank, group.local_size) == (0, 1, 0, 1)
        group.barrier()
        assert group.any(True)
        assert not group.any(False)
        assert group.broadcast_object("x") == "x"
        assert group.gather_objects("x") == ["x"]
        values = torch.arange(3.0)
        assert torch.equal(group.all_reduce_(values, op="mean"), torch.arange(3.0))
    assert not torch.distributed.is_initialized()
    assert "mpi4py.MPI" not in sys.modules
    with pytest.raises(RuntimeError, match="as it is"), connect_ranks(1):
        raise RuntimeError("as it is")


def test_multiple_expected_ranks_without_launcher_raise_user_error(monkeypatch):
    with pytest.raises(UserError, match="no launcher started this process"):
        connect_ranks(2)
    monkeypatch.setenv("DITHC_EXPECTED_RANKS", "4")
    with pytest.raises(UserError, match="expected: 4"):
        connect_ranks()


@pytest.mark.sampled("collectives")
@pytest.mark.mpi
@pytest.mark.parametrize(("scene", "ranks"), [("exchange", 1), ("exchange", 2), ("exchange", 4), ("again", 2)])
def test_ranks_exchange_data_and_reconnect(scene, ranks):
    done = run_ranks(ranks, scene, str(ranks))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == done_lines(ranks)


@pytest.mark.mpi
def test_ended_rank_is_reported_to_a_reconnecting_rank():
    started = time.monotonic()
    done = run_ranks(2, "ended", "2")
    assert done.returncode == 2, done.stderr
    assert "the program of rank 1 has ended" in done.stderr
    assert time.monotonic() - started < 60


def test_closed_group_raises_user_error_on_use():
    group = Group(rank=1, size=2)
    for call in (group.barrier, lambda: group.any(False), lambda: group.gather_objects(0), Group.distributed):
        with pytest.raises(UserError, match="after the end of its"):
            call()


@pytest.mark.mpi
def test_unexpected_number_of_ranks_is_reported_once():
    done = run_ranks(2, "exchange", "3")
    assert done.returncode != 0
    assert done.stderr.count("expected: 3") == 1
    assert "is done" not in done.stdout


@pytest.mark.mpi
def test_launcher_of_incompatible_mpi_is_reported_as_cause():
    """Ranks that another vendor's mpiexec starts see no PMI variables of ours: each is a world of one rank."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_VARIABLES)}
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"prterun.0;tcp4://127.0.0.1:{server.getsockname()[1]}"
        launcher = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "PMIX_SERVER_URI2": address}
        done = subprocess.run(
            [sys.executable, str(PROGRAM), "exchange", "2"],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            env={**environment, **launcher},
        )
    assert done.returncode != 0
    assert '("0 of 1")' in done.stderr
    assert "mpiexec next to this Python" in done.stderr


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("scene", "message"),
    [("fail", "a rank fails on purpose"), ("fail-early", "a rank fails while it connects"), ("die", "")],
)
def test_failing_rank_terminates_all_ranks(scene, message):
    start = time.monotonic()
    done = run_ranks(2, scene, "2")
    assert done.returncode != 0
    assert time.monotonic() - start < 300
    assert message in done.stderr
    assert "is done" not in done.stdout
    assert scene != "fail" or "r1 | " in done.stderr


@pytest.mark.sampled("collectives")
@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 4])
def test_killed_rank_is_reported_by_watchdog_and_all_ranks(ranks):
    started = time.monotonic()
    done = run_ranks(ranks, "killed", str(ranks))
    assert done.returncode != 0
    assert time.monotonic() - started < 300
    assert f"rank {ranks - 1} " in done.stderr
    assert "was ended by SIGKILL" in done.stderr
    assert f"rank {ranks - 1} of {ranks} (process" in done.stderr
    assert "is done" not in done.stdout


@pytest.mark.slow
@pytest.mark.sampled("ranks that are stopped")
@pytest.mark.mpi
@pytest.mark.parametrize("scene", ["after-mpi", "at-parts"])
def test_rank_stopped_during_rendezvous_terminates_all_ranks(scene, tmp_path):
    """The creation of a group waits for the stopped rank without limit."""
    start = time.monotonic()
    done = launch_ranks(f"stopped-{scene}", folder=tmp_path)
    assert done.returncode != 0
    assert time.monotonic() - start < 120  # allows for a busy machine
    assert "rank 1 (process" in done.stderr
    assert "was stopped by a signal for" in done.stderr
    assert "is done" not in done.stdout


@pytest.mark.slow
@pytest.mark.sampled("ranks that are stopped")
@pytest.mark.mpi
@pytest.mark.parametrize(
    ("scene", "message"),
    [("stopped-before-mpi", "starting them again"), ("paused", "has been stopped by a signal for 5 s")],
)
def test_rank_stopped_before_mpi_start_is_restarted_or_resumed(scene, message, tmp_path):
    """MPI's own start waits for it without limit, so all ranks are restarted."""
    done = launch_ranks(scene, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert message in done.stderr
    assert ("starting them again" in done.stderr) == (scene != "paused")
    assert done.stdout.count("is done") == 2


def launch_ranks(scene: str, *, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run two ranks by `dithc launch`, with a command that is called like dithc's commands."""
    command = folder / "dithc"
    command.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{PROGRAM}' {scene} 2\n")
    command.chmod(0o755)
    arguments = [sys.executable, "-m", "dithc", "launch", "--ranks", "2", "--", str(command)]
    return subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)


@pytest.mark.mpi
def test_exit_status_75_of_all_ranks_reaches_the_launcher():
    assert run_ranks(2, "leave", "2").returncode == 75
