"""Simulation of a training step: computation, bucket readiness, sums.

Ranks compute, buckets become ready, and communication threads sum them in order. A sum begins on all ranks when the
last rank has the bucket ready and the previous sum has ended. It ends on all ranks at the same time. Ranks differ in
speed alone, so that the slowest rank determines every start.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """Step of a rank of average speed; times in seconds.

    Attributes:
        before: computing time before the backward pass: optimizer and forward pass.
        ready: time from the start of the backward pass until each bucket is ready, in order.
        exchange: time to sum each bucket.
    """

    before: float
    ready: tuple[float, ...]
    backward: float
    exchange: tuple[float, ...]


@dataclass(frozen=True)
class StepResult:
    """Time of a step.

    Attributes:
        exposed_seconds: part after the slowest rank's backward pass.
        waits: seconds by rank and bucket between submission (or the end of the previous sum) and the end of its sum, as
            in a profile.
    """

    seconds: float
    exposed_seconds: float
    waits: tuple[tuple[float, ...], ...]


def simulate_step(plan: StepPlan, factors: Sequence[float]) -> StepResult:
    """Simulate one step; `factors` scale the computing time of each simulated rank."""
    slowest, ends = max(factors), [0.0]  # of each sum, after the start of the step
    for ready, exchange in zip(plan.ready, plan.exchange, strict=True):
        ends.append(max(ends[-1], slowest * (plan.before + ready)) + exchange)
    computed = slowest * (plan.before + plan.backward)
    seconds = max(computed, ends[-1])
    waits = tuple(
        tuple(
            end - max(factor * (plan.before + ready), previous)
            for ready, previous, end in zip(plan.ready, ends, ends[1:], strict=False)
        )
        for factor in factors
    )
    return StepResult(seconds, seconds - computed, waits)
