"""Benches are separate targets without training, and parts of the report if requested."""

from pathlib import Path

import pytest

from tests.workflow.conftest import snakemake

pytestmark = pytest.mark.sampled("plans of the workflow")
LOCAL = ("--profile", "profiles/local", "-n", "-p")
AUTOMEM = "automem --model DiT-S/2 --batch 8 --dtype fp32 --parts budget,pool,resident --fast-memory-fraction 0.4"
# Command and figure of each target.
TARGETS = {
    "strategies": ("strategies --models DiT-S/2 --batches 8,16", ""),
    "stepwise": (
        "stepwise --model DiT-S/2 --batch 8 --dtype fp32 --ranks 2 --rounds 3 --tune",
        "stepwise/figures/stepwise",
    ),
    "automem": (AUTOMEM, "automem/figures/memory"),
    "scaling": ("scaling --strong --models DiT-S/2 --ranks 1,2 --batch 8", "scaling/figures/strong_scaling"),
}
# Settings of `bench` and the commands of the report.
REQUESTED = {
    "strategies: {models: [DiT-B/2], batches: [4], memory_limit_gib: 8}": (
        "bench strategies --models DiT-B/2 --batches 4 --dtype fp32 --rounds 2 --memory-limit 8"
    ),
    "stepwise: {model: DiT-B/2, ranks: 1}": "bench stepwise --model DiT-B/2 --batch 8 --dtype fp32 --ranks 1",
    "automem: {model: DiT-B/2, parts: [budget]}": (
        "--parts budget --fast-memory-fraction 0.4 --spill-folder . --spill-gib 16 --rounds 2"
    ),
    "scaling: {models: [DiT-B/2], ranks: [1, 2, 4]}": (
        "--weak --models DiT-B/2 --ranks 1,2,4 --batch 8 --dtype fp32 --rounds 2 --no-communication-baseline"
    ),
    "simulate: {machine: profiles/machines/lx2.yaml}": "simulate --reproduce-paper --machine profiles/machines/lx2.yaml",
}


def test_each_bench_is_a_target_without_training_jobs(project: Path) -> None:
    done = snakemake(project, *TARGETS, *LOCAL)
    assert done.returncode == 0, done.stdout[-3000:]
    for command, figure in TARGETS.values():
        assert f"dithc bench {command}" in done.stdout
        assert figure in done.stdout
    assert "dithc simulate --reproduce-paper --machine profiles/machines/lx2.yaml" in done.stdout
    assert "dithc train" not in done.stdout


def test_report_contains_only_the_requested_benches(project: Path) -> None:
    plain = snakemake(project, *LOCAL).stdout
    assert "dithc report" in plain
    assert "dithc bench" not in plain
    assert "dithc simulate" not in plain
    done = snakemake(project, *LOCAL, "--config", f"bench={{{', '.join(REQUESTED)}}}")
    assert done.returncode == 0, done.stdout[-3000:]
    for command in REQUESTED.values():
        assert command in done.stdout
    report = next(line for line in done.stdout.splitlines() if "dithc report" in line)
    files = [f"results/demo/bench/{name}.json" for name in ("scaling-weak", "scaling-strong", "simulated-paper")]
    assert f"--scaling {' '.join(files)} --" in report
    for name in ("strategies", "stepwise", "automem"):
        assert f"--{name} results/demo/bench/{name}.json" in report


def test_cluster_profile_sets_ranks_and_cores_of_the_scaling_bench(project: Path) -> None:
    settings = "bench={scaling: {models: [DiT-B/2], ranks: [4, 8, 16]}}"
    target = "results/demo/bench/scaling-weak.json"
    done = snakemake(project, target, "--profile", "cluster", "-n", "-p", "--config", settings)
    assert "--launcher srun --ranks-per-node 4 --cpus-per-rank 38" in done.stdout
    assert "nodes=4, tasks=16, cpus_per_task=38" in done.stdout


def test_strategy_changes_only_the_launch_arguments(project: Path) -> None:
    done = snakemake(project, *LOCAL, "--config", "machine={launcher: mpiexec, strategy: dp}").stdout
    assert "dithc launch --launcher mpiexec --nodes 1 --strategy dp --cpus-per-node" in done
    plain = snakemake(project, *LOCAL).stdout
    found, expected = ([line for line in text.splitlines() if "dithc train" in line] for text in (done, plain))
    assert [line.split(" -- ")[1] for line in found] == [line.split(" -- ")[1] for line in expected]
