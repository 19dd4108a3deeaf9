"""Faults of a cluster: each ends with the weights of an uninterrupted run, or with an error that contains the fix."""

import os
import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.slurm.conftest import FIRST_SEGMENT, ClusterProject
from tests.slurm.local_slurm import CPUS, NODES, command_of, environment_of, process_numbers

pytestmark = [pytest.mark.slow, pytest.mark.slurm, pytest.mark.unit("slurm"), pytest.mark.sampled("faults on Slurm")]


def stop_gracefully(project: ClusterProject, job: str) -> None:
    """Send SIGTERM to `dithc launch` of the job, as a deadline does."""
    for process in process_numbers():
        arguments = command_of(process).split()
        if "launch" in arguments and "train" in arguments and f"SLURM_JOB_ID={job}\0" in environment_of(process):
            os.kill(process, signal.SIGTERM)
            return
    pytest.fail("the job does not run")


def preempt(project: ClusterProject, job: str) -> None:
    size = (f"-N{NODES}", "--ntasks-per-node=1", f"-c{CPUS}", "-t1")
    project.slurm.run("sbatch", "-p", "high", *size, "-o/dev/null", "--wrap=sleep 2")


def lose_node(project: ClusterProject, job: str) -> None:
    project.slurm.kill_node("n2")
    project.slurm.wait(lambda: "DOWN" in project.slurm.run("sinfo", "-h", "-n", "n2", "-o", "%T").upper(), "node down")
    project.slurm.start_node("n2")


@pytest.mark.parametrize("interrupt", [stop_gracefully, preempt, lose_node])
def test_interrupted_training_resumes_under_the_same_job_number(
    project: ClusterProject, uninterrupted_weights: dict[str, str], interrupt: Callable[[ClusterProject, str], None]
) -> None:
    project.start(FIRST_SEGMENT)
    project.reach(60)
    job = project.job()
    interrupt(project, job)
    project.slurm.wait(lambda: project.restarts(job) == 1, "the job's second start", seconds=90.0)
    project.succeed()
    assert len(project.jobs()) == 1 or interrupt is preempt, "no job was submitted twice"
    assert project.weights() == uninterrupted_weights


def test_training_canceled_by_preemption_is_requeued_by_the_driver(
    project: ClusterProject, uninterrupted_weights: dict[str, str]
) -> None:
    project.change_profile('slurm_partition: "cpu"', 'slurm_partition: "cancel"')
    project.start(FIRST_SEGMENT)
    project.reach(60)
    job = project.job()
    preempt(project, job)
    project.slurm.wait(lambda: project.restarts(job) == 1, "the job's second start", seconds=90.0)
    output = project.succeed()
    assert "was preempted: requeueing it" in output
    assert project.weights() == uninterrupted_weights


LONG, LONG_RUN = "results/small/runs/pretrain/step_0002000.json", "runs: {pretrain: {steps: 2000, steps_per_job: 2000}}"


def test_restarted_driver_reuses_the_running_job(project: ClusterProject) -> None:
    project.start(LONG, settings=LONG_RUN)
    project.reach(60)
    job = project.job()
    project.kill_driver()
    project.start(LONG, settings=LONG_RUN)
    project.slurm.wait(
        lambda: "jobs of an earlier driver are in the queue" in project.output or project.ended,
        "a message of the second driver",
    )
    assert project.job() == job, "no second trainer runs"
    output = project.succeed()
    assert f"{job} (pretrain" in output
    assert (project.folder / LONG).exists()
    assert project.steps() == list(range(1, 2001)), "each step ran once"


