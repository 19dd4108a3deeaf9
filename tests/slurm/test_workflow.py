"""Run from login node to report on a real Slurm, with a profile that dithc wrote."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dithc.core.artifacts import Manifest
from tests.slurm.conftest import ClusterProject, make_project
from tests.slurm.local_slurm import LocalSlurm

pytestmark = [pytest.mark.slow, pytest.mark.slurm, pytest.mark.unit("slurm")]


@pytest.mark.alternates("whole workflows", "on Slurm")
@pytest.mark.sampled("whole on Slurm")
@pytest.mark.parametrize(
    ("accounting", "ranks_per_node"), [(True, 1), (False, 2)], ids=["sacct-2-ranks", "squeue-4-ranks"]
)
def test_workflow_runs_from_scenes_to_report_on_two_nodes(
    start_slurm: Callable[[bool], LocalSlurm], tmp_path: Path, accounting: bool, ranks_per_node: int
) -> None:
    project = ClusterProject(
        start_slurm(accounting), make_project(tmp_path / "project"), nodes=2, ranks_per_node=ranks_per_node
    )
    if accounting:
        project.change_profile("slurm-status-command: squeue", "slurm-status-command: sacct")
    settings = "machine: {max_walltime_minutes: 7}\nruns: {pretrain: {steps: 100, steps_per_job: 50}}"
    project.start(settings=settings, words=["--config", "machine={gflops_per_core: 9}"])
    output = project.succeed(seconds=900.0)
    assert "machine.max_walltime_minutes: 60 (cluster/config.yaml) overrides 7 (more.yaml)" in output
    results = project.folder / "results" / "small"
    assert (results / "report.html").exists()
    machine = json.loads((results / "config.json").read_text())["machine"]
    assert (machine["launcher"], machine["gflops_per_core"]) == ("srun", 9), (
        "a command-line argument removes other settings"
    )
    train = Manifest.read(results / "runs" / "pretrain" / "step_0000100.json")
    assert train.summary["ranks"] == 2 * ranks_per_node
    jobs = [job["comment"] for job in project.jobs()]
    assert len(jobs) <= 8, f"13 stages bundled: {jobs}"
    project.close()


def test_doctor_checks_the_profile_with_jobs_on_the_nodes(project: ClusterProject) -> None:
    done = project.dithc("doctor", "--profile", "cluster")
    output = done.stdout
    for text in ("2 rank(s) on n1, n2 connected", "this folder is shared", "clocks agree"):
        assert text in output, output + done.stderr
    assert done.returncode == 0, output + done.stderr


def test_doctor_reports_a_walltime_above_the_partition_limit(project: ClusterProject) -> None:
    project.change_profile("max_walltime_minutes: 60", "max_walltime_minutes: 600")
    done = project.dithc("doctor", "--profile", "cluster")
    assert done.returncode == 1
    assert "max_walltime_minutes 600: jobs of cpu end after 60" in done.stdout
