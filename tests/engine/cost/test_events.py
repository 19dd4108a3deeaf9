"""Tests of simulated steps: they equal closed-form results in limit cases; ranks of other speed may be omitted."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dithc.engine.cost.events import StepPlan, simulate_step

# 4 buckets, one at each quarter of a backward pass of 8 s, after 5 s of forward pass and optimizer.
PLAN = StepPlan(before=5.0, ready=(2.0, 4.0, 6.0, 8.0), backward=8.0, exchange=(1.0, 1.0, 1.0, 1.0))

plans = st.builds(
    lambda before, parts, exchange: StepPlan(
        before=before,
        ready=tuple(sum(parts[: number + 1]) for number in range(len(parts))),
        backward=sum(parts),
        exchange=tuple((exchange * len(parts))[: len(parts)]),
    ),
    before=st.floats(0, 5),
    parts=st.lists(st.floats(0, 3), min_size=1, max_size=6),
    exchange=st.lists(st.floats(0, 4), min_size=1, max_size=6),
)
speeds = st.lists(st.floats(1.0, 2.0), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("plan", "factors", "seconds", "exposed"),
    [
        (StepPlan(before=5.0, ready=(), backward=8.0, exchange=()), [1.0, 1.5], 13 * 1.5, 0.0),
        (PLAN, [1.0], 14.0, 1.0),  # each exchange but the last is hidden by computation
        (replace(PLAN, exchange=(3.0, 3.0, 3.0, 3.0)), [1.0], 5 + 2 + 4 * 3, 6.0),  # longer than the backward pass
    ],
)
def test_step_time_equals_closed_form(plan, factors, seconds, exposed):
    step = simulate_step(plan, factors)
    assert (step.seconds, step.exposed_seconds) == (pytest.approx(seconds), pytest.approx(exposed))


def test_bucket_exchange_waits_for_the_slowest_rank():
    step = simulate_step(PLAN, [1.0, 2.0])
    assert step.seconds == pytest.approx(2 * 13 + 1)
    assert step.waits[1][0] == pytest.approx(1.0)  # the slowest rank waits for the exchange alone
    assert step.waits[0][0] == pytest.approx(2 * 7 + 1 - 7)  # the other rank submitted its first bucket at 7 s
    assert step.waits[0][1] == pytest.approx(2 * 2)  # afterwards it follows the slowest rank


@settings(max_examples=60)
@given(plan=plans, factors=speeds, number=st.integers(0, 5), more=st.floats(0, 5))
def test_longer_exchange_never_shortens_the_step(plan, factors, number, more):
    longer = list(plan.exchange)
    longer[number % len(longer)] += more
    found = simulate_step(replace(plan, exchange=tuple(longer)), factors).seconds
    assert found >= simulate_step(plan, factors).seconds - 1e-9


@settings(max_examples=60)
@given(plan=plans, factors=speeds)
def test_step_time_is_between_compute_only_and_fully_serial(plan, factors):
    computing = (plan.before + plan.backward) * max(factors)
    step = simulate_step(plan, factors)
    assert computing - 1e-9 <= step.seconds <= computing + sum(plan.exchange) + 1e-9
