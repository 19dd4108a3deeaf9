"""Interleaving, ratios within rounds, spreads and means."""

import pytest

from dithc.bench.timing import Timing, geometric_mean, loops_for, spread, take_turns


def test_runs_take_turns_and_every_other_round_is_reversed():
    order = []
    timings = take_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert all(len(timing.seconds) == 3 for timing in timings.values())


def test_a_run_with_loops_is_made_as_often_for_one_time():
    order = []
    timings = take_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=1, loops={"b": 3})
    assert order == ["a", "b", "b", "b"]
    assert len(timings["b"].seconds) == 1


def test_loops_fill_the_time_and_a_long_run_is_made_once():
    calls = []
    loops = loops_for({"short": lambda: None, "long": lambda: calls.append(sum(range(100_000)))}, seconds=1e-4)
    assert loops["short"] > 10
    assert loops["long"] == 1
    assert len(calls) == 2  # the first call is warm-up


def test_a_ratio_is_taken_within_each_round():
    base, other = Timing((1.0, 10.0, 2.0)), Timing((2.0, 5.0, 4.0))
    assert other.ratios_to(base) == (2.0, 0.5, 2.0)
    assert other.ratio_to(base) == 2.0
    assert (base.median, base.to_dict()["mad"]) == (2.0, 1.0)


def test_times_of_parts_add_up_round_by_round():
    assert Timing((1.0, 2.0)) + Timing((3.0, 5.0)) == Timing((4.0, 7.0))


def test_spread_and_geometric_mean():
    assert spread([1.0, 2.0, 6.0]) == {"median": 2.0, "mad": 1.0, "rounds": [1.0, 2.0, 6.0]}
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert geometric_mean([]) == 0
