"""Simulation of a training step: computation, bucket readiness, sums.

Ranks compute, buckets become ready, and communication threads sum them in order. A sum begins on all ranks when the
last rank has the bucket ready and the previous sum has ended. It ends on all ranks at the same time. Ranks differ in
speed alone, so that the slowest rank determines every start.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """Step of a rank of average speed; times in seconds.

    Attributes:
        before: computing time before the backward pass: optimizer and forward pass.
        ready: time from the start of the backward pass until each bucket is ready, in order.
        exchange: time to sum each bucket.
        overlaps: whether sums begin during the backward pass.
        slowdown: factor on computing time during a sum; 1 if communication has its own core.
    """

    before: float
    ready: tuple[float, ...]
    backward: float
    exchange: tuple[float, ...]
    overlaps: bool = True
    slowdown: float = 1.0


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
    slowest, whole = max(factors), plan.before + plan.backward
    # The times at which the speed of computing changes, and the computing time at full speed completed until then.
    times, completed = [0.0], [0.0]
    for ready, exchange in zip(plan.ready, plan.exchange, strict=True):
        due = slowest * (plan.before + ready if plan.overlaps else whole)
        begin = times[-1] + max(0.0, due - completed[-1])
        times += [begin, begin + exchange]
        completed += [max(due, completed[-1]), max(due, completed[-1]) + exchange / plan.slowdown]
    ends = times[::2]  # of each sum, after the start of the step

    def finish_time(work: float) -> float:
        """Return the time at which computation of `work` seconds at full speed is complete."""
        return float(np.interp(work, completed, times)) + max(0.0, work - completed[-1])

    computed = finish_time(slowest * whole)
    seconds = max(computed, ends[-1])
    waits = tuple(
        tuple(
            end - max(finish_time(factor * (plan.before + ready)), previous)
            for ready, previous, end in zip(plan.ready, ends, ends[1:], strict=False)
        )
        for factor in factors
    )
    return StepResult(seconds, seconds - computed, waits)
