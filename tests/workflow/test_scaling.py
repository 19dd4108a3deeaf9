"""Measured and simulated scaling are separate targets, and parts of the report if requested."""

from pathlib import Path

import pytest

from tests.workflow.conftest import snakemake

pytestmark = pytest.mark.sampled("plans of the workflow")
LOCAL = ("--profile", "profiles/local", "-n", "-p")


def test_figures_ten_and_eleven_are_a_target_without_any_training(project: Path) -> None:
    done = snakemake(project, "scaling", *LOCAL)
    assert done.returncode == 0, done.stdout[-3000:]
    for mode in ("weak", "strong"):
        assert f"dithc bench scaling --{mode} --models DiT-S/2 --ranks 1,2 --batch 8" in done.stdout
        assert f"results/demo/scaling/figures/{mode}_scaling.png" in done.stdout
    assert "dithc simulate --reproduce-paper --machine profiles/machines/lx2.yaml" in done.stdout
    assert "dithc train" not in done.stdout


def test_simulation_is_a_target(project: Path) -> None:
    asked = "bench={simulate: {of: [weak, strong], models: [DiT-L/2], nodes: [1, 8]}}"
    done = snakemake(project, "simulate", *LOCAL, "--config", asked)
    assert done.returncode == 0, done.stdout[-3000:]
    for mode in ("weak", "strong"):
        assert f"--mode {mode} --machine profiles/machines/lx2.yaml --models DiT-L/2 --nodes 1,8" in done.stdout
    assert "dithc bench" not in done.stdout


def test_the_report_has_what_the_experiment_asks_for_and_the_demo_asks_for_nothing(project: Path) -> None:
    plain = snakemake(project, *LOCAL).stdout
    assert "dithc bench scaling" not in plain
    assert "dithc simulate" not in plain
    asked = "bench={scaling: {models: [DiT-B/2], ranks: [1, 2, 4]}, simulate: {machine: profiles/machines/lx2.yaml}}"
    done = snakemake(project, *LOCAL, "--config", asked)
    assert done.returncode == 0, done.stdout[-3000:]
    assert (
        "--weak --models DiT-B/2 --ranks 1,2,4 --batch 8 --dtype fp32 --rounds 2 --without-communication" in done.stdout
    )
    files = " ".join(
        f"results/demo/bench/{name}.json" for name in ("scaling-weak", "scaling-strong", "simulated-paper")
    )
    assert f"--scaling {files} --" in done.stdout


def test_a_cluster_gives_the_bench_its_ranks_and_their_cores(project: Path) -> None:
    asked = "bench={scaling: {models: [DiT-B/2], ranks: [4, 8, 16]}}"
    target = "results/demo/bench/scaling-weak.json"
    done = snakemake(project, target, "--profile", "cluster", "-n", "-p", "--config", asked)
    assert "--launcher srun --ranks-per-node 4 --cpus 38" in done.stdout
    assert "nodes=4, tasks=16, cpus_per_task=38" in done.stdout
