"""Tests of step traces: one file per rank, with phases, operators and the communication thread on one clock."""

import json
import logging
from types import SimpleNamespace

import pytest

from dithc.engine.comm import Group
from dithc.engine.comm.traffic import OperationSpan
from dithc.latents import Batches
from dithc.train import train
from dithc.train.monitoring.trace import CLOCK, _lanes
from dithc.train.step.step import Trainer
from tests.ranks import needs_launcher
from tests.train.conftest import rows, store_of
from tests.train.strategies.test_strategies import train_on_ranks

PHASES = {"batch", "forward", "backward", "wait for gradients", "clip", "loss of all ranks", "update"}


def events_of(job, *, step: int, rank: int) -> list[dict]:
    folder = store_of(job).folder
    content = json.loads((folder / "traces" / f"step_{step:07d}-rank{rank}.json").read_text())
    assert CLOCK not in {event.get("name") for event in content["traceEvents"]}
    return content["traceEvents"]


def spans(events, **fields) -> list[dict]:
    return [e for e in events if e.get("ph") == "X" and all(e.get(key) == value for key, value in fields.items())]


def is_inside(event, outer, *, slack=0.0) -> bool:
    """Return whether an event is inside another, both in microseconds."""
    begin, end = outer["ts"] - slack, outer["ts"] + outer["dur"] + slack
    return begin <= event["ts"] and event["ts"] + event["dur"] <= end


def overlap(one, other) -> float:
    """Return the microseconds in which both events were active."""
    end = min(one["ts"] + one["dur"], other["ts"] + other["dur"])
    return float(end - max(one["ts"], other["ts"]))


def test_trace_contains_only_the_requested_step_and_all_phases(job):
    one = job(trace_step=4, micro_batch_size=4)
    train(one, Group())
    folder = store_of(one).folder
    assert [path.name for path in (folder / "traces").iterdir()] == ["step_0000004-rank0.json"]
    events = events_of(one, step=4, rank=0)
    (whole,) = spans(events, name="step 4", cat="user_annotation")
    phases = spans(events, cat="user_annotation")
    names = [event["name"] for event in phases]
    assert {"step 4", "checkpoint", *PHASES} == set(names)
    assert names.count("batch") == names.count("forward") == names.count("backward") == 2
    assert all(is_inside(event, whole) for event in phases)
    operators = spans(events, cat="cpu_op")
    backward = spans(events, name="backward")
    assert sum(is_inside(event, phase) for event in operators for phase in backward) > 10
    assert not spans(events, cat="communication")
    assert Trainer.span("forward").__class__.__name__ == "nullcontext"


def test_metrics_record_the_data_loading_seconds_of_each_step(job, monkeypatch):
    clock, draw = [0.0], Batches.batch

    def slow(self, step, part):
        clock[0] += 2.0 if step else 3.0
        return draw(self, step, part)

    monkeypatch.setattr(Batches, "batch", slow)
    monkeypatch.setattr("dithc.train.step.step.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    one = job(micro_batch_size=4)
    train(one, Group())
    assert [row["data_seconds"] for row in rows(one)] == [6.0, *5 * [4.0]]  # two micro-batches per step


def test_trace_step_outside_the_job_is_reported_without_a_trace(job, caplog):
    caplog.set_level(logging.WARNING)
    one = job(trace_step=7)
    train(one, Group())
    assert "no trace: step 7 is not in this job, which runs steps 1 to 6" in caplog.text
    assert not list(one.paths.store.glob("small-*/traces"))


@pytest.mark.slow
def test_unwritable_trace_logs_a_warning_and_training_continues(job, caplog):
    one = job(until=2)
    train(one, Group())
    folder = store_of(one).folder
    (folder / "traces").write_text("a file where a folder should be")
    assert train(job(trace_step=4), Group()) == 0
    assert "the trace of step 4 could not be written" in caplog.text


def test_overlapping_operations_are_assigned_separate_tracks():
    first, inside, after = (
        OperationSpan("a", 0.0, 2.0, None),
        OperationSpan("b", 1.0, 3.0, 8),
        OperationSpan("c", 2.5, 4.0, None),
    )
    assert _lanes([after, inside, first]) == [[first, after], [inside]]


@pytest.mark.sampled("several ranks")
@pytest.mark.mpi
@pytest.mark.slow
@needs_launcher
def test_two_ranks_write_traces_with_all_reduce_overlapping_backward(job, tmp_path):
    model = {"preset": "DiT-S/2", "hidden_size": 256, "depth": 4, "num_heads": 4}  # gradients of many buckets
    one = job(trace_step=3, until=4, checkpoint_every=4, model=model)
    done = train_on_ranks(tmp_path, [one])
    assert done.returncode == 0, done.stderr
    folder = store_of(one).folder
    names = sorted(path.name for path in (folder / "traces").iterdir())
    assert names == ["step_0000003-rank0.json", "step_0000003-rank1.json"]
    for rank in (0, 1):
        events = events_of(one, step=3, rank=rank)
        assert f"rank {rank}" in {event["args"].get("name") for event in events if event.get("name") == "process_name"}
        (whole,) = spans(events, name="step 3", cat="user_annotation")
        (backward,) = spans(events, name="backward", cat="user_annotation")
        sums = spans(events, cat="communication")
        assert len(sums) > 3
        assert all(is_inside(event, whole, slack=1000.0) for event in sums)  # two clocks, compared on a busy machine
        assert {event["name"] for event in sums} == {"all_reduce"}
        assert {event["tid"] for event in sums} == {1}
        assert sum(event["args"]["bytes"] for event in sums) > 4 * 3_000_000
        assert any(overlap(event, backward) > 0 for event in sums)
        assert any(overlap(event, one) > 0 for event in sums for one in spans(events, cat="cpu_op"))
