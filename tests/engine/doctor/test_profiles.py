"""Tests of existing profiles: options of a job on a node, and changes of the section `machine`."""

from pathlib import Path

import pytest

from dithc.config import load_machine
from dithc.core.logging import UserError
from dithc.engine.doctor import job_options, profile_folder, update_profile

PROFILE = """# a comment
executor: slurm
default-resources:
  slurm_partition: "cpu"
  slurm_account: me
config:
  - "machine={launcher: \\"srun\\", ranks_per_node: 1, cpus_per_rank: 2, cpus_per_node: 4, slow: {above: 2}}"
jobs: 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "profiles/cluster"
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(PROFILE)
    return path


def test_update_changes_given_keys_and_no_other_line(folder):
    path, changed = update_profile("cluster", {"strategy": "dp", "ranks_per_node": 2, "cpus_per_rank": 2})
    assert path == Path("profiles/cluster/config.yaml")
    assert "strategy cftp -> dp" in changed
    machine, content = load_machine(folder)
    assert (machine.strategy, machine.ranks_per_node, machine.cpus_per_rank) == ("dp", 2, 2)
    assert (machine.launcher, machine.cpus_per_node, machine.slow.above) == ("srun", 4, 2.0)
    assert content["jobs"] == 3
    old, new = PROFILE.splitlines(), (folder / "config.yaml").read_text().splitlines()
    assert [line for line in new if "machine=" not in line] == [line for line in old if "machine=" not in line]


def test_profile_without_a_machine_line_is_an_error_and_unchanged(folder):
    path = folder / "config.yaml"
    path.write_text("executor: slurm\nconfig:\n  machine:\n    nodes: 1\n")
    with pytest.raises(UserError, match="no single line"):
        update_profile("cluster", {"strategy": "dp"})
    assert "machine={" not in path.read_text()


def test_job_options_request_one_complete_node(folder):
    options = job_options("cluster", minutes=7, job="x")
    assert options[:4] == ["--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=4", "--time=7"]
    assert {"--partition=cpu", "--account=me", "--job-name=x"} <= set(options)
    assert profile_folder(str(folder)) == folder
