"""Tests of the launch command for every launcher; signals, statuses and a dead driver reach the command."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dithc.core.logging import UserError
from dithc.engine.comm.environment import HYDRA_PROXY, STARTED_VARIABLE
from dithc.engine.comm.launch import exit_report, supervisor
from dithc.engine.comm.launch.launch_command import (
    MpiLauncher,
    environment_of,
    find_mpiexec,
    launch_argv,
    resolve_bootstrap,
)
from dithc.engine.comm.launch.supervisor import carried_signal, supervise

COMMAND, MPICH = ["python", "train.py"], MpiLauncher("/opt/mpiexec", "mpich")
LIMIT_SECONDS = 600
# Stops on SIGTERM like a trainer: logs it and exits with "saved, run again". Writes a file when ready.
STOPPABLE = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
name = os.environ.get("PMI_RANK", "0")
def stop(number, frame):
    (folder / f"stopped-{name}").write_text(signal.Signals(number).name)
    os._exit(75)
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, stop)
(folder / f"ready-{name}").write_text(str(os.getpid()))
time.sleep(3600)
"""
STUBBORN = STOPPABLE.replace("os._exit(75)", "pass").replace(
    "time.sleep(3600)", "\nfor _ in range(36000): time.sleep(0.1)"
)


@pytest.fixture(autouse=True)
def _polls(monkeypatch):
    monkeypatch.setattr(supervisor, "POLL_SECONDS", 0.05)


def wait_for(condition, event):
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end, f"waited {LIMIT_SECONDS} s for {event}"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def start_launch(*arguments: str, **environment: str) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-m", "dithc", "launch", *arguments]
    return subprocess.Popen(argv, env={**os.environ, **environment}, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("settings", "argv"),
    [
        ({"launcher": "none"}, []),
        ({"launcher": "mpiexec", "cpus": 8}, []),
        ({"launcher": "srun", "cpus": 8}, []),
        (
            {"launcher": "srun", "nodes": 2, "ranks": 4, "cpus": 8},
            ["srun --mpi=pmix -N 2 -n 4 -c 8 --ntasks-per-node=2 --kill-on-bad-exit=1 --wait=60"],
        ),
        ({"launcher": "mpiexec", "ranks": 2, "mpiexec": MPICH}, ["/opt/mpiexec -n 2"]),
        ({"launcher": "mpiexec", "nodes": 2, "ranks": 4, "mpiexec": MPICH}, ["/opt/mpiexec -ppn 2 -n 4"]),
        (
            {"launcher": "mpiexec", "ranks": 2, "mpiexec": MpiLauncher("/opt/mpiexec", "openmpi"), "root_user": True},
            [
                "/opt/mpiexec --allow-run-as-root --bind-to none --map-by :OVERSUBSCRIBE",
                "-x OMP_NUM_THREADS -x DITHC_EXPECTED_RANKS -n 2",
            ],
        ),
    ],
)
def test_launch_argv_matches_launcher_and_is_empty_for_one_rank(settings, argv):
    assert " ".join(launch_argv(COMMAND, **settings)) == " ".join([*argv, *COMMAND])


@pytest.mark.parametrize(
    ("command", "settings", "message"),
    [
        (COMMAND, {"launcher": "none", "ranks": 2}, "use --launcher mpiexec"),
        (COMMAND, {"launcher": "srun", "ranks": 1, "nodes": 2}, "at least 1 rank per node"),
        (COMMAND, {"launcher": "srun", "ranks": 2, "cpus": 0}, "1 or more"),
        ([], {"launcher": "none"}, "after `--`"),
    ],
)
def test_impossible_size_and_empty_command_are_rejected(command, settings, message):
    with pytest.raises(UserError, match=message):
        launch_argv(command, **settings)


