"""Predicted timeline of a step: two copy streams next to computing, with waits for late copies.

Each stream copies one tensor at a time. A turn waits for memory, starts due loads, waits for its own loads, and runs.
Gradients at rest count as offloaded in the backward turn that produces them, at no time, because the product writes
them there.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import add

from dithc.engine.automem.planning.decision import CopyBandwidth, MemoryLevel, Phase, Place, UnitDecision
from dithc.engine.automem.planning.occupancy import occupancy
from dithc.engine.automem.planning.prefetch_distance import compute_seconds
from dithc.engine.automem.planning.schedule import ScheduledPass, schedule_passes
from dithc.engine.automem.trace import Trace

Item = tuple[str, object]  # (unit, "forward" or "backward") of weights, (unit, ordinal) of a saved tensor


@dataclass
class _Stream:
    """A serial copy stream with the start and end of each copy."""

    copy_bytes_per_second: float
    free_at: float = 0.0
    begun: list[tuple[float, int]] = field(default_factory=list)
    ends: dict[Item, float] = field(default_factory=dict)

    def copy(self, item: Item, num_bytes: int, *, not_before: float) -> float:
        begin = max(self.free_at, not_before)
        self.free_at = self.ends[item] = begin + num_bytes / self.copy_bytes_per_second
        self.begun.append((begin, num_bytes))
        return self.free_at


def timeline(
    trace: Trace,
    decisions: Mapping[str, UnitDecision],
    state: Mapping[str, Place],
    *,
    fast: MemoryLevel,
    rates: CopyBandwidth,
) -> tuple[Phase, ...]:
    turns = schedule_passes(trace, decisions)
    in_fast, in_slow = (spans.parts() for spans in occupancy(trace, decisions, state))
    seconds = [*compute_seconds(trace, decisions), trace.update_seconds]
    play = _Play(trace, rates)
    stalls: list[float] = []
    ends: list[float] = []
    for turn, parts in enumerate(in_fast):
        started = ends[-1] if ends else 0.0
        parts["saved"] += play.wait_for_room(sum(parts.values()), fast.budget_bytes)
        if turn < len(turns):
            play.load(turns[turn], turn)
        stalls.append(play.now - started)
        play.now += seconds[turn]
        ends.append(play.now)
        if turn < len(turns):
            play.offload(turns[turn])
    loaded = _by_phase(play.loads.begun, ends)
    offloaded = list(map(add, _by_phase(play.offloads.begun, ends), _gradients(trace, decisions)))
    return tuple(
        Phase(
            name=turns[turn].unit if turn < len(turns) else "update",
            kind=turns[turn].kind if turn < len(turns) else "update",
            seconds=seconds[turn],
            stall_seconds=stalls[turn],
            fast_bytes=sum(in_fast[turn].values()),
            slow_bytes=sum(in_slow[turn].values()),
            fast_parts=in_fast[turn],
            slow_parts=in_slow[turn],
            load_bytes=loaded[turn],
            offload_bytes=offloaded[turn],
        )
        for turn in range(len(in_fast))
    )


class _Play:
    """Simulation state of a step: clock, streams, offloads in progress."""

    def __init__(self, trace: Trace, rates: CopyBandwidth) -> None:
        self.now = 0.0
        self._units = {unit.name: unit for unit in trace.units}
        self._index = {unit.name: index for index, unit in enumerate(trace.units)}
        self._readers: dict[int, list[Item]] = {}
        for unit in trace.units:
            for tensor in unit.saved:
                self._readers.setdefault(len(trace.units) + tensor.first, []).append((unit.name, tensor.ordinal))
        self.loads, self.offloads = _Stream(rates.load), _Stream(rates.offload)
        self._leaving: deque[tuple[float, int]] = deque()
        self._leaving_bytes = 0

    def wait_for_room(self, needed_bytes: int, budget_bytes: int | None) -> int:
        """Wait until the required bytes fit next to offloads in progress, and return the bytes of these."""
        while self._leaving and (
            self._leaving[0][0] <= self.now
            or (budget_bytes is not None and needed_bytes + self._leaving_bytes > budget_bytes)
        ):
            end, num_bytes = self._leaving.popleft()
            self.now = max(self.now, end)
            self._leaving_bytes -= num_bytes
        return self._leaving_bytes

    def load(self, this: ScheduledPass, turn: int) -> None:
        """Start due loads and wait for the loads of this turn."""
        due: list[tuple[Item, int]] = []
        for name in this.load_weights:
            kind = "forward" if self._index[name] >= turn else "backward"
            due.append(((name, kind), self._units[name].weight_bytes))
        for name, ordinal in this.load_saved:
            due.append(((name, ordinal), self._units[name].saved[ordinal].bytes))
        needed: list[Item] = [(this.unit, this.kind), *self._readers.get(turn, [])]
        for item, num_bytes in sorted(due, key=lambda pair: pair[0] not in needed):
            self.loads.copy(item, num_bytes, not_before=max(self.now, self.offloads.ends.get(item, 0.0)))
        self.now = max([self.now, *(self.loads.ends.get(item, 0.0) for item in needed)])

    def offload(self, this: ScheduledPass) -> None:
        for name, ordinal in this.offload_saved:
            num_bytes = self._units[name].saved[ordinal].bytes
            self._leaving.append((self.offloads.copy((name, ordinal), num_bytes, not_before=self.now), num_bytes))
            self._leaving_bytes += num_bytes


def _by_phase(begun: list[tuple[float, int]], ends: list[float]) -> list[int]:
    """Return bytes by the phase in which their copies began, the later phase at a border."""
    moved = [0] * len(ends)
    turn = 0
    for begin, num_bytes in begun:
        while turn < len(ends) - 1 and begin >= ends[turn]:
            turn += 1
        moved[turn] += num_bytes
    return moved


def _gradients(trace: Trace, decisions: Mapping[str, UnitDecision]) -> list[int]:
    """Return gradient bytes offloaded per phase; shared weights count at their first backward turn."""
    written = [0] * (2 * len(trace.units) + 1)
    seen: set[str] = set()
    for position, unit in enumerate(reversed(trace.units)):
        new = [weight for weight in unit.weights if weight.name not in seen]
        seen.update(weight.name for weight in new)
        if decisions[unit.name].gradients == "slow":
            written[len(trace.units) + position] += sum(weight.resting_bytes for weight in new)
    return written
