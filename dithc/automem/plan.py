"""The planner: from what a step did to memory, and what memory there is, to what lives where when.

It walks down `dithc.automem.ladder`, which lists what can move to slow memory, the cheapest first, to the first rung at
which fast memory holds every turn of the step with the loads that each turn wants ahead, so that they hide; then it
fetches as far ahead as that really takes. Where copies still make the step wait, and it is allowed, units run
forward again instead, as long as that makes the predicted step shorter (or as slow memory is short).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dithc.automem.decision import Decision, Level, Phase, Place, Plan
from dithc.automem.distance import compute_seconds, hiding_distances, loads, with_distances
from dithc.automem.ladder import Rung, decide, ladder
from dithc.automem.occupancy import is_dropped, occupancy, room
from dithc.automem.reasons import reasons
from dithc.automem.timeline import timeline
from dithc.automem.trace import Trace
from dithc.automem.turns import is_offloaded, turns_of
from dithc.log import problem

__all__ = ["Decision", "Level", "Phase", "Place", "Plan", "plan"]


def plan(trace: Trace, *, fast: Level, slow: Level, allow_recompute: bool = False) -> Plan:
    """Decides where everything lives at each turn of a training step (paper section 4.2, Algorithm 1).

    Args:
        trace: what one step did, recorded with everything in fast memory.
        fast: the level to stay within.
        slow: the level below; a byte moves at the slower rate of the two.
        allow_recompute: units may save their inputs only and run forward again, where copies cannot hide.

    Returns:
        The plan. If not even everything in slow memory fits, it is the one that needs least, and says so in `fits`
        and `reasons`. A larger `fast` budget never gives a plan that moves more bytes, unless units are recomputed.

    Raises:
        UserError: a rate that is not positive, or a negative budget.
    """
    for level in (fast, slow):
        if not level.copy_bytes_per_second > 0 or (level.budget_bytes or 0) < 0:
            expected = "a rate above 0, and a budget of at least 0 bytes"
            raise problem(f"memory level {level.name}", got=level, expected=expected, remedy="measure it, or set it")
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
        reasons=reasons(trace, decisions, state, phases, everything, fast=fast, slow=slow, fits=fits),
        fast=fast,
        slow=slow,
        in_place_bytes=2 * sum(unit.weight_bytes for unit in trace.units if decisions[unit.name].weights == "in place"),
    )


def _with_bytes(trace: Trace, decisions: Mapping[str, Decision]) -> dict[str, Decision]:
    """The decisions with the room that each turn needs, and the sizes of what they decide on."""
    turns = turns_of(trace, decisions)
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
    """A candidate: how many rungs down, how far ahead at each of the 2 L turns, which units run forward again."""

    num_rungs: int
    distances: tuple[int, ...]
    recomputed: frozenset[int] = frozenset()


class _Seconds(NamedTuple):
    step: float
    waiting: float


class _Search:
    """Candidates for one trace and pair of levels, and what each would need."""

    def __init__(self, trace: Trace, fast: Level, slow: Level) -> None:
        self.trace, self.fast, self.slow = trace, fast, slow
        self.rate = min(fast.copy_bytes_per_second, slow.copy_bytes_per_second)
        self.rungs: Sequence[Rung] = ladder(trace, self.rate)
        # Distances for all that might move: the same on every rung, so that each rung needs no more than the one above.
        self.farthest = tuple(hiding_distances(compute_seconds(trace), loads(trace, None), self.rate))
        self.resident = _Choice(0, self.farthest)

    def spell_out(self, choice: _Choice) -> tuple[dict[str, Decision], dict[str, Place]]:
        """Its decisions and the places of state."""
        decisions, state = decide(self.trace, self.rungs[: choice.num_rungs], choice.recomputed)
        return with_distances(self.trace, decisions, choice.distances), state

    def fits_fast(self, choice: _Choice) -> bool:
        """Whether fast memory holds every turn."""
        return self.fast.budget_bytes is None or self._peaks(choice)[0] <= self.fast.budget_bytes

    def fits_slow(self, choice: _Choice) -> bool:
        """Whether slow memory holds every turn."""
        return self.slow.budget_bytes is None or self._peaks(choice)[1] <= self.slow.budget_bytes

    def play(self, choice: _Choice) -> tuple[Phase, ...]:
        """Its predicted timeline."""
        decisions, state = self.spell_out(choice)
        return timeline(self.trace, decisions, state, fast=self.fast, copy_bytes_per_second=self.rate)

    def first_fit(self) -> _Choice:
        """The first rung that fits with its loads ahead; at the bottom, as far ahead as fits."""
        bottom = len(self.rungs)
        if self.fits_fast(replace(self.resident, num_rungs=bottom)):
            low, high = 0, bottom  # of the rungs before `low` none fits, `high` does
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if self.fits_fast(_Choice(middle, self.farthest)) else (middle + 1, high)
            return self.refine(_Choice(high, self.farthest))
        for most in range(max(self.farthest, default=0) - 1, -1, -1):
            capped = _Choice(bottom, tuple(min(distance, most) for distance in self.farthest))
            if self.fits_fast(capped):
                return self.refine(capped)
        return _Choice(bottom, (0,) * len(self.farthest))

    def refine(self, choice: _Choice) -> _Choice:
        """Distances for what really moves: nearer where that hides it as well, farther where that helps and fits."""
        decisions, _ = self.spell_out(choice)
        wanted = hiding_distances(compute_seconds(self.trace, decisions), loads(self.trace, decisions), self.rate)
        num_turns = len(wanted)
        for nearer in (True, False):
            for turn, distance in enumerate(wanted):
                now = choice.distances[turn]
                to_forward = 2 * turn + 1 - num_turns  # turns back to where the unit's copy for forward was in use
                is_kept = 0 < to_forward <= now
                limit = distance if turn < num_turns // 2 else min(distance, to_forward - 1)
                if is_kept or limit == now or (limit < now) != nearer:
                    continue
                tried = replace(choice, distances=(*choice.distances[:turn], limit, *choice.distances[turn + 1 :]))
                if nearer or self.fits_fast(tried):
                    choice = tried
        return choice

    def recompute(self, choice: _Choice) -> _Choice:
        """Runs units again whose tensors are offloaded, while that shortens the step or slow memory is short."""
        gains = sorted(((gain, index) for index, gain in self._gains(choice).items()), reverse=True)
        seconds, is_short = self._seconds(choice), not self.fits_slow(choice)
        for gain, index in gains:
            if not is_short and (gain <= 0 or not seconds.waiting):
                break
            tried = replace(choice, recomputed=choice.recomputed | {index})
            if not self.fits_fast(tried) or (not is_short and not self.fits_slow(tried)):
                continue
            tried_seconds = self._seconds(tried)
            if is_short or tried_seconds.step < seconds.step:
                choice, seconds, is_short = tried, tried_seconds, not self.fits_slow(tried)
        refined = self.refine(choice) if choice.recomputed else choice
        return refined if self._seconds(refined).step < seconds.step else choice

    def _gains(self, choice: _Choice) -> Mapping[int, float]:
        """Seconds of copies that running a unit again spares, less its forward seconds, for units with offloaded tensors."""
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
                gains[index] = 2 * spared / self.rate - unit.forward_seconds
        return gains

    def _seconds(self, choice: _Choice) -> "_Seconds":
        phases = self.play(choice)
        waiting = sum(phase.stall_seconds for phase in phases)
        return _Seconds(sum(phase.seconds for phase in phases) + waiting, waiting)

    def _peaks(self, choice: _Choice) -> tuple[int, int]:
        fast, slow = occupancy(self.trace, *self.spell_out(choice))
        return max(fast.totals()), max(slow.totals())