def test_second_driver_is_rejected_with_an_active_first_driver(project: ClusterProject) -> None:
    project.start(LONG, settings=LONG_RUN)
    project.reach(1)
    assert project.driver is not None
    done = subprocess.run(
        project.driver.args,
        cwd=project.folder,
        env=project.slurm.environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    assert "another driver is active for experiment 'small'" in done.stdout + done.stderr


def test_canceled_job_is_reported_with_the_log_and_resumes_on_restart(
    project: ClusterProject, uninterrupted_weights: dict[str, str]
) -> None:
    project.start(FIRST_SEGMENT)
    project.reach(60)
    job = project.job()
    project.slurm.run("scancel", job)
    status, output = project.finish()
    assert status != 0
    assert f"job {job} (pretrain" in output
    assert "CANCELLED by" in output
    assert f"{job}.log" in output
    assert "fix:" in output
    project.start(FIRST_SEGMENT)
    project.succeed()
    assert project.weights() == uninterrupted_weights


def test_rank_killed_for_memory_is_reported_and_not_retried(project: ClusterProject) -> None:
    project.start(FIRST_SEGMENT, settings="resources: {train: {mem_mb: 150}}")
    status, output = project.finish()
    assert status != 0
    assert "lack of memory" in output or "more memory than it requested" in output, output[-3000:]
    assert "resources: {<stage>: {mem_mb: ...}}" in output
    assert len(project.jobs()) == 1


def test_permanent_failure_is_submitted_once_and_reported(project: ClusterProject) -> None:
    # Weights grow by a factor of 999 per step.
    project.start(FIRST_SEGMENT, settings="runs: {pretrain: {lr: 1.0, weight_decay: 1000.0}}")
    status, output = project.finish()
    assert status != 0
    assert len(project.jobs()) == 1, f"a rerun would fail too: {output[-3000:]}"
    message = output.rpartition("workflow: error:")[2]
    assert "fix:" in message
    assert "got:" in message, message


def test_oversized_job_is_rejected_before_the_first_submission(project: ClusterProject) -> None:
    project.start(FIRST_SEGMENT, settings="resources: {train: {mem_mb: 50000, runtime: 600}}")
    status, output = project.finish()
    assert status != 0
    assert "train pretrain: 50000 MB of memory (`resources.train.mem_mb`), a node has 6000 MB" in output
    assert "resources.train.runtime is 600 minutes, jobs end after 60" in output
    assert project.jobs() == []


def test_blocked_job_is_reported_within_a_minute_and_runs_after_resume(
    project: ClusterProject, uninterrupted_weights: dict[str, str]
) -> None:
    for node in ("n1", "n2"):
        project.slurm.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    project.start(FIRST_SEGMENT)
    project.slurm.wait(lambda: "cannot start" in project.output or project.ended, "a warning", seconds=60.0)
    assert "the required nodes are down or drained" in project.output
    for node in ("n1", "n2"):
        project.slurm.run("scontrol", "update", f"nodename={node}", "state=resume")
    project.succeed()
    assert project.weights() == uninterrupted_weights


@pytest.mark.long
def test_training_beyond_the_walltime_restarts_and_runs_each_step_once(project: ClusterProject) -> None:
    one_minute = f"resources: {{train: {{runtime: 1}}}}\n{LONG_RUN.replace('2000', '6000')}"
    project.start(LONG.replace("2000", "6000"), settings=one_minute)
    project.succeed(seconds=600.0)
    (job,) = project.jobs()
    assert project.restarts(job["id"]) >= 1, "the run was too short for this test"
    assert project.steps() == list(range(1, 6001)), "each step ran once"


def test_refused_job_is_submitted_again_after_the_limit_is_raised(project: ClusterProject) -> None:
    def limit_jobs(count: int) -> None:
        project.slurm.run("sacctmgr", "-i", "-Q", "modify", "user", "root", "set", f"MaxSubmitJobs={count}")

    limit_jobs(0)
    try:
        project.start(FIRST_SEGMENT)
        project.slurm.wait(lambda: "Slurm refuses jobs for now" in project.output or project.ended, "a refusal")
        assert not project.ended, project.output
    finally:
        limit_jobs(-1)
    output = project.succeed()
    assert output.count("Slurm refuses jobs for now") == 1
    assert len(project.jobs()) == 1


def test_slow_node_is_named_and_kept_if_no_other_node_is_left(project: ClusterProject) -> None:
    project.change_profile("stop_before_walltime: true", "stop_before_walltime: true, slow: {action: exclude}")
    model = "{hidden_size: 256, depth: 8, num_heads: 4}"  # steps longer than the stops
    settings = f"runs: {{pretrain: {{model: {model}, steps: 5000, steps_per_job: 5000}}}}"
    project.start("results/small/runs/pretrain/step_0005000.json", settings=settings)
    project.reach(30)
    variables = {number: environment_of(number) for number in process_numbers()}
    ranks = [
        str(number) for number, text in variables.items() if "SLURMD_NODENAME=n2\0" in text and "PMI_RANK=" in text
    ]
    (log,) = (project.folder / "results/small/logs/train/pretrain").glob("*.log")
    pids = " ".join(ranks)
    cycle = f"kill -STOP {pids} && sleep 0.04 && kill -CONT {pids} && sleep 0.02"
    with subprocess.Popen(["sh", "-c", f"while {cycle}; do :; done"], stderr=subprocess.DEVNULL) as slowing:
        text = "n2 not excluded, and training continues: 1 other usable node(s)"
        project.slurm.wait(lambda: text in log.read_text(), "a slow node", seconds=90.0)
        slowing.kill()
    subprocess.run(["kill", "-CONT", *ranks], check=False)
    assert "slow rank: rank 1 on n2" in log.read_text()
    assert project.restarts(project.job()) == 0
