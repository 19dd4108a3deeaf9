"""Tests of the planner against a simulator that tracks every byte, and against steps planned by hand."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dithc.engine.automem.planning.planner as planner
import dithc.engine.automem.planning.timeline as timelines
from dithc.engine.automem.planning.decision import MemoryLevel
from dithc.engine.automem.planning.document import Plan
from dithc.engine.automem.planning.occupancy import Occupancy, occupancy
from dithc.engine.automem.planning.planner import make_plan
from dithc.engine.automem.trace import StateItem, Trace
from tests.engine.automem.steps import Simulation, blocks, level, tensor, traces, unit

RATES = st.sampled_from([0.5, 10.0, 60.0, 1e3, 1e9])
SLOW = level("ddr", None, 100.0)


HEAVY_FIRST = Trace(  # a weight load with free memory, and long computation without
    units=(unit("a", weight=10, working=(1, 1)), unit("b"), unit("c", working=(10, 10))), outside_bytes=0
)


def planned(
    trace: Trace, budget: int | None, *, rate: float = 100.0, slow: MemoryLevel = SLOW, recompute: bool = False
) -> Plan:
    fast, slow = level("hbm", budget, 1e12), replace(slow, copy_bytes_per_second=rate, read_bytes_per_second=rate)
    return make_plan(trace, fast=fast, slow=slow, allow_recompute=recompute)


def moved_bytes(result: Plan) -> int:
    """Return the bytes per step between the levels: copies, and weights read in place."""
    return result.in_place_bytes + sum(phase.load_bytes + phase.offload_bytes for phase in result.phases)


def resident_peak_bytes(trace: Trace) -> int:
    """Return the peak bytes of the step with everything in fast memory."""
    return planned(trace, None).peak_fast_bytes


@settings(max_examples=80, deadline=None)
@given(trace=traces(), share=st.floats(0, 1), rate=RATES, recompute=st.booleans())
def test_simulated_plan_respects_budget_and_matches_predicted_bytes(
    trace: Trace, share: float, rate: float, recompute: bool
) -> None:
    budget = int(resident_peak_bytes(trace) * share)
    result = planned(trace, budget, rate=rate, recompute=recompute)
    simulation = Simulation(trace, result)
    if result.fits:
        assert max(simulation.peaks) <= budget
        assert simulation.missing_bytes <= 0
        assert result.peak_fast_bytes <= budget
    else:
        assert max(simulation.peaks) > budget
    for phase in result.phases:
        assert phase.fast_bytes == sum(phase.fast_parts.values())
        assert phase.slow_bytes == sum(phase.slow_parts.values())
        assert min([*phase.fast_parts.values(), *phase.slow_parts.values(), phase.stall_seconds]) >= 0
    assert sum(phase.load_bytes for phase in result.phases) == simulation.loaded_bytes
    assert sum(phase.offload_bytes for phase in result.phases) == simulation.offloaded_bytes
    counted = occupancy(trace, result.units, result.state)[0].totals()
    assert counted == Simulation(trace, result, eager=True).peaks
    assert all(phase.fast_bytes >= least for phase, least in zip(result.phases, counted, strict=True))


@settings(max_examples=30, deadline=None)
@given(trace=traces(), rate=RATES)
def test_larger_budget_moves_no_more_bytes_and_still_fits(trace: Trace, rate: float) -> None:
    top = resident_peak_bytes(trace)
    results = [planned(trace, budget, rate=rate) for budget in sorted({top * step // 12 for step in range(13)})]
    for smaller, larger in pairwise(results):
        assert larger.fits >= smaller.fits
        assert moved_bytes(larger) <= moved_bytes(smaller)
    assert results[-1].everything_resident
    assert moved_bytes(results[-1]) == 0


@settings(max_examples=60, deadline=None)
@given(trace=traces(), share=st.floats(0, 1), rate=RATES)
def test_recomputation_never_lengthens_the_predicted_step(trace: Trace, share: float, rate: float) -> None:
    budget = int(resident_peak_bytes(trace) * share)
    without, allowed = planned(trace, budget, rate=rate), planned(trace, budget, rate=rate, recompute=True)
    assert not any(decision.recompute for decision in without.units.values())
    assert allowed.fits == without.fits
    assert allowed.step_seconds <= without.step_seconds * (1 + 1e-9)


def test_sufficient_budget_keeps_everything_resident() -> None:
    trace = blocks(6)
    top = resident_peak_bytes(trace)
    enough, short = planned(trace, top), planned(trace, top - 1)
    assert enough.everything_resident
    assert enough.reasons[0].startswith("everything resident")
    assert not short.everything_resident
    assert short.fits


def test_tensor_is_offloaded_after_last_use_and_loaded_for_first_reader() -> None:
    # Created by the first unit and also used by the second; a third runs in between.
    shared = tensor(0, 50, 3, 2)
    units = (unit("a", saved=(shared,), working=(50, 0)), unit("b"), unit("c"), unit("d", working=(40, 40)))
    result = planned(Trace(units=units, outside_bytes=0), 60)
    saved_bytes = [phase.fast_parts["saved"] for phase in result.phases]
    assert result.units["a"].saved == ("offload",)
    assert result.units["b"].backward_ahead == 1
    assert result.units["a"].backward_ahead == 0
    #        a  b   c  d | d  c   b   a  update
    assert saved_bytes == [0, 50, 50, 0, 0, 50, 50, 50, 0]
    assert [phase.offload_bytes for phase in result.phases] == [0, 0, 50, 0, 0, 0, 0, 0, 0]
    assert [phase.load_bytes for phase in result.phases] == [0, 0, 0, 0, 0, 50, 0, 0, 0]


def test_loads_and_offloads_use_separate_rates() -> None:
    fast = level("hbm", 60, 1e12)
    units = (unit("a", saved=(tensor(0, 50, 2),), working=(50, 0)), unit("b", working=(60, 60)), unit("c"))
    trace = Trace(units=units, outside_bytes=0)  # `b` needs the memory of the tensor saved by `a`

    def stalls(*rates: float) -> list[float]:
        result = make_plan(trace, fast=fast, slow=level("disk", None, *rates))
        assert result.units["a"].saved == ("offload",)
        return [phase.stall_seconds for phase in result.phases]

    #                       a  b  c | c  b  a  update
    assert stalls(50.0, 10.0) == [0, 1, 0, 0, 0, 5, 0]
    assert stalls(10.0, 50.0) == [0, 5, 0, 0, 0, 1, 0]
    assert stalls(10.0) == [0, 5, 0, 0, 0, 5, 0]


@pytest.mark.parametrize("recompute", [False, True])
def test_number_of_simulations_hardly_grows_with_units(monkeypatch: pytest.MonkeyPatch, recompute: bool) -> None:
    calls = []

    def counted(*arguments: Any, **options: Any) -> tuple[Occupancy, Occupancy]:
        calls.append(len(arguments[0].units))
        return occupancy(*arguments, **options)

    for module in (planner, timelines):
        monkeypatch.setattr(module, "occupancy", counted)
    for num_blocks in (16, 256):
        result = planned(blocks(num_blocks), 15 * num_blocks, rate=3.0, recompute=recompute)
        assert result.fits
        assert any(decision.recompute for decision in result.units.values()) == recompute
    assert calls.count(256) <= calls.count(16) + 40  # one call per bisection step over demotions and units


def test_unhidden_first_load_stalls_the_first_slot() -> None:
    result = planned(HEAVY_FIRST, 12, rate=10.0)
    assert result.units["a"].weights == "copied"
    assert (result.units["a"].forward_ahead, result.units["a"].backward_ahead) == (0, 1)
    assert [phase.stall_seconds for phase in result.phases] == [1.0] + 6 * [0.0]
    assert result.step_seconds == 1.0 + 3 * (1.0 + 2.0)


def test_oversized_plan_reports_slot_bytes_and_fix() -> None:
    result = planned(blocks(6), 20)
    assert not result.fits
    reason = result.reasons[-1]
    assert "hbm is short of 26 B in backward of block5" in reason
    assert "at least 46 B of hbm" in reason
    assert "smaller batch" in reason
    assert planned(blocks(6), 46).fits


def test_short_slow_memory_is_reported_and_recomputation_fits() -> None:
    trace = blocks(8)
    peak = max(phase.slow_bytes for phase in planned(trace, 120).phases)
    slow = replace(SLOW, budget_bytes=peak - 1)
    without = planned(trace, 120, slow=slow)
    assert not without.fits
    assert "ddr is short of 1 B" in without.reasons[-1]
    assert "allow_recompute" in without.reasons[-1]
    recomputed = planned(trace, 120, slow=slow, recompute=True)
    assert recomputed.fits
    assert sum(decision.recompute for decision in recomputed.units.values()) == 1


def test_units_are_recomputed_if_copies_are_slower() -> None:
    trace = blocks(8)
    slow_copies = planned(trace, 120, rate=3.0)
    recomputed = planned(trace, 120, rate=3.0, recompute=True)
    assert any(decision.recompute for decision in recomputed.units.values())
    assert recomputed.step_seconds < slow_copies.step_seconds
    assert recomputed.fits
    hidden = planned(trace, 120, rate=1e6, recompute=True)
    assert not any(decision.recompute for decision in hidden.units.values())


def test_inputs_of_a_recomputed_unit_have_one_decision() -> None:
    saved = (tensor(0, 9, 3, is_input=True), tensor(1, 9, 3, is_input=True), tensor(2, 90, 3))
    first = unit("a", saved=saved, seconds=(0.1, 0.2), working=(90, 5))
    units = (first, unit("b"), unit("c"), unit("d", working=(60, 60)))
    for budget in range(60, 170, 5):
        decision = planned(Trace(units=units, outside_bytes=0), budget, rate=1.0, recompute=True).units["a"]
        if decision.recompute:
            assert decision.saved[0] == decision.saved[1]
            assert decision.saved[2] == "keep"
            return
    pytest.fail("no budget made the unit run again")


def test_dit_xl_2_fits_40_percent_of_peak_memory_with_short_stalls() -> None:
    trace = xl_2(batch=8)
    top = resident_peak_bytes(trace)
    result = planned(trace, top * 2 // 5, rate=5e9)
    assert result.fits
    assert max(Simulation(trace, result).peaks) <= top * 2 // 5
    assert set(result.state.values()) == {"slow"}
    assert result.stall_seconds <= 0.1 * result.step_seconds


def test_step_without_units_contains_only_the_update() -> None:
    trace = Trace(units=(), outside_bytes=5, state=(StateItem(name="m", bytes=7),))
    assert planned(trace, 12).everything_resident
    assert planned(trace, 6).state == {"m": "slow"}
    assert not planned(trace, 4).fits


def xl_2(*, batch: int) -> Trace:
    """Return DiT-XL/2 in fp32 by its shapes: 28 blocks of width 1152, 256 tokens; 150 GFLOP/s."""
    width, row = 1152, batch * 256 * 1152 * 4
    weight, seconds = 18 * width * width * 4, 2 * batch * 256 * 12 * width * width / 150e9
    units = []
    for index in range(28):
        sizes = [row] * 9 + [3 * row, 4 * row, 4 * row]
        saved = [tensor(ordinal, size, 27 - index, is_input=ordinal == 0) for ordinal, size in enumerate(sizes)]
        block = unit(f"blocks.{index}", weight=weight, saved=tuple(saved), seconds=(seconds, 2 * seconds))
        units.append(
            replace(block, forward_bytes=24 * row, backward_bytes=12 * row + weight, backward_carried_bytes=row)
        )
    state = tuple(StateItem(name=name, bytes=28 * weight) for name in ("first moments", "second moments", "average"))
    return Trace(units=tuple(units), outside_bytes=10 << 20, state=state, update_seconds=0.5)
