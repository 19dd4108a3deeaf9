"""Tests of `machine.strategy: auto`: settings of plans, and an error without a plan."""

from pathlib import Path

import pytest

from dithc.config import ExperimentConfig, load
from dithc.core.logging import UserError
from dithc.engine.cost import records
from dithc.workflow.planned_settings import with_plans

MACHINE = {"launcher": "mpiexec", "strategy": "dp", "ranks_per_node": 2, "cpus_per_rank": 1, "sharding": "zero1"}


def experiment_of(tmp_path: Path, strategy: str = "auto") -> ExperimentConfig:
    run = {"dataset": "a", "global_batch_size": 8, "checkpoint_every": 10}
    dataset = {
        "title": "A",
        "source": {"kind": "image-folder", "size": 32, "synthetic": {"scenes": 2, "size": 64, "classes": 1}},
        "tiles": {"size": 32},
        "rendering": {"bands": ["R", "G", "B"], "low": 0, "high": 255},
        "codec": "pixels",
    }
    content = {
        "name": "x",
        "results": str(tmp_path),
        "datasets": {"a": dataset},
        "codecs": {"pixels": {"kind": "pixel"}},
    }
    content |= {
        "runs": {"large": run | {"steps": 1000}, "small": run | {"steps": 10}},
        "machine": {"strategy": strategy},
    }
    return load(content)


def write(tmp_path: Path, name: str, *, micro_batch: int, machine: dict) -> None:
    runs = {name: {"micro_batch_size": micro_batch, "activation_checkpointing": "block"}}
    network = records.network_settings(experiment_of(tmp_path).runs[name])
    record = {"plans": [{}], "network": network, "settings": {"machine": machine, "runs": runs}}
    records.write_plan(records.plan_path(tmp_path / "x", name), record)


def test_plan_of_the_largest_run_sets_the_machine_and_each_plan_its_run(tmp_path):
    write(tmp_path, "large", micro_batch=2, machine=MACHINE)
    write(tmp_path, "small", micro_batch=1, machine=MACHINE | {"strategy": "cftp"})
    found = with_plans(experiment_of(tmp_path))
    assert {key: getattr(found.machine, key) for key in MACHINE} == MACHINE
    assert [run.micro_batch_size for run in found.runs.values()] == [2, 1]
    assert found.runs["large"].activation_checkpointing == "block"


def test_given_strategy_ignores_plans(tmp_path):
    write(tmp_path, "large", micro_batch=2, machine=MACHINE)
    experiment = experiment_of(tmp_path, "cftp")
    assert with_plans(experiment) is experiment


def test_auto_without_a_plan_is_an_error_with_the_command(tmp_path):
    write(tmp_path, "small", micro_batch=1, machine=MACHINE)
    with pytest.raises(UserError, match="dithc plan --config FILE --run large"):
        with_plans(experiment_of(tmp_path))


@pytest.mark.parametrize("name", ["large", "small"])
@pytest.mark.parametrize("fault", ["damaged", "for another global_batch_size"])
def test_invalid_plan_is_an_error_with_its_reason(tmp_path, name, fault):
    for run in ("large", "small"):
        write(tmp_path, run, micro_batch=1, machine=MACHINE)
    path = records.plan_path(tmp_path / "x", name)
    if fault == "damaged":
        path.write_text(path.read_text()[:-20])
    else:
        record = dict(records.read_plan(path))
        record.pop("checksum", None)
        records.write_plan(path, record | {"network": record["network"] | {"global_batch_size": 9}})
    with pytest.raises(UserError, match=f"is {fault}(.|\n)*--run {name}"):
        with_plans(experiment_of(tmp_path))


def test_auto_is_not_a_strategy_of_started_ranks(tmp_path):
    with pytest.raises(UserError, match=r"machine\.strategy"):
        _ = experiment_of(tmp_path).machine.rank_strategy
