"""Discrete-event simulation of a training step: computation, bucket readiness, sums.

Ranks compute, buckets become ready, and communication threads sum them in order. A sum begins on all ranks when the
last rank has the bucket ready and the previous sum has ended. It ends on all ranks at the same time. If ranks differ in
speed alone, the slowest determines every start, so that a step takes exactly as long as a step of the slowest rank
alone.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Plan:
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
class Step:
    """Time of a step.

    Attributes:
        exposed_seconds: part after the slowest rank's backward pass.
        waits: seconds by rank and bucket between submission (or the end of the previous sum) and the end of its sum, as
            in a profile.
    """

    seconds: float
    exposed_seconds: float
    waits: tuple[tuple[float, ...], ...]


class Clock:
    """Event queue ordered by time; simultaneous events keep their order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Schedule an action at a time, not before now."""
        assert time >= self.now
        heapq.heappush(self._events, (time, self._number, action))
        self._number += 1

    def run(self) -> None:
        """Run until the queue is empty."""
        while self._events:
            self.now, _, action = heapq.heappop(self._events)
            action()


@dataclass
class _Rank:
    """Computing state of a rank: completed work and time of the last update."""

    marks: tuple[float, ...]
    speed: float
    done: float = 0.0
    since: float = 0.0
    rate: float = 1.0
    plans: int = 0
    reached: list[float] = field(default_factory=list)


def simulate_step(plan: Plan, factors: Sequence[float]) -> Step:
    """Simulate one step; `factors` scale the computing time of each simulated rank."""
    return _Play(plan, factors).run()


class _Play:
    """State of a simulated step."""

    def __init__(self, plan: Plan, factors: Sequence[float]) -> None:
        marks = tuple(plan.before + share for share in (*plan.ready, plan.backward))
        self.plan, self.clock = plan, Clock()
        self.ranks = [_Rank(marks, 1 / factor) for factor in factors]
        self.begun = 0
        self.ends: list[float] = []

    def run(self) -> Step:
        """Run to the end of the step."""
        for rank in self.ranks:
            self._plan_next_mark(rank)
        self.clock.run()
        computed = max(rank.reached[-1] for rank in self.ranks)
        seconds = max([computed, *self.ends])
        waits = tuple(
            tuple(
                end - max(rank.reached[number], self.ends[number - 1] if number else 0.0)
                for number, end in enumerate(self.ends)
            )
            for rank in self.ranks
        )
        return Step(seconds, seconds - computed, waits)

    def _plan_next_mark(self, rank: _Rank) -> None:
        """Schedule the next mark; an event of an older plan is ignored."""
        rank.plans += 1
        if len(rank.reached) < len(rank.marks):
            number = rank.plans
            left = max(0.0, rank.marks[len(rank.reached)] - rank.done)
            self.clock.at(self.clock.now + left / (rank.rate * rank.speed), lambda: self._reach_mark(rank, number))

    def _reach_mark(self, rank: _Rank, number: int) -> None:
        if number != rank.plans:
            return
        rank.done, rank.since = rank.marks[len(rank.reached)], self.clock.now
        rank.reached.append(self.clock.now)
        self._plan_next_mark(rank)
        self._begin_exchange()

    def _begin_exchange(self) -> None:
        number = self.begun
        needed = number + 1 if self.plan.overlaps else len(self.plan.ready) + 1
        is_idle = len(self.ends) == number < len(self.plan.ready)
        if is_idle and all(len(rank.reached) >= needed for rank in self.ranks):
            self.begun += 1
            self._change_rate(1 / self.plan.slowdown)
            self.clock.at(self.clock.now + self.plan.exchange[number], self._end_exchange)

    def _end_exchange(self) -> None:
        self.ends.append(self.clock.now)
        self._change_rate(1.0)
        self._begin_exchange()

    def _change_rate(self, rate: float) -> None:
        for rank in self.ranks:
            if rank.rate != rate:
                rank.done += (self.clock.now - rank.since) * rank.rate * rank.speed
                rank.since, rank.rate = self.clock.now, rate
                self._plan_next_mark(rank)
