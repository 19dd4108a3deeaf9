"""Planner: from the trace of a step and the memory levels to the placement at each turn.

It selects the first rung of `dithc.engine.automem.planning.demotion_order` at which fast memory holds every turn with its
prefetches, then sets the prefetch distances. If copies still stall, and `allow_recompute`, units run again instead while that
shortens the step.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import add

from dithc.core.logging import user_error
from dithc.engine.automem.planning.decision import MemoryLevel, Phase, Place, UnitDecision, rates_between
from dithc.engine.automem.planning.demotion_order import Demotion, decide, ladder
from dithc.engine.automem.planning.document import Plan
from dithc.engine.automem.planning.explain import reasons
from dithc.engine.automem.planning.occupancy import is_dropped, occupancy, room, working_bytes
from dithc.engine.automem.planning.prefetch_distance import (
    compute_seconds,
    hiding_distances,
    loads,
    saved_loads,
    weight_loads,
    with_distances,
)
from dithc.engine.automem.planning.schedule import is_offloaded, last_saver, schedule_passes
from dithc.engine.automem.planning.timeline import timeline
from dithc.engine.automem.trace import Trace


def make_plan(trace: Trace, *, fast: MemoryLevel, slow: MemoryLevel, allow_recompute: bool = False) -> Plan:
    """Plan the placement at each turn of a training step (paper section 4.2, Algorithm 1).

    `trace` was recorded with everything in fast memory. A byte moves at the slower rate of both levels.

    Returns:
        The plan; if nothing fits, the plan with the least memory, reported in `fits` and `reasons`. Without
        recomputation, a larger `fast` budget never moves more bytes.

    Raises:
        UserError: A rate is not positive, or a budget is negative.
    """
    for level in (fast, slow):
        rates = level.copy_bytes_per_second, level.out_bytes_per_second
        if not all(rate > 0 for rate in rates) or (level.budget_bytes or 0) < 0:
            expected = "a rate above 0, and a budget of at least 0 bytes"
            raise user_error(f"memory level {level.name}", got=level, expected=expected, fix="measure it, or set it")
    search = _Search(trace, fast, slow)
    choice = search.first_fit()
    if allow_recompute:
        choice = search.recompute(choice)
    decisions, state = search.spell_out(choice)
    decisions = _with_bytes(trace, decisions)
    phases = search.play(choice)
    fits = search.fits_fast(choice) and search.fits_slow(choice)
    everything = search.play(search.resident)
    return Plan(
        units=decisions,
        state=state,
        phases=phases,
        fits=fits,
        reasons=reasons(decisions, phases, everything, fast=fast, slow=slow, fits=fits),
        fast=fast,
        slow=slow,
        in_place_bytes=2 * sum(unit.weight_bytes for unit in trace.units if decisions[unit.name].weights == "in place"),
    )


def _with_bytes(trace: Trace, decisions: Mapping[str, UnitDecision]) -> dict[str, UnitDecision]:
    """Return the decisions with the required room of each turn and the sizes of their tensors."""
    turns = schedule_passes(trace, decisions)
    full = {}
    for index, unit in enumerate(trace.units):
        decision = decisions[unit.name]
        position = len(trace.units) - 1 - index
        gone = sum(tensor.bytes for tensor in unit.saved if is_offloaded(decision, tensor.ordinal))
        dropped = sum(tensor.bytes for tensor in unit.saved if is_dropped(decision, tensor, position))
        full[unit.name] = replace(
            decision,
            room_bytes=room(trace, decisions, turns, index),
            backward_room_bytes=room(trace, decisions, turns, len(trace.units) + position),
            weight_bytes=unit.weight_bytes,
            kept_bytes=sum(tensor.bytes for tensor in unit.saved) - gone - dropped,
            offloaded_bytes=gone,
        )
    return full


@dataclass(frozen=True)
class _Choice:
    """Candidate plan: number of rungs, prefetch distance at each of the 2 L turns, and recomputed units."""

    num_rungs: int
    distances: tuple[int, ...]
    recomputed: frozenset[int] = frozenset()


class _Search:
    """Candidate plans for a trace and two levels, with their needs."""

    def __init__(self, trace: Trace, fast: MemoryLevel, slow: MemoryLevel) -> None:
        self.trace, self.fast, self.slow = trace, fast, slow
        self.rates = rates_between(fast, slow)
        self.rungs: Sequence[Demotion] = ladder(trace, self.rates)
        # Distances for all movable tensors. They are equal on every rung, so that each rung needs no more than the
        # previous rung.
        self.farthest = tuple(hiding_distances(compute_seconds(trace), loads(trace, None), self.rates.load))
        self.resident = _Choice(0, self.farthest)

    def spell_out(self, choice: _Choice) -> tuple[dict[str, UnitDecision], dict[str, Place]]:
        decisions, state = decide(self.trace, self.rungs[: choice.num_rungs], choice.recomputed)
        return with_distances(self.trace, decisions, choice.distances), state

    def fits_fast(self, choice: _Choice) -> bool:
        return self.fast.budget_bytes is None or self._peaks(choice)[0] <= self.fast.budget_bytes

    def fits_slow(self, choice: _Choice) -> bool:
        return self.slow.budget_bytes is None or self._peaks(choice)[1] <= self.slow.budget_bytes

    def play(self, choice: _Choice) -> tuple[Phase, ...]:
        decisions, state = self.spell_out(choice)
        return timeline(self.trace, decisions, state, fast=self.fast, rates=self.rates)

    def first_fit(self) -> _Choice:
        """Return the first rung that fits with full prefetch distances, else the last rung with reduced distances."""
        bottom = len(self.rungs)
        if self.fits_fast(_Choice(bottom, self.farthest)):
            rung = _first(lambda rung: self.fits_fast(_Choice(rung, self.farthest)), bottom)
            return self.refine(_Choice(rung, self.farthest))
        top = max(self.farthest, default=0)
        nearer = _first(lambda nearer: self.fits_fast(self._capped(top - nearer)), top)
        capped = self._capped(top - nearer)
        return self.refine(capped) if self.fits_fast(capped) else capped

    def _capped(self, most: int) -> _Choice:
        """Return the last rung with distances of at most `most` turns; smaller distances need less memory."""
        return _Choice(len(self.rungs), tuple(min(distance, most) for distance in self.farthest))

    def refine(self, choice: _Choice) -> _Choice:
        """Adjust distances for the actual moves: smaller if still hidden, larger if helpful and possible."""
        decisions, state = self.spell_out(choice)
        held = occupancy(self.trace, decisions, state)[0].totals()
        weights, saved = weight_loads(self.trace, decisions), saved_loads(self.trace, decisions)
        wanted = hiding_distances(
            compute_seconds(self.trace, decisions), list(map(add, weights, saved)), self.rates.load
        )
        distances, num_turns = list(choice.distances), len(wanted)
        for nearer in (True, False):
            for turn, distance in enumerate(wanted):
                now = distances[turn]
                to_forward = 2 * turn + 1 - num_turns  # turns since the unit's forward copy was in use
                is_kept = 0 < to_forward <= now
                limit = distance if turn < num_turns // 2 else min(distance, to_forward - 1)
                if is_kept or limit == now or (limit < now) != nearer:
                    continue
                changed = range(turn - max(now, limit), turn - min(now, limit))
                more = [weights[turn] + (saved[turn] if other >= num_turns // 2 else 0) for other in changed]
                after = [
                    held[other] + (-extra if nearer else extra) for other, extra in zip(changed, more, strict=True)
                ]
                if nearer or self.fast.budget_bytes is None or max(after) <= self.fast.budget_bytes:
                    distances[turn], held[changed.start : changed.stop] = limit, after
        return replace(choice, distances=tuple(distances))

    def recompute(self, choice: _Choice) -> _Choice:
        """Select offloaded units to run again: the number, in order of individual savings, that shortens the step most."""
        gains = self._gains(choice)
        order = self._that_fit(choice, sorted(gains, key=lambda index: (-gains[index], -index)))

        @cache
        def first(count: int) -> _Choice:
            return replace(choice, recomputed=frozenset(order[:count]))

        @cache
        def seconds(count: int) -> float:
            return self._seconds(first(count))

        low = _first(lambda count: self.fits_slow(first(count)), len(order))
        high = max(low, sum(gains[index] > 0 for index in order))
        while True:
            tried = sorted({low + (high - low) * part // 4 for part in range(5)})
            best = min(range(len(tried)), key=lambda place: seconds(tried[place]))
            if high - low <= 4:
                break
            low, high = tried[max(0, best - 1)], tried[min(len(tried) - 1, best + 1)]
        chosen = first(tried[best])
        refined = self.refine(chosen) if chosen.recomputed else chosen
        return refined if self._seconds(refined) < self._seconds(chosen) else chosen

    def _gains(self, choice: _Choice) -> dict[int, float]:
        """Return saved copy seconds less forward seconds of recomputation, for units with offloaded tensors."""
        decisions, _ = self.spell_out(choice)
        gains = {}
        for index, unit in enumerate(self.trace.units):
            again = replace(decisions[unit.name], recompute=True)
            spared = sum(
                tensor.bytes
                for tensor in unit.saved
                if is_dropped(again, tensor, len(self.trace.units) - 1 - index)
                and decisions[unit.name].saved[tensor.ordinal] == "offload"
            )
            if spared:
                gains[index] = spared / self.rates.load + spared / self.rates.offload - unit.forward_seconds
        return gains

    def _that_fit(self, choice: _Choice, order: Sequence[int]) -> list[int]:
        """Return the units that fast memory can run again together, including the tensors that then stay."""
        before, state = self.spell_out(choice)
        after, _ = self.spell_out(replace(choice, recomputed=frozenset(order)))
        held = occupancy(self.trace, before, state)[0].totals()
        num_units, taken = len(self.trace.units), []
        for index in order:
            unit = self.trace.units[index]
            now, then = before[unit.name], after[unit.name]
            own, tried = 2 * num_units - 1 - index, held.copy()
            tried[own] += working_bytes(unit, then, forward=False) - working_bytes(unit, now, forward=False)
            for tensor in unit.saved:
                if is_dropped(then, tensor, num_units - 1 - index):
                    tried[own] -= tensor.bytes
                elif is_offloaded(now, tensor.ordinal) and not is_offloaded(then, tensor.ordinal):
                    reader = num_units + tensor.first
                    start = max(num_units, reader - choice.distances[reader])
                    for turn in range(last_saver(self.trace, index, tensor) + 1, start):
                        tried[turn] += tensor.bytes
            if self.fast.budget_bytes is None or max(tried) <= self.fast.budget_bytes:
                held = tried
                taken.append(index)
        return taken

    def _seconds(self, choice: _Choice) -> float:
        return sum(phase.seconds + phase.stall_seconds for phase in self.play(choice))

    def _peaks(self, choice: _Choice) -> tuple[int, int]:
        fast, slow = occupancy(self.trace, *self.spell_out(choice))
        return max(fast.totals()), max(slow.totals())


def _first(holds: Callable[[int], bool], last: int) -> int:
    """Return the first number in 0..`last` that meets a monotonic condition; `last` if no smaller number does."""
    return bisect_left(range(last), True, key=holds)
