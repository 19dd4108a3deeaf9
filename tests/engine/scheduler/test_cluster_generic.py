"""Tests of the generic executor, on a stubbed PBS that runs each job to its end during submission."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dithc.core.logging import UserError
from dithc.engine.scheduler import cluster_generic, deadline, get_queue, queues, status_query
from dithc.engine.scheduler.cluster_generic import LOST_SECONDS, cancel, job_outcome, status, submit
from dithc.engine.scheduler.job_records import load
from dithc.engine.scheduler.queue import SchedulerJob

PROPERTIES = {
    "type": "single",
    "rule": "pretrain",
    "wildcards": {"run": "a", "step": "0000020"},
    "threads": 4,
    "resources": {"mem_mb": 2000, "runtime": 30, "nodes": 2, "tasks": 4, "cpus_per_task": 2},
}
QSUB = """#!/bin/bash
for script; do :; done
[ ! -e "$PBS_FOLDER/full" ] || { echo "qsub: would exceed queue's job limit" >&2; exit 38; }
n=$(( $(cat "$PBS_FOLDER/last" 2>/dev/null || echo 0) + 1 )); echo $n > "$PBS_FOLDER/last"
echo "$@" > "$PBS_FOLDER/$n.words"
if [ -e "$PBS_FOLDER/loses" ]; then code=-3; else env -i PATH="$PATH" PBS_FOLDER="$PBS_FOLDER" "$script"; code=$?; fi
echo $code > "$PBS_FOLDER/$n.code"
echo $n.pbs01
"""
QSTAT = """#!/bin/bash
[ ! -e "$PBS_FOLDER/down" ] || { echo "qstat: cannot connect to server pbs01 (errno=111)" >&2; exit 111; }
echo '{"Jobs": {'; comma=
for id; do
  case $id in -*|json) continue;; esac
  code="$PBS_FOLDER/${id%%.*}.code"
  [ -e "$code" ] || { echo "qstat: Unknown Job Id $id" >&2; rc=153; continue; }
  echo "$comma\\"$id\\": {\\"job_state\\": \\"F\\", \\"Exit_status\\": $(cat $code)}"; comma=,
done
echo '}}'; exit ${rc:-0}
"""


@pytest.fixture
def pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a stubbed PBS, with arguments and exit code of each job.

    Marker files: `full` rejects jobs, `down` does not reply, `loses` loses jobs.
    """
    folder = tmp_path / "pbs"
    folder.mkdir()
    for name, text in {
        "qsub": QSUB,
        "qstat": QSTAT,
        "qdel": '#!/bin/bash\necho "$@" > "$PBS_FOLDER/deleted"\n',
    }.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("PBS_FOLDER", str(folder))
    monkeypatch.setattr(status_query, "FRESH_SECONDS", 0.0)
    monkeypatch.chdir(tmp_path)
    return folder


def submit_script(folder: Path, command: str, **properties: object) -> str:
    script = folder / "job script.sh"
    script.write_text(f"#!/bin/sh\n# properties = {json.dumps(PROPERTIES | properties)}\n{command}\n")
    return submit(["pbs", "-q", "large", str(script)], folder=folder)


