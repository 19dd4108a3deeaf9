"""Order of demotions to slow memory for any budget, cheapest per freed byte first."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from dithc.engine.automem.planning.decision import CopyBandwidth, Place, UnitDecision
from dithc.engine.automem.planning.schedule import last_saver
from dithc.engine.automem.trace import SavedTensor, Trace


@dataclass(frozen=True, kw_only=True)
class Demotion:
    """A demotion: a piece of state, gradients or weights of units that share them, or a saved tensor."""

    kind: Literal["state", "gradients", "saved", "copied", "in place"]
    name: str = ""  # name of the state
    units: tuple[int, ...] = ()
    ordinal: int = 0  # of a saved tensor of the single unit


Keyed = list[tuple[float, Demotion]]  # largest key first


def ladder(trace: Trace, rates: CopyBandwidth) -> tuple[Demotion, ...]:
    """Return all demotions in order of cost per byte and second freed.

    1. State (moments, averages, gradient buffers): used once per step without copies; largest first.
    2. Gradients at rest: written once, read once; longest rest first (last units).
    3. Saved tensors idle for longer than their copies take, and all others idle between the same turns: two hidden copies;
       longest idle first (first units).
    4. Weights whose forward and backward loads hide; longest pause first.
    5. Saved tensors, then weights, whose copies do not hide, in the same orders, except tensors read at the next turn.
    6. Weights used in place, largest first: no copies, but slow reads.

    The order is independent of the budget. A plan is the shortest prefix that fits, so a larger budget never moves more.
    """
    hiding_saved, late_saved = _saved_rungs(trace, rates)
    hiding_weights, late_weights, in_place = _weight_rungs(trace, rates)
    gradients: Keyed = [
        (group[-1], Demotion(kind="gradients", units=group))
        for group in weight_groups(trace)
        if any(weight.resting_bytes for index in group for weight in trace.units[index].weights)
    ]
    state: Keyed = [(item.bytes, Demotion(kind="state", name=item.name)) for item in trace.state if item.bytes]
    parts: list[Keyed] = [state, gradients, hiding_saved, hiding_weights, late_saved, late_weights, in_place]
    return tuple(rung for part in parts for _, rung in sorted(part, key=lambda item: -item[0]))  # sorted() is stable


def _saved_rungs(trace: Trace, rates: CopyBandwidth) -> tuple[Keyed, Keyed]:
    """Return saved tensors by idle seconds, with hidden copies and without."""
    clock, num_units = _Clock(trace), len(trace.units)
    between: Counter[tuple[int, int]] = Counter()  # idle bytes by first and last turn
    tensors = [(index, tensor) for index, unit in enumerate(trace.units) for tensor in unit.saved]
    tensors = [(index, tensor) for index, tensor in tensors if tensor.bytes and is_offloadable(trace, index, tensor)]
    for index, tensor in tensors:
        between[last_saver(trace, index, tensor), num_units + tensor.first] += tensor.bytes
    hiding: Keyed = []
    others: Keyed = []
    for index, tensor in tensors:
        turns = last_saver(trace, index, tensor), num_units + tensor.first
        idle = clock.between(*turns)
        hides = idle >= between[turns] / rates.offload + between[turns] / rates.load
        (hiding if hides else others).append((idle, Demotion(kind="saved", units=(index,), ordinal=tensor.ordinal)))
    return hiding, others


def _weight_rungs(trace: Trace, rates: CopyBandwidth) -> tuple[Keyed, Keyed, Keyed]:
    """Return weight groups by pause between forward and backward, with hidden copies and without, and by bytes."""
    clock, end = _Clock(trace), 2 * len(trace.units)
    hiding: Keyed = []
    others: Keyed = []
    in_place: Keyed = []
    for group in weight_groups(trace):
        weights = {weight.name: weight.bytes for index in group for weight in trace.units[index].weights}
        load = max(trace.units[index].weight_bytes for index in group) / rates.load
        if load:
            pause = clock.between(group[-1], end - 1 - group[-1])
            hides = min(pause, clock.between(-1, group[0])) >= load
            (hiding if hides else others).append((pause, Demotion(kind="copied", units=group)))
            in_place.append((sum(weights.values()), Demotion(kind="in place", units=group)))
    return hiding, others, in_place


def decide(
    trace: Trace, rungs: Sequence[Demotion], recomputed: frozenset[int] = frozenset()
) -> tuple[dict[str, UnitDecision], dict[str, Place]]:
    """Return decisions and state placement after these demotions, without prefetch."""
    state: dict[str, Place] = {item.name: "fast" for item in trace.state}
    weights: list[Literal["fast", "copied", "in place"]] = ["fast"] * len(trace.units)
    gradients: list[Place] = ["fast"] * len(trace.units)
    saved: list[list[Literal["keep", "offload"]]] = [["keep"] * len(unit.saved) for unit in trace.units]
    for rung in rungs:
        if rung.kind == "state":
            state[rung.name] = "slow"
        for index in rung.units:
            if rung.kind == "saved":
                saved[index][rung.ordinal] = "offload"
            elif rung.kind == "gradients":
                gradients[index] = "slow"
            elif rung.kind != "state":
                weights[index] = rung.kind
    for index in recomputed:
        inputs = [tensor.ordinal for tensor in trace.units[index].saved if tensor.is_input]
        leave = all(saved[index][ordinal] == "offload" for ordinal in inputs)
        saved[index] = ["offload" if leave and tensor.is_input else "keep" for tensor in trace.units[index].saved]
    decisions = {
        unit.name: UnitDecision(
            weights=weights[index], gradients=gradients[index], saved=tuple(saved[index]), recompute=index in recomputed
        )
        for index, unit in enumerate(trace.units)
    }
    return decisions, state


def is_offloadable(trace: Trace, index: int, tensor: SavedTensor) -> bool:
    """Return whether a turn separates the last forward use from the first backward use."""
    return len(trace.units) + tensor.first - last_saver(trace, index, tensor) > 1


def weight_groups(trace: Trace) -> list[tuple[int, ...]]:
    """Return units with weights in forward order, grouped by shared weights."""
    root = list(range(len(trace.units)))
    owner: dict[str, int] = {}
    for index, unit in enumerate(trace.units):
        for weight in unit.weights:
            joined, kept = root[index], root[owner.setdefault(weight.name, index)]
            root = [kept if group == joined else group for group in root] if joined != kept else root
    groups: dict[int, list[int]] = {}
    for index, unit in enumerate(trace.units):
        if unit.weights:
            groups.setdefault(root[index], []).append(index)
    return sorted(tuple(group) for group in groups.values())


class _Clock:
    """Computing seconds between turns."""

    def __init__(self, trace: Trace) -> None:
        forward = [unit.forward_seconds for unit in trace.units]
        backward = [unit.backward_seconds for unit in reversed(trace.units)]
        self._ends = [0.0, *accumulate(forward + backward)]

    def between(self, earlier: int, later: int) -> float:
        """Return the seconds between the end of one turn and the start of another."""
        return self._ends[later] - self._ends[earlier + 1]
