"""Figure 9 and the tiers of memory are measured by name, and stand in the report where an experiment asks for them."""

from pathlib import Path

import pytest

from tests.workflow.conftest import snakemake

pytestmark = pytest.mark.sampled("plans of the workflow")
LOCAL = ("--profile", "profiles/local", "-n", "-p")


def test_both_are_targets_without_any_training(project: Path) -> None:
    done = snakemake(project, "stepwise", "automem", *LOCAL)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "dithc bench stepwise --model DiT-S/2 --batch 8 --dtype fp32 --ranks 2 --rounds 3 --tune" in done.stdout
    assert (
        "dithc bench automem --model DiT-S/2 --batch 8 --dtype fp32 --only budget,pool,resident --budget 0.4"
        in done.stdout
    )
    assert "results/demo/stepwise/figures/stepwise.png" in done.stdout
    assert "results/demo/automem/figures/memory.png" in done.stdout
    assert "dithc train" not in done.stdout


def test_the_report_has_what_the_experiment_asks_for_and_the_demo_asks_for_nothing(project: Path) -> None:
    plain = snakemake(project, *LOCAL).stdout
    assert "dithc bench stepwise" not in plain
    assert "dithc bench automem" not in plain
    asked = "bench={stepwise: {model: DiT-B/2, ranks: 1}, automem: {model: DiT-B/2, only: [budget], memory_gib: 8}}"
    done = snakemake(project, *LOCAL, "--config", asked)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "--only budget --budget 0.4 --folder . --file-gib 16 --rounds 2 --memory 8" in done.stdout
    assert (
        "--stepwise results/demo/bench/stepwise.json --automem results/demo/bench/automem.json --scaling" in done.stdout
    )
