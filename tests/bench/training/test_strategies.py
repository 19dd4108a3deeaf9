"""Strategy benchmark: placement, cost and failures of strategies. Tests do not check times."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dithc.bench import summary
from dithc.bench.training import strategies
from dithc.bench.training.run import TrainingResult, ranks_below
from dithc.bench.training.strategies import ONE_CLUSTER, cell, shard_optimizer, variants_on
from dithc.cli import main
from tests.ranks import needs_launcher

NAMES = ("cftp", "dp", "dp+tp", ONE_CLUSTER)
TINY = ["--override=hidden_size=64", "--override=depth=1", "--override=num_heads=2"]
TINY += ["--models", "S/2", "--batches", "2"]


def machine(dies: int, clusters: int, cores: int):
    """Return a node with the given dies, core clusters per die and cores per cluster, with one CPU per core."""
    every = [
        SimpleNamespace(index=n, cpus=(n,), cluster=n // cores, die=n // cores // clusters)
        for n in range(dies * clusters * cores)
    ]
    limits = SimpleNamespace(allowed_cpus=tuple(range(len(every))))
    return SimpleNamespace(visible_cores=every, limits=limits)


@pytest.mark.parametrize(
    ("node", "counts", "cpus", "text"),
    [
        ((2, 4, 3), [(2, 12), (8, 3), (8, 3), (1, 3)], (0, 1, 2), "2 die(s), 8 cluster(s)"),
        ((1, 1, 2), [(1, 2), (2, 1), (2, 1), (1, 1)], (0,), "each core counts as a cluster"),
    ],
)
def test_ranks_and_threads_follow_from_dies_and_clusters(node, counts, cpus, text):
    found, cluster_text = variants_on(machine(*node), NAMES)
    assert [(one.ranks, one.cpus) for one in found] == counts
    assert found[-1].allowed == cpus
    assert text in cluster_text


def test_zero1_applies_to_multirank_strategies_except_dp_tp():
    found, _ = variants_on(machine(dies=2, clusters=4, cores=3), NAMES)
    by_name = {one.name: shard_optimizer(one, "zero1").options for one in found}
    assert all(shard_optimizer(one, "none") == one for one in found)
    several = {one.name for one in found if one.ranks > 1}
    assert {name for name, words_ in by_name.items() if words_ == ("--sharding", "zero1")} == several - {"dp+tp"}


def test_gloo_variant_differs_from_the_mpi_variant_only_in_the_backend():
    found, _ = variants_on(machine(dies=1, clusters=2, cores=1), ("dp+tp", "dp+tp-gloo"))
    over_mpi, over_gloo = (one.environment.get("DITHC_COMM_BACKEND") for one in found)
    assert (over_mpi, over_gloo) == ("dithc-mpi", "gloo")
    assert replace(found[0], name="", environment={}) == replace(found[1], name="", environment={})


def ok(seconds: float, peak: int) -> TrainingResult:
    sent = {"tcp_bytes": 2.0**20, "mpi_calls": 0.0, "mpi_bytes": 0.0, "shared_bytes": 0.0}
    return TrainingResult(seconds=[seconds, 9.0, 0.0], peak_pss_bytes=peak, sent_each=[sent, sent], losses=[1.0])


def result_of(runs):
    settings = {"dtype": "fp32", "rounds": 2, "steps": 3}
    rows = [cell("DiT-S/2", 8, runs)]
    known = [{"name": name, "ranks": 2, "cpus": 1} for name in runs]
    conditions = {"clusters": "", "memory_limit": {"bytes": None}, "counted": {}}
    return {"bench": "strategies", "settings": settings, "variants": known, "cells": rows, **conditions}


def test_ratios_compare_runs_of_the_same_round():
    result = result_of({"cftp": [ok(1.0, 100), ok(2.0, 120)], "dp": [ok(2.0, 200), ok(8.0, 200)]})
    row = result["cells"][0]["strategies"]["dp"]
    assert row["cftp_seconds_over"]["rounds"] == [0.5, 0.25]
    assert row["cftp_memory_over"] == 0.6
    assert row["tcp_bytes"] == 2.0**21
    assert re.search(r"dp +0\.375 \+- 0\.\d+ +0\.6\b", summary(result).text())


def test_summary_prints_dash_for_oom_and_reason_for_failed_runs():
    bad = TrainingResult(status="failed", reason="status 1; no such thing")
    text = summary(result_of({"cftp": [ok(1.0, 100)], "dp": [TrainingResult(status="oom")], "dp+tp": [bad]})).text()
    line = next(line for line in text.splitlines() if "DiT-S/2" in line)
    assert line.split()[2:7] == ["1", "+-", "0", "-", "failed"]
    assert "dp+tp failed: status 1; no such thing" in text


def test_ranks_are_found_below_their_launcher(tmp_path):
    arguments = {
        10: ["python", "-m", "dithc", "launch", "--", "python", "-m", "dithc", "bench", "training"],
        11: ["mpiexec", "-n", "2", "python", "-m", "dithc", "bench", "training"],
        12: ["python", "-m", "dithc", "bench", "training", "--batch", "2"],
        13: ["python", "-m", "dithc", "bench", "training", "--batch", "2"],
        99: ["python", "-m", "dithc", "bench", "training"],
    }
    for pid, parent in {10: 1, 11: 10, 12: 11, 13: 11, 99: 1}.items():
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (a ) name) S {parent} 0")
        (folder / "cmdline").write_text("\0".join(arguments[pid]) + "\0")
    assert sorted(ranks_below(10, proc=tmp_path)) == [12, 13]


@pytest.mark.sampled("benches")
@pytest.mark.slow
@pytest.mark.mpi
@needs_launcher
def test_strategies_reach_equal_losses_and_only_multirank_runs_exchange(tmp_path, capsys, monkeypatch):
    names = (*NAMES[:3], "dp+tp-gloo")
    monkeypatch.setattr(strategies, "variants_on", lambda *_: variants_on(machine(dies=1, clusters=1, cores=2), names))
    path = tmp_path / "strategies.json"
    arguments = ["bench", "strategies", *TINY, "--rounds", "1", "--steps", "2", "--json", str(path)]
    assert main(arguments) == 0
    rows = json.loads(path.read_text())["cells"][0]["strategies"]
    assert {row["status"] for row in rows.values()} == {"ok"}
    losses = [row["losses"] for row in rows.values()]
    # Four steps at lr 1e-4; the tolerance of the training test: roundoff x longest product x layers.
    assert losses[1] == pytest.approx(losses[0], rel=2**-24 * 256 * 7)
    assert losses[2] == pytest.approx(losses[0], rel=2**-24 * 256 * 7)
    assert losses[3] == pytest.approx(losses[2], rel=2**-24 * 256 * 7)
    parameters = (64 * 3 + 64 + 64 * 4 * 2 + 64 * 6) * 64  # of the block, without biases: a lower bound
    assert rows["cftp"]["tcp_bytes"] == rows["cftp"]["mpi_bytes"] == rows["cftp"]["shared_bytes"] == 0
    assert rows["dp"]["shared_bytes"] >= 2 * 4 * parameters  # each of two ranks passes its fp32 gradients on once
    activations = 2 * 256 * 64 * 4
    assert rows["dp+tp"]["shared_bytes"] >= 2 * 4 * activations  # two sums forward and two backward, from each rank
    assert rows["dp+tp-gloo"]["tcp_bytes"] >= 2 * 4 * activations
    assert rows["dp+tp-gloo"]["shared_bytes"] == 0
    assert all(row["peak_pss_bytes"] > 0 for row in rows.values())
    assert "cftp over the other strategies" in capsys.readouterr().out


@pytest.mark.sampled("benches")
@pytest.mark.slow
def test_run_over_the_memory_limit_is_reported_as_oom(tmp_path, capsys):
    path = tmp_path / "strategies.json"
    limit = ["--memory-limit", "0.3", "--strategies", "cftp"]
    line = ["bench", "strategies", "--models", "B/2", "--batches", "2", "--rounds", "2", "--json", str(path), *limit]
    assert main(line) == 1
    row = json.loads(path.read_text())["cells"][0]["strategies"]["cftp"]
    assert row["status"] == "oom", row
    assert " - " in capsys.readouterr().out.replace("-\n", "- \n")
