"""Tests of launcher detection and threads: a process is a rank only while served; ranks start in a clean environment."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dithc.core.logging import UserError
from dithc.engine.comm import connect_ranks, group
from dithc.engine.comm.environment import for_ranks, left_over, started_by
from dithc.engine.comm.launch import shm_cleanup
from dithc.engine.comm.launch.launch_command import environment_of
from dithc.engine.comm.session import _num_threads
from dithc.engine.doctor import mpi_slurm as doctor
from dithc.engine.hardware import RankPlan
from dithc.engine.hardware.machine import Core

LEFT_OVER = {
    "PMIX_RANK": "0",
    "PMIX_NAMESPACE": "slurm.pmix.77.0",
    "PMIX_SERVER_URI2": "pmix-server.1;tcp4://127.0.0.1:1",
    "PMIX_SERVER_URI41": "pmix-server.1;tcp4://127.0.0.1:1",
    "PMI_RANK": "3",
    "PMI_SIZE": "4",
    "PMI_FD": "987",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "1",
    "MPI_LOCALNRANKS": "4",
    "MPIR_CVAR_PMI_VERSION": "pmix",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_MPI_TYPE": "pmix",
}
JOB = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n1", "HYDRA_HOST_FILE": "/hosts", "HOME": "/h"}
SETTINGS = {"OMPI_MCA_btl": "self", "PMIX_MCA_gds": "hash", "MPI4PY_LIBMPI": "/lib/libmpi.so"}


@pytest.fixture
def port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield str(server.getsockname()[1])


@settings(max_examples=30, deadline=None)
@given(names=st.sets(st.sampled_from(sorted(LEFT_OVER))))
def test_stale_launcher_variables_are_ignored_and_removed_for_ranks(names: set[str]) -> None:
    environment = {name: LEFT_OVER[name] for name in names} | JOB | SETTINGS
    assert started_by(environment) is None
    for on_this_node in (True, False):
        cleaned = for_ranks(environment, on_this_node=on_this_node)
        assert not left_over(cleaned)
        assert cleaned["SLURM_JOB_ID"] == "77"
        assert SETTINGS.items() <= cleaned.items()
        kept = ("SLURM_PROCID" in cleaned, "HYDRA_HOST_FILE" in cleaned)
        assert kept == (not on_this_node and "SLURM_PROCID" in names, not on_this_node)


def test_single_process_in_srun_shell_is_one_rank_without_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LEFT_OVER.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(group, "start_watchdog", lambda: pytest.fail("one process starts no MPI"))
    with connect_ranks() as alone:
        assert alone.size == 1
    with pytest.raises(UserError, match="no launcher"):
        connect_ranks(2)


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"PMIX_RANK": "0", "PMIX_SERVER_URI2": "pmix-server.1"}, id="PMIx without an address"),
        pytest.param({"PMIX_RANK": "0", "PMIX_SERVER_URI": "s:1:/tmp/no-such-socket"}, id="PMIx 1, server gone"),
        pytest.param({"PMI_RANK": "3", "PMI_SIZE": "8", "PMIX_RANK": "2", "PMIX_NAMESPACE": "x"}, id="no connection"),
        pytest.param({"PMI_RANK": "0", "PMI_ID": "0", "PMI_PORT": "node1:1"}, id="port that is closed"),
    ],
)
def test_launcher_variables_without_live_connection_are_ignored(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert started_by(os.environ) is None
    monkeypatch.setattr(doctor.launch_command, "probe_mpi", lambda: {"error": "not probed"})
    levels = [finding.level for finding in doctor.mpi(None, Path())]  # type: ignore[arg-type]
    assert levels[-1] == "ok"
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "8")
    monkeypatch.setenv("PMI_CONTROL_PORT", "1")
    monkeypatch.delenv("PMI_PORT", raising=False)
    assert [finding.level for finding in doctor.mpi(None, Path())] == ["warning"]  # type: ignore[arg-type]


def test_ranks_without_pmi_fd_are_detected_by_port_or_launcher(port: str, tmp_path: Path) -> None:
    several = {"PMI_RANK": "0", "PMI_SIZE": "2"}
    assert started_by({"PMI_ID": "0", "PMI_PORT": f"node1:{port}"}) is not None
    assert started_by(several) is None
    assert started_by(several | {"PALS_RANKID": "0"}) is not None
    proxy = tmp_path / "hydra_pmi_proxy"
    proxy.symlink_to("/bin/sh")
    program = f"from dithc.engine.comm.environment import started_by; print(started_by({several}) is not None)"
    line = [str(proxy), "-c", f'{sys.executable} -c "{program}"; true']
    done = subprocess.run(line, capture_output=True, text=True, cwd=Path(__file__).parents[3], check=True)
    assert done.stdout == "True\n"


def test_process_with_live_launcher_connection_is_a_rank(port: str) -> None:
    address = {"PMIX_SERVER_URI41": f"pmix-server.1;tcp4://127.0.0.1:{port}"}
    found = started_by({"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "3", **address})
    assert found.size == 3
    one, other = socket.socketpair()
    with one, other:
        assert started_by({"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": str(one.fileno())}) is not None
    assert started_by({"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": "987"}) is None
    step = started_by({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "3"})
    assert step.size == 3
    assert started_by({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None, "a batch script of many tasks is one process"


def test_multi_node_launch_requires_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="no srun on PATH"):
        environment_of(JOB, launcher="mpiexec", nodes=2, hydra=False)


def test_thread_and_forked_child_are_rejected_as_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "start_watchdog", lambda: pytest.fail("MPI serves neither"))
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PALS_RANKID", "0")
    errors: list[str] = []

    def join() -> None:
        try:
            connect_ranks()
        except UserError as error:
            errors.append(str(error))

    thread = threading.Thread(target=join)
    thread.start()
    thread.join()
    monkeypatch.setattr(group, "_process", os.getppid())
    join()
    assert ["a thread" in errors[0], "a forked child" in errors[1]] == [True, True]


@pytest.mark.parametrize(
    ("size", "free", "rank", "is_enough"),
    [
        pytest.param(2 << 20, 2 << 20, None, False, id="2 MiB in all"),
        pytest.param(64 << 20, 1 << 20, None, False, id="nearly full"),
        pytest.param(0, 0, None, False, id="missing"),
        pytest.param(64 << 20, 60 << 20, None, True, id="as containers have"),
        pytest.param(64 << 20, 1 << 20, "0", False, id="nearly full, first rank"),
        pytest.param(64 << 20, 1 << 20, "1", True, id="taken by the first rank"),
        pytest.param(2 << 20, 2 << 20, "1", False, id="2 MiB in all, second rank"),
    ],
)
def test_ranks_without_sufficient_shared_memory_are_rejected(
    monkeypatch: pytest.MonkeyPatch, size: int, free: int, rank: str | None, is_enough: bool
) -> None:
    monkeypatch.setattr(shm_cleanup, "size_and_free", lambda: (size, free))
    if rank is not None:
        for name, value in (("PMI_RANK", rank), ("MPI_LOCALRANKID", rank), ("MPI_LOCALNRANKS", "2")):
            monkeypatch.setenv(name, value)
    ranks = 2 if rank is None else None
    if is_enough:
        return shm_cleanup.check_shared_memory(ranks)
    with pytest.raises(UserError, match=r"/dev/shm is too small for 2 rank\(s\)[\s\S]*--shm-size"):
        shm_cleanup.check_shared_memory(ranks)
    return None


FOUR_CORES_OF_TWO = SimpleNamespace(
    cores=[Core(index=i, cpus=(i, i + 4), cluster=0, die=0, socket=0, node=0) for i in range(4)]
)


@pytest.mark.parametrize(
    ("requested", "launched", "threads"),
    [
        pytest.param(4, True, 2, id="all CPUs that a scheduler gave"),
        pytest.param(2, True, 2, id="as many as cores"),
        pytest.param(1, True, 1, id="fewer"),
        pytest.param(6, True, 6, id="more than CPUs"),
        pytest.param(4, False, 4, id="by hand"),
    ],
)
def test_num_threads_equals_cores_if_scheduler_counts_hardware_threads(
    requested: int, launched: bool, threads: int
) -> None:
    plan = RankPlan(rank=0, cores=(0, 1), cpus=(0, 4, 1, 5), compute=(0, 1), reserved=(), num_threads=2, pin=True)
    assert _num_threads(requested, plan, FOUR_CORES_OF_TWO, launched=launched) == threads  # type: ignore[arg-type]
