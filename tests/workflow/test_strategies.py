"""The strategy is a machine setting: it changes the start of ranks, not results; the comparison is a target."""

from pathlib import Path

import pytest

from tests.workflow.conftest import snakemake

pytestmark = pytest.mark.sampled("plans of the workflow")
LOCAL = ("--profile", "profiles/local", "-n", "-p")


def test_strategy_decides_the_launch_and_no_parameter_of_a_rule(project: Path) -> None:
    done = snakemake(project, *LOCAL, "--config", "machine={launcher: mpiexec, strategy: dp}")
    assert done.returncode == 0, done.stdout[-3000:]
    assert "dithc launch --launcher mpiexec --nodes 1 --strategy dp --node-cpus" in done.stdout
    plain = snakemake(project, *LOCAL)
    train = [line for line in done.stdout.splitlines() if "dithc train" in line]
    truth = [line for line in plain.stdout.splitlines() if "dithc train" in line]
    assert [line.split(" -- ")[1] for line in train] == [line.split(" -- ")[1] for line in truth]


def test_ranks_of_another_machine_must_be_given(project: Path) -> None:
    done = snakemake(project, *LOCAL, "--config", "machine={launcher: srun, strategy: dp}")
    assert done.returncode != 0
    assert "requires machine.ranks_per_node" in done.stdout


def test_comparison_is_a_target_and_part_of_the_report_where_asked_for(project: Path) -> None:
    assert "dithc bench strategies" not in snakemake(project, *LOCAL).stdout
    asked = "bench={strategies: {models: [DiT-B/2], batches: [4], memory_limit_gib: 8}}"
    done = snakemake(project, *LOCAL, "--config", asked)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "dithc bench strategies --models DiT-B/2 --batches 4 --dtype fp32 --rounds 2 --memory-limit 8" in done.stdout
    assert "--strategies results/demo/bench/strategies.json" in done.stdout
    target = snakemake(project, "strategies", *LOCAL)
    assert "dithc bench strategies --models DiT-S/2 --batches 8,16" in target.stdout, target.stdout[-3000:]
