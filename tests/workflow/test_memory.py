"""Figure 9, memory tiers and sampling on ranks are separate targets, and parts of the report if requested."""

from pathlib import Path

import pytest

from tests.workflow.conftest import snakemake

pytestmark = pytest.mark.sampled("plans of the workflow")
LOCAL = ("--profile", "profiles/local", "-n", "-p")


def test_they_are_targets_without_any_training(project: Path) -> None:
    done = snakemake(project, "stepwise", "automem", "sampling", *LOCAL)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "dithc bench stepwise --model DiT-S/2 --batch 8 --dtype fp32 --ranks 2 --rounds 3 --tune" in done.stdout
    assert (
        "dithc bench automem --model DiT-S/2 --batch 8 --dtype fp32 --only budget,pool,resident --budget 0.4"
        in done.stdout
    )
    assert "results/demo/stepwise/figures/stepwise.png" in done.stdout
    assert "results/demo/automem/figures/memory.png" in done.stdout
    assert (
        "dithc bench sampling --model DiT-S/2 --tokens 256,1024,4096 --dtypes fp32,bf16 --guidance 4,1 --ranks 2 --steps 30 "
        "--decode-size 1024 --decode-width 32 --rounds 3 --diffusers --json" in done.stdout
    )
    assert "results/demo/sampling/figures/sampling.png" in done.stdout
    assert "dithc train" not in done.stdout


def test_the_report_has_what_the_experiment_asks_for_and_the_demo_asks_for_nothing(project: Path) -> None:
    plain = snakemake(project, *LOCAL).stdout
    assert "dithc bench stepwise" not in plain
    assert "dithc bench automem" not in plain
    assert "dithc bench sampling" not in plain
    asked = "bench={stepwise: {model: DiT-B/2, ranks: 1}, automem: {model: DiT-B/2, only: [budget], memory_gib: 8}, "
    asked += "sampling: {model: DiT-B/2, tokens: [64], diffusers: false}}"
    done = snakemake(project, *LOCAL, "--config", asked)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "--only budget --budget 0.4 --folder . --file-gib 16 --rounds 2 --memory 8" in done.stdout
    assert (
        "bench sampling --model DiT-B/2 --tokens 64 --dtypes fp32,bf16 --guidance 4,1 --ranks 2 --steps 30 --decode-size 1024 "
        "--decode-width 32 --rounds 3 --json" in done.stdout
    )
    assert "--sampling results/demo/bench/sampling.json --out results/demo/report.html" in done.stdout
    assert (
        "--stepwise results/demo/bench/stepwise.json --automem results/demo/bench/automem.json --scaling" in done.stdout
    )