def test_mpiexec_next_to_python_is_preferred_and_missing_mpiexec_raises(monkeypatch, tmp_path):
    monkeypatch.delenv("DITHC_MPIEXEC", raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    for explicit, message in {None: "install an MPI", "mpiexec": "absolute", "/nowhere/mpiexec": "absolute"}.items():
        with pytest.raises(UserError, match=message):
            find_mpiexec(explicit)
    local = tmp_path / "mpiexec"
    local.write_text("#!/bin/sh\necho 'mpiexec (Open MPI) 5.0.0'\n")
    local.chmod(0o755)
    assert find_mpiexec() == MpiLauncher(str(local), "openmpi")


@pytest.mark.parametrize(("end", "status"), [("exit 0", 0), ("exit 75", 75), ("kill -9 $$", 128 + 9)])
def test_exit_status_of_the_command_is_preserved(end, status):
    assert supervise(["sh", "-c", end], environment=os.environ) == status


def test_mpich_on_slurm_uses_hydra_launcher_and_cleaned_environment():
    settings = {"nodes": 2, "ranks": 4, "cpus": 8, "srun_mpi": "hydra", "hosts": ["n1", "n2", "n3"]}
    argv = launch_argv(COMMAND, launcher="srun", mpiexec=MPICH, **settings)
    assert " ".join(argv) == "/opt/mpiexec -launcher slurm -hosts n1,n2 -ppn 2 -n 4 python train.py"
    job = {"SLURM_TRES_PER_TASK": "cpu=8", "SLURM_CPUS_PER_TASK": "8", "SLURM_STEP_ID": "0", "HOME": "/h"}
    environment = environment_of(job, launcher="mpiexec", nodes=1, hydra=True)
    assert environment["SLURM_OVERLAP"] == "1", "a step inside a step waits for the outer one"
    assert (environment["SLURM_CPU_BIND"], environment["HOME"]) == ("none", "/h")
    assert not environment.keys() & {"SLURM_TRES_PER_TASK", "SLURM_CPUS_PER_TASK"}, "they describe ranks, not nodes"


@pytest.mark.parametrize(
    ("version", "through"), [("HYDRA build details", "hydra"), ("mpiexec (Open MPI) 5.0.0", "pmix"), (None, "pmix")]
)
def test_slurm_ranks_connect_through_the_installed_mpi(monkeypatch, tmp_path, version, through):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.delenv("DITHC_MPIEXEC", raising=False)
    if version:
        (tmp_path / "mpiexec").write_text(f"#!/bin/sh\necho '{version}'\n")
        (tmp_path / "mpiexec").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path) if version is None else os.environ["PATH"])
    assert resolve_bootstrap("auto")[0] == through
    assert resolve_bootstrap("pmi2") == ("pmi2", None)


@pytest.mark.mpi
def test_ranks_start_on_one_node_of_a_slurm_job_without_srun(tmp_path):
    job = {"SLURM_JOB_ID": "7", "SLURM_NODELIST": "n1", "SLURM_TASKS_PER_NODE": "2", "PMI_RANK": "9"}
    argv = launch_argv([sys.executable, "-c", "print('here')"], launcher="mpiexec", ranks=2, mpiexec=find_mpiexec())
    environment = environment_of({**os.environ, **job, "PATH": ""}, launcher="mpiexec", nodes=1, hydra=False)
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.count("here")) == (0, 2), done.stderr


@pytest.mark.parametrize("is_watched", [True, False])
def test_mpiexec_without_child_processes_is_terminated(monkeypatch, tmp_path, caplog, is_watched):
    monkeypatch.setattr(supervisor, "NO_CHILDREN_SECONDS", 0.1)
    monkeypatch.setattr(supervisor, "STARTS", 2)
    argv, folder = ["sh", "-c", f"echo x >> {tmp_path}/started; exec sleep 600"], tmp_path if is_watched else None
    status = supervise(argv, environment=os.environ, launcher="mpiexec", vendor="mpich", rendezvous_folder=folder)
    assert status == 128 + signal.SIGTERM
    assert "no child process" in caplog.text
    assert (tmp_path / "started").read_text() == "x\n" * (2 if is_watched else 1), "it is started again, for so often"


def test_launcher_receives_a_signal_forwarded_to_ranks():
    assert carried_signal(signal.SIGTERM, launcher="mpiexec", vendor="openmpi") == signal.SIGUSR1
    assert carried_signal(signal.SIGINT, launcher="srun", vendor="other") == signal.SIGUSR1
    assert carried_signal(signal.SIGTERM, launcher="srun", vendor="other") == signal.SIGUSR1
    assert carried_signal(signal.SIGTERM, launcher="mpiexec", vendor="mpich") == signal.SIGTERM
    assert carried_signal(signal.SIGINT, launcher="none", vendor="other") == signal.SIGINT