def test_successful_job_is_submitted_with_dithc_settings(
    pbs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DITHC_MPIEXEC", "/opt/my mpi/mpiexec")
    monkeypatch.setenv("DITHC_DRIVER_PID", "1")
    settings = 'echo "$DITHC_MPIEXEC|${DITHC_DRIVER_PID:-none}|$(( DITHC_DEADLINE - $(date +%s) > 1700 ))"'
    number = submit_script(tmp_path, f"{settings}; pwd")
    assert status(number, folder=tmp_path) == "success"
    arguments = (pbs / "1.words").read_text()
    assert "select=2:ncpus=4:mpiprocs=2:ompthreads=2:mem=2000mb" in arguments
    assert "-q large" in arguments
    queue = get_queue("generic")
    (job,) = queue.jobs(tmp_path)
    assert (job.id, job.state, job.status, job.title) == (number, "COMPLETED", 0, "pretrain run=a step=0000020")
    log = queue.log(tmp_path, job)
    assert log is not None
    assert log.read_text().splitlines()[1:] == ["/opt/my mpi/mpiexec|none|1", str(tmp_path)]


@pytest.mark.parametrize("code", [1, 2, 76, 137])
def test_failed_job_is_not_resubmitted(pbs: Path, tmp_path: Path, code: int) -> None:
    number = submit_script(tmp_path, f"exit {code}")
    assert [status(number, folder=tmp_path) for _ in range(2)] == ["failed", "failed"]
    assert (pbs / "last").read_text() == "1\n"
    (job,) = get_queue("generic").ended([number])
    assert (job.state, job.status) == ("FAILED", code)


def test_canceled_job_is_not_resubmitted_despite_requeue_mark(pbs: Path, tmp_path: Path) -> None:
    number = submit_script(tmp_path, "touch $DITHC_REQUEUE_FILE; exit 1")
    cancel([number], folder=tmp_path)
    assert status(number, folder=tmp_path) == "failed"
    deadline = time.monotonic() + 10
    while not (pbs / "deleted").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert (pbs / "last").read_text() == "1\n"


def test_job_of_a_lost_node_is_resubmitted(pbs: Path, tmp_path: Path) -> None:
    (pbs / "loses").touch()
    number = submit_script(tmp_path, "true")
    (pbs / "loses").unlink()
    assert [status(number, folder=tmp_path) for _ in range(2)] == ["running", "success"]


@pytest.mark.parametrize(("reached", "last"), [("touch", "failed"), ('cat "$PBS_FOLDER/last" >', "running")])
def test_only_jobs_without_progress_fail_at_the_retry_limit(
    pbs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: str, last: str
) -> None:
    monkeypatch.setattr(cluster_generic, "MAX_FRUITLESS", 3)
    number = submit_script(tmp_path, f"{reached} $DITHC_REQUEUE_FILE; exit 1")
    assert [status(number, folder=tmp_path) for _ in range(4)] == ["running"] * 3 + [last]


def test_rejected_resubmission_is_retried_later(pbs: Path, tmp_path: Path) -> None:
    number = submit_script(tmp_path, '[ "$(cat "$PBS_FOLDER/last")" = 2 ] || { touch $DITHC_REQUEUE_FILE; exit 1; }')
    (pbs / "full").touch()
    assert [status(number, folder=tmp_path) for _ in range(3)] == ["running"] * 3
    assert (pbs / "last").read_text() == "1\n"
    (pbs / "full").unlink()
    assert [status(number, folder=tmp_path) for _ in range(2)] == ["running", "success"]
    record = load(tmp_path, number)
    assert record is not None
    assert (record.current, number) == ("2.pbs01", "1.pbs01")


def test_unreachable_batch_system_keeps_the_job_running(pbs: Path, tmp_path: Path) -> None:
    number = submit_script(tmp_path, "exit 2")
    (pbs / "down").touch()
    assert status(number, folder=tmp_path) == "running"
    (pbs / "down").unlink()
    assert status(number, folder=tmp_path) == "failed"


def test_unknown_job_is_resubmitted_after_a_timeout(pbs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pbs / "loses").touch()
    number = submit_script(tmp_path, "true")
    (pbs / "loses").unlink()
    (pbs / "1.code").unlink()
    assert status(number, folder=tmp_path) == "running"
    start = time.time()
    monkeypatch.setattr(cluster_generic, "now", lambda: start + LOST_SECONDS + 1)
    assert [status(number, folder=tmp_path) for _ in range(2)] == ["running", "success"]


@pytest.mark.parametrize(
    ("exit_status", "again", "state", "code", "verdict"),
    [
        (0, False, "COMPLETING", None, "success"),
        (None, False, "PENDING", None, "running"),
        (None, False, "RUNNING", None, "running"),
        (75, True, "COMPLETING", None, "running"),
        (75, True, "FAILED", 75, "again"),
        (None, True, "TIMEOUT", None, "again"),
        (None, False, "TIMEOUT", None, "failed"),
        (None, False, "OUT_OF_MEMORY", None, "failed"),
        (1, False, "PREEMPTED", None, "again"),
        (1, False, "REQUEUED", None, "running"),
        (75, True, "CANCELLED", None, "failed"),
        (None, False, "NODE_FAIL", None, "again"),
        (None, False, "COMPLETED", 0, "success"),
        (1, False, "FAILED", 1, "failed"),
    ],
)
def test_job_outcome_follows_from_exit_status_mark_and_state(
    exit_status: int | None, again: bool, state: str, code: int | None, verdict: str
) -> None:
    assert job_outcome(status=exit_status, again=again, job=SchedulerJob(id="1", state=state, status=code)) == verdict


def test_requeue_mark_stores_progress_and_is_preserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DITHC_REQUEUE_FILE", raising=False)
    assert not deadline.mark_again()
    monkeypatch.setenv("DITHC_REQUEUE_FILE", str(tmp_path / "again"))
    assert deadline.mark_again("step 40")
    assert deadline.mark_again()
    assert (tmp_path / "again").read_text() == "step 40"


def test_invalid_requests_raise_user_errors_with_cause(
    pbs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DITHC_BATCH_SYSTEM", raising=False)
    with pytest.raises(UserError, match="slurm, pbs, lsf, fujitsu"):
        submit(["/nowhere"], folder=tmp_path)
    with pytest.raises(UserError, match="no mem_mb and no runtime"):
        submit_script(tmp_path, "true", resources={})
    with pytest.raises(UserError, match="no record"):
        status("12", folder=tmp_path)
    (pbs / "full").touch()
    with pytest.raises(UserError, match="would exceed queue's job limit"):
        submit_script(tmp_path, "true")


def test_status_imports_no_heavy_modules_and_prints_one_word(pbs: Path, tmp_path: Path) -> None:
    number = submit_script(tmp_path, "true")
    code = (
        "import sys, dithc.engine.scheduler.cluster_generic as g; "
        "sys.exit(g.main(sys.argv[1:]) or not {'torch', 'numpy', 'snakemake'}.isdisjoint(sys.modules))"
    )
    line = [sys.executable, "-c", code, "status", number]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "success\n")


def test_requeued_job_is_active_only_for_the_submitting_driver(
    pbs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DITHC_DRIVER_NAME", "first")
    submit_script(tmp_path, "touch $DITHC_REQUEUE_FILE; exit 1")
    queue = get_queue("generic")
    (job,) = queue.jobs(tmp_path)
    assert (job.name, job.state, job.active) == ("first", "REQUEUED", True)
    monkeypatch.setenv("DITHC_DRIVER_NAME", "second")
    (job,) = queue.jobs(tmp_path)
    assert (job.name, job.active, job.status) == ("first", False, 75)


def test_lost_job_becomes_inactive_after_a_timeout(pbs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pbs / "loses").touch()
    submit_script(tmp_path, "true")
    (pbs / "1.code").unlink()
    queue = get_queue("generic")
    assert [job.state for job in queue.jobs(tmp_path)] == ["PENDING"]
    start = time.time()
    monkeypatch.setattr(queues, "now", lambda: start + LOST_SECONDS + 1)
    assert [job.active for job in queue.jobs(tmp_path)] == [False]
