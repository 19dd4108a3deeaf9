"""Interleaving, ratios within rounds, spreads and means."""

from functools import partial

import pytest

from dithc.bench.timing import Timing, geometric_mean, loops_for, spread, time_runs


@pytest.mark.parametrize(("repeats", "loops", "expected"), [(3, {}, "abbaab"), (1, {"b": 3}, "abbb")])
def test_runs_alternate_and_loops_repeat_within_a_single_timing(repeats, loops, expected):
    order = []
    runs = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    timings = time_runs(runs, repeats=repeats, loops=loops)
    assert "".join(order) == expected
    assert all(len(timing.seconds) == repeats for timing in timings.values())


TIMES = {"short": 1 / 16, "long": 2.0}  # in seconds


def test_loops_fill_the_time_and_long_runs_execute_once(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("dithc.bench.timing.time.perf_counter", lambda: clock[-1])
    runs = {name: partial(lambda seconds: clock.append(clock[-1] + seconds), one) for name, one in TIMES.items()}
    assert loops_for(runs, seconds=1.0) == {"short": 16, "long": 1}
    assert len(clock) == 1 + 2 * len(runs), "the first call is warm-up"


def test_ratios_are_computed_within_each_round():
    base, other = Timing((1.0, 10.0, 2.0)), Timing((2.0, 5.0, 4.0))
    assert other.ratios_to(base) == (2.0, 0.5, 2.0)
    assert other.ratio_to(base) == 2.0
    assert (base.median, base.to_dict()["mad"]) == (2.0, 1.0)
    assert base + other == Timing((3.0, 15.0, 6.0))


def test_spread_and_geometric_mean_equal_expected_values():
    assert spread([1.0, 2.0, 6.0]) == {"median": 2.0, "mad": 1.0, "rounds": [1.0, 2.0, 6.0]}
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert geometric_mean([]) == 0