def test_next_launch_removes_files_of_a_killed_launch(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    host = socket.gethostname()
    stale = [
        tmp_path / f".dithc-rendezvous-{host}-{gone.pid}{ending}" for ending in ("", ".lost", ".17", ".17.logged-ab")
    ]
    stale.append(tmp_path / f".dithc-rendezvous-{host}-{os.getpid()}.17.logged-ab")  # of an earlier process
    others = [tmp_path / f".dithc-rendezvous-{host}-{os.getppid()}", tmp_path / f".dithc-rendezvous-another-{gone.pid}"]
    for path in (*stale, *others):
        path.touch()
    assert supervise(["true"], environment=os.environ, rendezvous_folder=tmp_path) == 0
    assert sorted(tmp_path.iterdir()) == sorted(others)


@pytest.mark.parametrize(("status", "starts"), [(2, 1), (130, 2)])
def test_launch_ends_with_the_status_of_a_rank_lost_at_the_start(monkeypatch, tmp_path, status, starts):
    monkeypatch.setattr(supervisor, "LOST_SECONDS", 0.2)
    monkeypatch.setattr(supervisor, "STARTS", 2)
    code = (
        "import os, pathlib, time; lost = pathlib.Path(os.environ['DITHC_STARTUP_FILE'] + '.lost')\n"
        f"print('x', flush=True); part = lost.with_suffix('.part')\n"
        f"part.write_text('rank 0 ended with status {status}\\n{status}'); part.rename(lost); time.sleep(120)"
    )
    argv = ["/bin/sh", "-c", f'"{sys.executable}" -c "{code}" >> {tmp_path}/started']
    assert supervise(argv, environment=os.environ, rendezvous_folder=tmp_path) == status
    assert (tmp_path / "started").read_text() == "x\n" * starts


@pytest.mark.parametrize(("min_seconds", "starts"), [(60.0, 3), (0.0, 1)])
def test_early_launcher_exit_with_status_2_is_retried(monkeypatch, tmp_path, min_seconds, starts):
    monkeypatch.setattr(supervisor.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(supervisor, "MIN_START_SECONDS", min_seconds)
    argv = ["bash", "-c", f"echo x >> {tmp_path}/starts; exit 2"]
    assert supervise(argv, environment=os.environ, launcher="mpiexec", vendor="mpich", rendezvous_folder=tmp_path) == 2
    assert len((tmp_path / "starts").read_text().split()) == starts


def test_lost_rank_is_detected_before_all_ranks_are_connected(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(supervisor, "LOST_SECONDS", 0.2)
    monkeypatch.setattr(supervisor, "STARTS", 1)
    proxy = tmp_path / HYDRA_PROXY
    shutil.copy(shutil.which("sh"), proxy)
    ranks = f"import subprocess; subprocess.run(['{proxy}', '-c', 'PMI_RANK=0 sleep 3 & PMI_RANK=1 sleep 120; wait'])"
    argv = [sys.executable, "-c", ranks]
    supervise(argv, environment=os.environ, launcher="mpiexec", vendor="mpich", rendezvous_folder=tmp_path)
    assert "a rank ended before the ranks were connected: ending them" in caplog.text


def test_missing_program_raises_user_error():
    with pytest.raises(UserError, match="/nowhere/program"):
        supervise(["/nowhere/program"], environment=os.environ)


def test_stop_signal_reaches_the_command_and_exit_status_is_returned(tmp_path):
    launch = start_launch("--", sys.executable, "-c", STOPPABLE, str(tmp_path))
    wait_for((tmp_path / "ready-0").exists, "the command")
    launch.send_signal(signal.SIGTERM)
    assert launch.wait(LIMIT_SECONDS) == 75
    assert (tmp_path / "stopped-0").read_text() == "SIGTERM"


def test_driver_on_another_host_is_not_monitored():
    environment = {**os.environ, "DITHC_DRIVER_PID": "999999999", "DITHC_DRIVER_HOST": "another"}
    argv = [sys.executable, "-c", "import time; time.sleep(0.3)"]
    assert supervise(argv, environment=environment) == 0


@pytest.mark.slow
def test_command_stops_when_the_launch_process_is_killed(tmp_path):
    launch = start_launch("--", sys.executable, "-c", STOPPABLE, str(tmp_path))
    wait_for((tmp_path / "ready-0").exists, "the command")
    launch.kill()
    launch.wait()
    wait_for((tmp_path / "stopped-0").exists, "the command to stop")


@pytest.mark.mpi
@pytest.mark.parametrize("stubborn", [False, True])
def test_every_rank_stops_when_the_driver_is_killed(tmp_path, stubborn):
    try:
        find_mpiexec()
    except UserError as error:
        pytest.skip(str(error))
    driver = subprocess.Popen(["sleep", "300"])
    program = STUBBORN if stubborn else STOPPABLE
    arguments = ["--launcher", "mpiexec", "--ranks", "2", "--grace-seconds", "2" if stubborn else "60"]
    variables = {"DITHC_DRIVER_PID": str(driver.pid), "DITHC_DRIVER_HOST": socket.gethostname()}
    launch = start_launch(*arguments, "--", sys.executable, "-c", program, str(tmp_path), **variables)
    ready = [tmp_path / "ready-0", tmp_path / "ready-1"]
    wait_for(lambda: all(path.exists() and path.read_text() for path in ready), "both ranks")
    driver.kill()
    assert launch.wait(LIMIT_SECONDS) == (128 + signal.SIGKILL if stubborn else 75)
    assert all((tmp_path / f"stopped-{rank}").exists() for rank in range(2))
    wait_for(lambda: not any(is_alive(int(path.read_text())) for path in ready), "the ranks to end")
    assert driver.wait() == -signal.SIGKILL  # until here it was a zombie: dead, but not reaped


def test_equal_errors_are_logged_once_and_leave_no_files(tmp_path, capfd):
    program = "import sys; from dithc.engine.comm.launch import exit_report; print(exit_report.deduplicated_message(sys.argv[1]))"
    argv = ["sh", "-c", f'for said in same same other; do "{sys.executable}" -c "{program}" $said; done; exit 2']
    environment = os.environ | {"PMI_RANK": "1"}
    assert supervise(argv, environment=environment, rendezvous_folder=tmp_path) == 2
    assert capfd.readouterr().out.split("\n") == ["same", "rank 1: the same error", "other", ""]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["", "/no folder/met"])
def test_errors_are_logged_in_full_without_a_marker(monkeypatch, place):
    monkeypatch.setenv(STARTED_VARIABLE, place)
    assert [exit_report.deduplicated_message("x"), exit_report.deduplicated_message("x")] == ["x", "x"]
