"""Settings of files, profiles and the command line override each other key by key, and the log lists overridden values."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dithc.config import load_experiment, load_machine
from dithc.workflow.snakemake_api import config_arguments

ROOT = Path(__file__).parent.parent.parent
SLURM = "machine={launcher: srun, ranks_per_node: 4, cpus_per_rank: 38, scheduler: slurm, cpus_per_node: 152}"


def engine(*, main: bool = True, args: list[str] | None = None) -> Any:
    return SimpleNamespace(is_main_process=main, config_settings=SimpleNamespace(config_args=args))


def test_command_line_key_preserves_other_profile_keys() -> None:
    word = "machine={memory: {fast_memory_gib: 8}, cpus_per_rank: 19}"
    machine = load_experiment({"name": "x"}, overrides=[("p", [SLURM]), ("the command line", [word])]).machine
    assert (machine.launcher, machine.ranks, machine.cpus_per_rank) == ("srun", 4, 19)
    assert machine.memory.fast_memory_gib == 8
    word = "machine={scheduler: none, launcher: mpiexec, ranks_per_node: null}"
    assert load_experiment({}, overrides=[("p", [SLURM]), ("the command line", [word])]).machine.ranks is None


def test_files_profile_and_command_line_override_in_order_with_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("seed: 1\nmachine: {cpus_per_rank: 2, max_walltime_minutes: 9, memory: {fast_memory_gib: 1}}\n")
    two.write_text("seed: 2\nmachine: {cpus_per_rank: 3}\n")
    given = ["machine={ranks_per_node: 2, launcher: srun}", "name=mine"]
    logging.getLogger("dithc").propagate = True
    with caplog.at_level(logging.INFO, logger="dithc.workflow"):
        experiment = load_experiment(
            [one, two], overrides=[("cluster", [SLURM, "title=T"]), ("the command line", given)]
        )
    assert (experiment.seed, experiment.title, experiment.name) == (2, "T", "mine")
    machine = experiment.machine
    assert (machine.cpus_per_rank, machine.ranks_per_node, machine.max_walltime_minutes) == (38, 2, 9)
    assert machine.memory.fast_memory_gib == 1
    assert sorted(record.getMessage().replace(f"{tmp_path}/", "") for record in caplog.records) == [
        "machine.cpus_per_rank: 38 (cluster) overrides 3 (two.yaml)",
        "machine.ranks_per_node: 2 (the command line) overrides 4 (cluster)",
    ]


@pytest.mark.parametrize(
    "line", ["config: ['machine={launcher: mpiexec}', 'title=T']", "config: {machine: {launcher: mpiexec}, title: T}"]
)
def test_profiles_in_list_or_mapping_form_are_passed_to_jobs(tmp_path: Path, line: str) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "config.yaml").write_text(line + "\n")
    assert load_machine(tmp_path / "site")[0].launcher == "mpiexec"
    driver = engine(args=["machine={nodes: 2}"])
    above = config_arguments(
        driver, ["-n", "--profile", str(tmp_path / "site"), "-C", "machine={nodes: 2}", "--", "all"]
    )
    job = config_arguments(engine(main=False, args=driver.config_settings.config_args), ["--mode", "remote"])
    first, again = (load_experiment({}, overrides=words) for words in (above, job))
    assert first == again
    assert (first.machine.launcher, first.machine.nodes, first.title) == ("mpiexec", 2, "T")


def test_config_arguments_contain_command_line_and_environment_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SNAKEMAKE_PROFILE", raising=False)
    assert config_arguments(engine(), ["-n", "--config", "name=x"]) == [("the command line", ["name=x"])]
    monkeypatch.setenv("SNAKEMAKE_PROFILE", str(ROOT / "profiles" / "slurm"))
    (origin, words), _ = config_arguments(engine(), ["-n"])
    assert origin.endswith("profiles/slurm/config.yaml")
    assert words[0].startswith("machine={launcher: srun")
