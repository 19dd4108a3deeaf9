"""Tests of the files of plans: estimates for equal settings only, and errors of earlier plans."""

import json

import pytest

from dithc.config import MachineConfig, training
from dithc.engine.cost import records


def run_of(**settings: object) -> training.RunConfig:
    return training.RunConfig.model_validate(
        {"dataset": "x", "global_batch_size": 8, "micro_batch_size": 4, **settings}
    )


def plan_of(run: training.RunConfig) -> dict:
    row = {
        "machine": {"strategy": "dp", "nodes": 1, "ranks_per_node": 2, "cpus_per_rank": 1, "sharding": "none"},
        "run": {"micro_batch_size": 4, "activation_checkpointing": "none"},
        "ranks": 2,
        "data_ranks": 2,
        "ranks_per_node": 2,
        "seconds": 2.0,
        "node_bytes": 4e9,
        "memory": {"weights": 0.5e9, "process": 1.5e9},
    }
    return {"network": records.network_settings(run), "plans": [row]}


MACHINE = {"strategy": "dp", "ranks_per_node": 2, "cpus_per_rank": 1, "launcher": "mpiexec"}


def test_estimate_applies_to_equal_settings_also_if_the_share_is_the_micro_batch():
    plan = plan_of(run_of())
    for run in (run_of(), run_of(micro_batch_size=None), run_of(steps=50), run_of(lr=1e-3)):
        assert records.estimate_of(plan, run, MachineConfig.model_validate(MACHINE))["seconds"] == 2.0


@pytest.mark.parametrize(
    ("run", "machine"),
    [
        ({"global_batch_size": 16}, {}),
        ({"micro_batch_size": 2}, {}),
        ({"activation_checkpointing": "block"}, {}),
        ({"model": {"depth": 2}}, {}),
        ({"dtype": "bf16"}, {}),
        ({}, {"strategy": "cftp"}),
        ({}, {"sharding": "zero1"}),
        ({}, {"ranks_per_node": 4}),
        ({}, {"nodes": 2}),
    ],
)
def test_estimate_of_other_settings_is_none(run, machine):
    plan = plan_of(run_of())
    assert records.estimate_of(plan, run_of(**run), MachineConfig.model_validate(MACHINE | machine)) is None


def test_written_plan_is_read_again_and_a_damaged_one_is_ignored(tmp_path):
    path = records.plan_path(tmp_path, "a")
    assert records.read_plan(path) is None
    records.write_plan(path, plan_of(run_of()))
    assert records.read_plan(path)["plans"][0]["seconds"] == 2.0
    path.write_text(path.read_text().replace("2.0", "3.0"))
    assert records.read_plan(path) is None


def test_errors_of_earlier_plans_are_medians_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert records.earlier_errors() == (0, 0.0, 0.0)
    row = plan_of(run_of())["plans"][0]
    for seconds, rank_bytes in ((2.0, 2_000_000_000), (2.5, 1_600_000_000), (1.0, None)):
        records.append_outcome(row, seconds=seconds, rank_bytes=rank_bytes)
    count, seconds, memory = records.earlier_errors()
    assert count == 3
    assert seconds == pytest.approx(0.2)  # of 0, 0.2 and 1
    assert memory == pytest.approx(0.125)
    lines = (tmp_path / "dithc/plans.jsonl").read_text().splitlines()
    assert [json.loads(line)["seconds"] for line in lines] == [2.0, 2.5, 1.0]
