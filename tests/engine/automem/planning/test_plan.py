"""Tests of the planner against a simulator that tracks every byte, and against steps planned by hand."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dithc.engine.automem.planning.planner as planner
import dithc.engine.automem.planning.timeline as timelines
from dithc.core.logging import UserError
from dithc.engine.automem.planning.decision import MemoryLevel
from dithc.engine.automem.planning.document import Plan
from dithc.engine.automem.planning.occupancy import Occupancy, occupancy
from dithc.engine.automem.planning.planner import make_plan
from dithc.engine.automem.trace import SavedTensor, StateItem, Trace
from tests.engine.automem.steps import Played, blocks, traces, unit

RATES = st.sampled_from([0.5, 10.0, 60.0, 1e3, 1e9])
SLOW = MemoryLevel(name="ddr", budget_bytes=None, copy_bytes_per_second=100.0)


HEAVY_FIRST = Trace(  # a weight load with free memory, and long computation without
    units=(unit("a", weight=10, working=(1, 1)), unit("b"), unit("c", working=(10, 10))), outside_bytes=0
)


def planned(
    trace: Trace, budget: int | None, *, rate: float = 100.0, slow: MemoryLevel = SLOW, recompute: bool = False
) -> Plan:
    fast = MemoryLevel(name="hbm", budget_bytes=budget, copy_bytes_per_second=1e12)
    return make_plan(trace, fast=fast, slow=replace(slow, copy_bytes_per_second=rate), allow_recompute=recompute)


def moved_bytes(result: Plan) -> int:
    """Return the bytes per step between the levels: copies, and weights read in place."""
    return result.in_place_bytes + sum(phase.load_bytes + phase.offload_bytes for phase in result.phases)


def whole(trace: Trace) -> int:
    """Return the peak bytes of the step with everything in fast memory."""
    return planned(trace, None).peak_fast_bytes


@settings(max_examples=80, deadline=None)
@given(trace=traces(), share=st.floats(0, 1), rate=RATES, recompute=st.booleans())
def test_a_plan_that_is_played_keeps_its_budget_and_moves_the_predicted_bytes(
    trace: Trace, share: float, rate: float, recompute: bool
) -> None:
    budget = int(whole(trace) * share)
    result = planned(trace, budget, rate=rate, recompute=recompute)
    played = Played(trace, result)
    if result.fits:
        assert max(played.peaks) <= budget
        assert played.short_of_room <= 0
        assert result.peak_fast_bytes <= budget
    else:
        assert max(played.peaks) > budget
    for phase in result.phases:
        assert phase.fast_bytes == sum(phase.fast_parts.values())
        assert phase.slow_bytes == sum(phase.slow_parts.values())
        assert min([*phase.fast_parts.values(), *phase.slow_parts.values(), phase.stall_seconds]) >= 0
    assert sum(phase.load_bytes for phase in result.phases) == played.loaded_bytes
    assert sum(phase.offload_bytes for phase in result.phases) == played.offloaded_bytes
    counted = occupancy(trace, result.units, result.state)[0].totals()
    assert counted == Played(trace, result, eager=True).peaks
    assert all(phase.fast_bytes >= least for phase, least in zip(result.phases, counted, strict=True))


@settings(max_examples=30, deadline=None)
@given(trace=traces(), rate=RATES)
def test_a_larger_budget_never_moves_more_and_never_stops_fitting(trace: Trace, rate: float) -> None:
    top = whole(trace)
    results = [planned(trace, budget, rate=rate) for budget in sorted({top * step // 12 for step in range(13)})]
    for smaller, larger in pairwise(results):
        assert larger.fits >= smaller.fits
        assert moved_bytes(larger) <= moved_bytes(smaller)
    assert results[-1].everything_resident
    assert moved_bytes(results[-1]) == 0


@settings(max_examples=60, deadline=None)
@given(trace=traces(), share=st.floats(0, 1), rate=RATES)
def test_recomputation_only_ever_shortens_the_predicted_step(trace: Trace, share: float, rate: float) -> None:
    budget = int(whole(trace) * share)
    without, allowed = planned(trace, budget, rate=rate), planned(trace, budget, rate=rate, recompute=True)
    assert not any(decision.recompute for decision in without.units.values())
    assert allowed.fits == without.fits
    assert allowed.step_seconds <= without.step_seconds * (1 + 1e-9)


def test_what_fits_stays_to_the_byte() -> None:
    trace = blocks(6)
    top = whole(trace)
    enough, short = planned(trace, top), planned(trace, top - 1)
    assert enough.everything_resident
    assert enough.reasons[0].startswith("everything resident")
    assert not short.everything_resident
    assert short.fits


def test_a_tensor_leaves_after_its_last_use_and_returns_for_its_first_reader() -> None:
    # Created by the first unit and also used by the second; a third runs in between.
    shared = SavedTensor(ordinal=0, bytes=50, last_reader=3, first_reader=2)
    units = (unit("a", saved=(shared,), working=(50, 0)), unit("b"), unit("c"), unit("d", working=(40, 40)))
    result = planned(Trace(units=units, outside_bytes=0), 60)
    held = [phase.fast_parts["saved"] for phase in result.phases]
    assert result.units["a"].saved == ("offload",)
    assert result.units["b"].backward_ahead == 1
    assert result.units["a"].backward_ahead == 0
    #        a  b   c  d | d  c   b   a  update
    assert held == [0, 50, 50, 0, 0, 50, 50, 50, 0]
    assert [phase.offload_bytes for phase in result.phases] == [0, 0, 50, 0, 0, 0, 0, 0, 0]
    assert [phase.load_bytes for phase in result.phases] == [0, 0, 0, 0, 0, 50, 0, 0, 0]


def test_loads_and_offloads_have_rates_of_their_own() -> None:
    fast = MemoryLevel(name="hbm", budget_bytes=60, copy_bytes_per_second=1e12)
    units = (
        unit("a", saved=(SavedTensor(ordinal=0, bytes=50, last_reader=2),), working=(50, 0)),
        unit("b", working=(60, 60)),
    )
    trace = Trace(units=(*units, unit("c")), outside_bytes=0)  # `b` needs the memory of the tensor saved by `a`

    def stalls(**rates: float) -> list[float]:
        result = make_plan(trace, fast=fast, slow=MemoryLevel(name="disk", budget_bytes=None, **rates))
        assert result.units["a"].saved == ("offload",)
        return [phase.stall_seconds for phase in result.phases]

    #                       a  b  c | c  b  a  update
    assert stalls(copy_bytes_per_second=50.0, read_bytes_per_second=10.0) == [0, 1, 0, 0, 0, 5, 0]
    assert stalls(copy_bytes_per_second=10.0, read_bytes_per_second=50.0) == [0, 5, 0, 0, 0, 1, 0]
    assert stalls(copy_bytes_per_second=10.0) == [0, 5, 0, 0, 0, 5, 0]


@pytest.mark.parametrize("recompute", [False, True])
def test_how_often_a_whole_step_is_played_hardly_grows_with_the_units(
    monkeypatch: pytest.MonkeyPatch, recompute: bool
) -> None:
    calls = []

    def counted(*arguments: Any, **named: Any) -> tuple[Occupancy, Occupancy]:
        calls.append(len(arguments[0].units))
        return occupancy(*arguments, **named)

    for module in (planner, timelines):
        monkeypatch.setattr(module, "occupancy", counted)
    for num_blocks in (16, 256):
        result = planned(blocks(num_blocks), 15 * num_blocks, rate=3.0, recompute=recompute)
        assert result.fits
        assert any(decision.recompute for decision in result.units.values()) == recompute
    assert calls.count(256) <= calls.count(16) + 40  # one call per bisection step over rungs and units


def test_a_first_load_that_nothing_hides_is_waited_for() -> None:
    result = planned(HEAVY_FIRST, 12, rate=10.0)
    assert result.units["a"].weights == "copied"
    assert (result.units["a"].forward_ahead, result.units["a"].backward_ahead) == (0, 1)
    assert [phase.stall_seconds for phase in result.phases] == [1.0] + 6 * [0.0]
    assert result.step_seconds == 1.0 + 3 * (1.0 + 2.0)


def test_what_cannot_fit_says_where_how_much_and_what_to_do() -> None:
    result = planned(blocks(6), 20)
    assert not result.fits
    said = result.reasons[-1]
    assert "hbm is short of 26 B in backward of block5" in said
    assert "at least 46 B of hbm" in said
    assert "smaller batch" in said
    assert planned(blocks(6), 46).fits


def test_slow_memory_that_is_short_is_named_and_recomputation_mends_it() -> None:
    trace = blocks(8)
    need = max(phase.slow_bytes for phase in planned(trace, 120).phases)
    slow = replace(SLOW, budget_bytes=need - 1)
    without = planned(trace, 120, slow=slow)
    assert not without.fits
    assert "ddr is short of 1 B" in without.reasons[-1]
    assert "allow_recompute" in without.reasons[-1]
    mended = planned(trace, 120, slow=slow, recompute=True)
    assert mended.fits
    assert sum(decision.recompute for decision in mended.units.values()) == 1


def test_units_run_again_where_copies_are_slower_than_computing() -> None:
    trace = blocks(8)
    slow_copies = planned(trace, 120, rate=3.0)
    again = planned(trace, 120, rate=3.0, recompute=True)
    assert any(decision.recompute for decision in again.units.values())
    assert again.step_seconds < slow_copies.step_seconds
    assert again.fits
    hidden = planned(trace, 120, rate=1e6, recompute=True)
    assert not any(decision.recompute for decision in hidden.units.values())


def test_the_inputs_of_a_unit_that_runs_again_are_treated_alike() -> None:
    saved = (
        SavedTensor(ordinal=0, bytes=9, last_reader=3, is_input=True),
        SavedTensor(ordinal=1, bytes=9, last_reader=3, is_input=True),
        SavedTensor(ordinal=2, bytes=90, last_reader=3),
    )
    units = (
        unit("a", saved=saved, seconds=(0.1, 0.2), working=(90, 5)),
        unit("b"),
        unit("c"),
        unit("d", working=(60, 60)),
    )
    for budget in range(60, 170, 5):
        decision = planned(Trace(units=units, outside_bytes=0), budget, rate=1.0, recompute=True).units["a"]
        if decision.recompute:
            assert decision.saved[0] == decision.saved[1]
            assert decision.saved[2] == "keep"
            return
    pytest.fail("no budget made the unit run again")


def test_xl_2_fits_into_two_fifths_of_what_it_takes_and_hardly_waits() -> None:
    trace = xl_2(batch=8)
    top = whole(trace)
    result = planned(trace, top * 2 // 5, rate=5e9)
    assert result.fits
    assert max(Played(trace, result).peaks) <= top * 2 // 5
    assert set(result.state.values()) == {"slow"}
    assert result.stall_seconds <= 0.1 * result.step_seconds


def test_a_step_without_units_has_only_an_update() -> None:
    trace = Trace(units=(), outside_bytes=5, state=(StateItem(name="m", bytes=7),))
    assert planned(trace, 12).everything_resident
    assert planned(trace, 6).state == {"m": "slow"}
    assert not planned(trace, 4).fits


@pytest.mark.parametrize(("rate", "budget"), [(0.0, 10), (-1.0, 10), (float("nan"), 10), (1.0, -1)])
def test_a_level_without_a_rate_or_below_zero_is_refused(rate: float, budget: int) -> None:
    with pytest.raises(UserError, match=r"memory level hbm(.|\n)*fix"):
        make_plan(blocks(2), fast=MemoryLevel(name="hbm", budget_bytes=budget, copy_bytes_per_second=rate), slow=SLOW)


def xl_2(*, batch: int) -> Trace:
    """Return DiT-XL/2 in fp32 by its shapes: 28 blocks of width 1152, 256 tokens; 150 GFLOP/s."""
    width, row = 1152, batch * 256 * 1152 * 4
    weight, seconds = 18 * width * width * 4, 2 * batch * 256 * 12 * width * width / 150e9
    units = []
    for index in range(28):
        sizes = [row] * 9 + [3 * row, 4 * row, 4 * row]
        saved = [
            SavedTensor(ordinal=ordinal, bytes=size, last_reader=27 - index, is_input=ordinal == 0)
            for ordinal, size in enumerate(sizes)
        ]
        block = unit(f"blocks.{index}", weight=weight, saved=tuple(saved), seconds=(seconds, 2 * seconds))
        units.append(
            replace(block, forward_bytes=24 * row, backward_bytes=12 * row + weight, backward_carried_bytes=row)
        )
    state = tuple(StateItem(name=name, bytes=28 * weight) for name in ("first moments", "second moments", "average"))
    return Trace(units=tuple(units), outside_bytes=10 << 20, state=state, update_seconds=0.5)
