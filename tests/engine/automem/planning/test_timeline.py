"""Tests of the predicted timeline against steps computed by hand."""

from dataclasses import replace

import pytest

from dithc.engine.automem.planning.decision import CopyBandwidth, Phase, UnitDecision
from dithc.engine.automem.planning.timeline import timeline
from dithc.engine.automem.trace import Trace
from tests.engine.automem.steps import level, tensor, unit

STAYS = UnitDecision(weights="fast", gradients="fast", saved=())


def run_timeline(
    trace: Trace, budget: int | None, *, rate: float = 10.0, **decisions: UnitDecision
) -> tuple[Phase, ...]:
    every = {unit.name: decisions.get(unit.name, STAYS) for unit in trace.units}
    fast = level("hbm", budget, 1e9)
    return timeline(trace, every, {}, fast=fast, rates=CopyBandwidth(rate, rate))


def stalls(phases: tuple[Phase, ...]) -> list[float]:
    return [pytest.approx(phase.stall_seconds) for phase in phases]


def test_slot_waits_for_the_rest_of_a_load() -> None:
    trace = Trace(units=(unit("a"), unit("b", weight=25)), outside_bytes=0)  # 2.5 seconds of copying, 1 of computing
    phases = run_timeline(trace, None, b=replace(STAYS, weights="copied", forward_ahead=1, backward_ahead=1))
    #                        a    b    b    a  update; kept between b's slots
    assert stalls(phases) == [0, 1.5, 0, 0, 0]
    assert [phase.load_bytes for phase in phases] == [25, 0, 0, 0, 0]
    assert [phase.fast_parts["weights"] for phase in phases] == [25, 25, 25, 0, 0]


def test_loads_are_executed_sequentially() -> None:
    trace = Trace(units=(unit("a"), unit("b", weight=8), unit("c", weight=8)), outside_bytes=0)
    both = {
        "b": replace(STAYS, weights="copied", forward_ahead=1, backward_ahead=3),
        "c": replace(STAYS, weights="copied", forward_ahead=2, backward_ahead=1),
    }
    phases = run_timeline(trace, None, **both)
    # Loads of b and c run from 0.0 to 1.6. b runs from 1.0 on and does not need the load of c.
    assert stalls(phases) == [0, 0, 0, 0, 0, 0, 0]
    slower = run_timeline(trace, None, rate=5.0, **both)  # 0.0 to 1.6 to 3.2
    assert stalls(slower)[:3] == [0, 0.6, 0.6]


def test_slot_waits_for_memory_only_if_needed() -> None:
    saved = tensor(0, 50, 2)
    units = (unit("a", saved=(saved,), working=(50, 5)), unit("b", working=(10, 10)), unit("c", working=(45, 45)))
    leaves = replace(STAYS, saved=("offload",), backward_ahead=1)
    phases = run_timeline(Trace(units=units, outside_bytes=0), 60, a=leaves)
    # The tensor is offloaded from 1.0 to 6.0. It fits next to b but not next to c (from 2.0 on). It returns while b
    # runs.
    assert stalls(phases) == [0, 0, 4.0, 0, 0, 3.0, 0]
    assert [phase.fast_parts["saved"] for phase in phases] == [0, 50, 0, 0, 50, 50, 0]
    assert [phase.slow_parts["saved"] for phase in phases] == [0, 50, 50, 50, 50, 50, 0]
    without_budget = run_timeline(Trace(units=units, outside_bytes=0), None, a=leaves)
    assert stalls(without_budget) == [0, 0, 0, 0, 0, 4.0, 0]  # loaded from 6 to 11, needed at 7
    assert without_budget[2].fast_parts["saved"] == 50


def test_load_starts_after_the_offload_of_the_same_tensor() -> None:
    saved = tensor(0, 60, 1)
    trace = Trace(units=(unit("a", saved=(saved,), working=(60, 0)), unit("b")), outside_bytes=0)
    phases = run_timeline(trace, None, a=replace(STAYS, saved=("offload",), backward_ahead=1))
    # Out from 1 to 7, back from 7 to 13; b's backward pass ends at 4.
    assert stalls(phases) == [0, 0, 0, 9.0, 0]


def test_recomputed_unit_adds_forward_seconds_to_backward() -> None:
    saved = (tensor(0, 10, 1, is_input=True), tensor(1, 40, 1))
    trace = Trace(units=(unit("a", saved=saved, working=(45, 20)), unit("b")), outside_bytes=0, update_seconds=0.5)
    phases = run_timeline(trace, None, a=replace(STAYS, saved=("keep", "keep"), recompute=True))
    assert [phase.seconds for phase in phases] == [1, 1, 2, 3, 0.5]
    assert [phase.fast_parts["saved"] for phase in phases] == [10, 10, 10, 10, 0]
    assert phases[3].fast_parts["working"] == 40 + 20
