"""Planner: from the trace of a step and the memory levels to the placement at each slot.

It selects the shortest prefix of `dithc.engine.automem.planning.demotion_order` at which fast memory holds every slot with its
prefetches, then sets the prefetch distances. If copies still stall, and `allow_recompute`, units run again instead while that
shortens the step.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import add

from dithc.engine.automem.planning.decision import MemoryLevel, Phase, Place, UnitDecision, rates_between
from dithc.engine.automem.planning.demotion_order import Demotion, decide, order_demotions
from dithc.engine.automem.planning.document import Plan
from dithc.engine.automem.planning.explain import reasons
from dithc.engine.automem.planning.occupancy import is_dropped, occupancy, required_bytes, working_bytes
from dithc.engine.automem.planning.prefetch_distance import (
    compute_seconds,
    hiding_distances,
    loads,
    saved_loads,
    weight_loads,
    with_distances,
)
from dithc.engine.automem.planning.schedule import is_offloaded, last_saver
from dithc.engine.automem.planning.timeline import timeline
from dithc.engine.automem.trace import Trace


def make_plan(trace: Trace, *, fast: MemoryLevel, slow: MemoryLevel, allow_recompute: bool = False) -> Plan:
    """Plan the placement at each slot of a training step (paper section 4.2, Algorithm 1).

    `trace` was recorded with everything in fast memory. A byte moves at the slower rate of both levels.

    Returns:
        The plan; if nothing fits, the plan with the least memory, reported in `fits` and `reasons`. Without
        recomputation, a larger `fast` budget never moves more bytes.
    """
    search = _Search(trace, fast, slow)
    choice = search.first_fit()
    if allow_recompute:
        choice = search.recompute(choice)
    decisions, state = search.decide(choice)
    decisions = _with_bytes(trace, decisions)
    phases = search.simulate(choice)
    fits = search.fits_fast(choice) and search.fits_slow(choice)
    resident = search.simulate(search.resident)
    return Plan(
        units=decisions,
        state=state,
        phases=phases,
        fits=fits,
        reasons=reasons(decisions, phases, resident, fast=fast, slow=slow, fits=fits),
        fast=fast,
        slow=slow,
        in_place_bytes=2 * sum(unit.weight_bytes for unit in trace.units if decisions[unit.name].weights == "in place"),
    )


def _with_bytes(trace: Trace, decisions: Mapping[str, UnitDecision]) -> dict[str, UnitDecision]:
    """Return the decisions with the required room of each slot and the sizes of their tensors."""
    required = required_bytes(trace, decisions)
    completed = {}
    for index, unit in enumerate(trace.units):
        decision = decisions[unit.name]
        position = len(trace.units) - 1 - index
        offloaded = sum(tensor.bytes for tensor in unit.saved if is_offloaded(decision, tensor.ordinal))
        dropped = sum(tensor.bytes for tensor in unit.saved if is_dropped(decision, tensor, position))
        completed[unit.name] = replace(
            decision,
            required_fast_bytes=required[index],
            backward_required_fast_bytes=required[-1 - index],
            weight_bytes=unit.weight_bytes,
            kept_bytes=sum(tensor.bytes for tensor in unit.saved) - offloaded - dropped,
            offloaded_bytes=offloaded,
        )
    return completed


@dataclass(frozen=True)
class _Choice:
    """Candidate plan: number of demotions, prefetch distance at each of the 2 L slots, and recomputed units."""

    num_demotions: int
    distances: tuple[int, ...]
    recomputed: frozenset[int] = frozenset()


class _Search:
    """Candidate plans for a trace and two levels, with their needs."""

    def __init__(self, trace: Trace, fast: MemoryLevel, slow: MemoryLevel) -> None:
        self.trace, self.fast, self.slow = trace, fast, slow
        self.rates = rates_between(fast, slow)
        self.demotions: Sequence[Demotion] = order_demotions(trace, self.rates)
        # Distances for all movable tensors. They are equal for every prefix, so that each prefix needs no more than the
        # previous prefix.
        self.max_distances = tuple(hiding_distances(compute_seconds(trace), loads(trace, None), self.rates.load))
        self.resident = _Choice(0, self.max_distances)

    def decide(self, choice: _Choice) -> tuple[dict[str, UnitDecision], dict[str, Place]]:
        decisions, state = decide(self.trace, self.demotions[: choice.num_demotions], choice.recomputed)
        return with_distances(self.trace, decisions, choice.distances), state

    def fits_fast(self, choice: _Choice) -> bool:
        return self.fast.budget_bytes is None or self._peaks(choice)[0] <= self.fast.budget_bytes

    def fits_slow(self, choice: _Choice) -> bool:
        return self.slow.budget_bytes is None or self._peaks(choice)[1] <= self.slow.budget_bytes

    def simulate(self, choice: _Choice) -> tuple[Phase, ...]:
        decisions, state = self.decide(choice)
        return timeline(self.trace, decisions, state, fast=self.fast, rates=self.rates)

    def first_fit(self) -> _Choice:
        """Return the shortest prefix that fits with full prefetch distances, else all demotions with reduced distances."""
        last = len(self.demotions)
        if self.fits_fast(_Choice(last, self.max_distances)):
            count = _first(lambda count: self.fits_fast(_Choice(count, self.max_distances)), last)
            return self.refine(_Choice(count, self.max_distances))
        longest = max(self.max_distances, default=0)
        reduction = _first(lambda reduction: self.fits_fast(self._capped(longest - reduction)), longest)
        capped = self._capped(longest - reduction)
        return self.refine(capped) if self.fits_fast(capped) else capped

    def _capped(self, limit: int) -> _Choice:
        """Return all demotions with distances of at most `limit` slots; smaller distances need less memory."""
        return _Choice(len(self.demotions), tuple(min(distance, limit) for distance in self.max_distances))

    def refine(self, choice: _Choice) -> _Choice:
        """Adjust distances for the actual moves: smaller if still hidden, larger if helpful and possible."""
        decisions, state = self.decide(choice)
        used = occupancy(self.trace, decisions, state)[0].totals()
        weights, saved = weight_loads(self.trace, decisions), saved_loads(self.trace, decisions)
        targets = hiding_distances(
            compute_seconds(self.trace, decisions), list(map(add, weights, saved)), self.rates.load
        )
        distances, num_slots = list(choice.distances), len(targets)
        for shorten in (True, False):
            for slot, distance in enumerate(targets):
                current = distances[slot]
                forward_distance = 2 * slot + 1 - num_slots  # slots since the unit's forward copy was in use
                is_kept = 0 < forward_distance <= current
                limit = distance if slot < num_slots // 2 else min(distance, forward_distance - 1)
                if is_kept or limit == current or (limit < current) != shorten:
                    continue
                changed = range(slot - max(current, limit), slot - min(current, limit))
                extra_bytes = [weights[slot] + (saved[slot] if other >= num_slots // 2 else 0) for other in changed]
                after = [
                    used[other] + (-extra if shorten else extra)
                    for other, extra in zip(changed, extra_bytes, strict=True)
                ]
                if shorten or self.fast.budget_bytes is None or max(after) <= self.fast.budget_bytes:
                    distances[slot], used[changed.start : changed.stop] = limit, after
        return replace(choice, distances=tuple(distances))

    def recompute(self, choice: _Choice) -> _Choice:
        """Select offloaded units to run again: the number, in order of individual savings, that shortens the step most."""
        gains = self._gains(choice)
        order = self._fitting_units(choice, sorted(gains, key=lambda index: (-gains[index], -index)))

        @cache
        def first(count: int) -> _Choice:
            return replace(choice, recomputed=frozenset(order[:count]))

        @cache
        def seconds(count: int) -> float:
            return self._seconds(first(count))

        low = _first(lambda count: self.fits_slow(first(count)), len(order))
        high = max(low, sum(gains[index] > 0 for index in order))
        while True:
            counts = sorted({low + (high - low) * part // 4 for part in range(5)})
            best = min(range(len(counts)), key=lambda position: seconds(counts[position]))
            if high - low <= 4:
                break
            low, high = counts[max(0, best - 1)], counts[min(len(counts) - 1, best + 1)]
        candidate = first(counts[best])
        refined = self.refine(candidate) if candidate.recomputed else candidate
        return refined if self._seconds(refined) < self._seconds(candidate) else candidate

    def _gains(self, choice: _Choice) -> dict[int, float]:
        """Return saved copy seconds less forward seconds of recomputation, for units with offloaded tensors."""
        decisions, _ = self.decide(choice)
        gains = {}
        for index, unit in enumerate(self.trace.units):
            recomputed = replace(decisions[unit.name], recompute=True)
            saved = sum(
                tensor.bytes
                for tensor in unit.saved
                if is_dropped(recomputed, tensor, len(self.trace.units) - 1 - index)
                and decisions[unit.name].saved[tensor.ordinal] == "offload"
            )
            if saved:
                gains[index] = saved / self.rates.load + saved / self.rates.offload - unit.forward_seconds
        return gains

    def _fitting_units(self, choice: _Choice, order: Sequence[int]) -> list[int]:
        """Return the units that fast memory can run again together, including the tensors that then stay."""
        before, state = self.decide(choice)
        after, _ = self.decide(replace(choice, recomputed=frozenset(order)))
        used = occupancy(self.trace, before, state)[0].totals()
        num_units, indices = len(self.trace.units), []
        for index in order:
            unit = self.trace.units[index]
            old, new = before[unit.name], after[unit.name]
            backward, candidate = 2 * num_units - 1 - index, used.copy()
            candidate[backward] += working_bytes(unit, new, forward=False) - working_bytes(unit, old, forward=False)
            for tensor in unit.saved:
                if is_dropped(new, tensor, num_units - 1 - index):
                    candidate[backward] -= tensor.bytes
                elif is_offloaded(old, tensor.ordinal) and not is_offloaded(new, tensor.ordinal):
                    reader = num_units + tensor.first_reader
                    start = max(num_units, reader - choice.distances[reader])
                    for slot in range(last_saver(self.trace, index, tensor) + 1, start):
                        candidate[slot] += tensor.bytes
            if self.fast.budget_bytes is None or max(candidate) <= self.fast.budget_bytes:
                used = candidate
                indices.append(index)
        return indices

    def _seconds(self, choice: _Choice) -> float:
        return sum(phase.seconds + phase.stall_seconds for phase in self.simulate(choice))

    def _peaks(self, choice: _Choice) -> tuple[int, int]:
        fast, slow = occupancy(self.trace, *self.decide(choice))
        return max(fast.totals()), max(slow.totals())


def _first(predicate: Callable[[int], bool], last: int) -> int:
    """Return the first number in 0..`last` that meets a monotonic condition; `last` if no smaller number does."""
    return bisect_left(range(last), True, key=predicate)
