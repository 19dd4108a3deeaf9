"""Predicted timeline of a step: two copy streams next to computing, with waits for late copies.

Each stream copies one tensor at a time. A slot waits for memory, starts due loads, waits for its own loads, and runs.
Gradients at rest count as offloaded in the backward slot that produces them, at no time, because the product writes
them there.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

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
    starts: list[tuple[float, int]] = field(default_factory=list)
    ends: dict[Item, float] = field(default_factory=dict)

    def copy(self, item: Item, num_bytes: int, *, not_before: float) -> float:
        start = max(self.free_at, not_before)
        self.free_at = self.ends[item] = start + num_bytes / self.copy_bytes_per_second
        self.starts.append((start, num_bytes))
        return self.free_at


def timeline(
    trace: Trace,
    decisions: Mapping[str, UnitDecision],
    state: Mapping[str, Place],
    *,
    fast: MemoryLevel,
    rates: CopyBandwidth,
) -> tuple[Phase, ...]:
    passes = schedule_passes(trace, decisions)
    in_fast, in_slow = (spans.parts() for spans in occupancy(trace, decisions, state))
    seconds = [*compute_seconds(trace, decisions), trace.update_seconds]
    simulation = _Simulation(trace, rates)
    stalls: list[float] = []
    ends: list[float] = []
    for slot, parts in enumerate(in_fast):
        start = ends[-1] if ends else 0.0
        parts["saved"] += simulation.wait_for_memory(sum(parts.values()), fast.budget_bytes)
        if slot < len(passes):
            simulation.load(passes[slot], slot)
        stalls.append(simulation.clock - start)
        simulation.clock += seconds[slot]
        ends.append(simulation.clock)
        if slot < len(passes):
            simulation.offload(passes[slot])
    loaded = _by_phase(simulation.loads.starts, ends)
    offloaded = _by_phase(simulation.offloads.starts, ends)
    for slot, unit in enumerate(reversed(trace.units), len(trace.units)):
        if decisions[unit.name].gradients == "slow":
            offloaded[slot] += unit.gradient_bytes
    return tuple(
        Phase(
            name=passes[slot].unit if slot < len(passes) else "update",
            kind=passes[slot].kind if slot < len(passes) else "update",
            seconds=seconds[slot],
            stall_seconds=stalls[slot],
            fast_bytes=sum(in_fast[slot].values()),
            slow_bytes=sum(in_slow[slot].values()),
            fast_parts=in_fast[slot],
            slow_parts=in_slow[slot],
            load_bytes=loaded[slot],
            offload_bytes=offloaded[slot],
        )
        for slot in range(len(in_fast))
    )


class _Simulation:
    """Simulation state of a step: clock, streams, offloads in progress."""

    def __init__(self, trace: Trace, rates: CopyBandwidth) -> None:
        self.clock = 0.0
        self._units = {unit.name: unit for unit in trace.units}
        self._index = {unit.name: index for index, unit in enumerate(trace.units)}
        self._readers: dict[int, list[Item]] = {}
        for unit in trace.units:
            for tensor in unit.saved:
                self._readers.setdefault(len(trace.units) + tensor.first_reader, []).append((unit.name, tensor.ordinal))
        self.loads, self.offloads = _Stream(rates.load), _Stream(rates.offload)
        self._pending: deque[tuple[float, int]] = deque()
        self._pending_bytes = 0

    def wait_for_memory(self, needed_bytes: int, budget_bytes: int | None) -> int:
        """Wait until the required bytes fit next to offloads in progress, and return the bytes of these."""
        while self._pending and (
            self._pending[0][0] <= self.clock
            or (budget_bytes is not None and needed_bytes + self._pending_bytes > budget_bytes)
        ):
            end, num_bytes = self._pending.popleft()
            self.clock = max(self.clock, end)
            self._pending_bytes -= num_bytes
        return self._pending_bytes

    def load(self, scheduled: ScheduledPass, slot: int) -> None:
        """Start due loads and wait for the loads of this slot."""
        due: list[tuple[Item, int]] = []
        for name in scheduled.load_weights:
            kind = "forward" if self._index[name] >= slot else "backward"
            due.append(((name, kind), self._units[name].weight_bytes))
        for name, ordinal in scheduled.load_saved:
            due.append(((name, ordinal), self._units[name].saved[ordinal].bytes))
        needed: list[Item] = [(scheduled.unit, scheduled.kind), *self._readers.get(slot, [])]
        for item, num_bytes in sorted(due, key=lambda pair: pair[0] not in needed):
            self.loads.copy(item, num_bytes, not_before=max(self.clock, self.offloads.ends.get(item, 0.0)))
        self.clock = max([self.clock, *(self.loads.ends.get(item, 0.0) for item in needed)])

    def offload(self, scheduled: ScheduledPass) -> None:
        for name, ordinal in scheduled.offload_saved:
            num_bytes = self._units[name].saved[ordinal].bytes
            self._pending.append((self.offloads.copy((name, ordinal), num_bytes, not_before=self.clock), num_bytes))
            self._pending_bytes += num_bytes


def _by_phase(starts: list[tuple[float, int]], ends: list[float]) -> list[int]:
    """Return bytes by the phase in which their copies began, the later phase at a border."""
    totals = [0] * len(ends)
    slot = 0
    for start, num_bytes in starts:
        while slot < len(ends) - 1 and start >= ends[slot]:
            slot += 1
        totals[slot] += num_bytes
    return totals
