"""Order of demotions to slow memory for any budget, cheapest per freed byte first."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from dithc.engine.automem.planning.decision import CopyBandwidth, Place, UnitDecision
from dithc.engine.automem.planning.prefetch_distance import compute_seconds
from dithc.engine.automem.planning.schedule import is_offloadable, last_saver
from dithc.engine.automem.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Demotion:
    """A demotion: a piece of state, gradients or weights of a unit, or a saved tensor."""

    kind: Literal["state", "gradients", "saved", "copied", "in place"]
    name: str = ""  # name of the state
    unit: int = 0
    ordinal: int = 0  # of a saved tensor of the unit


Ranked = list[tuple[float, Demotion]]  # largest key first


def order_demotions(trace: Trace, rates: CopyBandwidth) -> tuple[Demotion, ...]:
    """Return all demotions in order of cost per byte and second freed.

    1. State (moments, averages, gradient buffers): used once per step without copies; largest first.
    2. Gradients at rest: written once, read once; longest rest first (last units).
    3. Saved tensors idle for longer than their copies take, and all others idle between the same slots: two hidden copies;
       longest idle first (first units).
    4. Weights whose forward and backward loads hide; longest pause first.
    5. Saved tensors, then weights, whose copies do not hide, in the same orders, except tensors read at the next slot.
    6. Weights used in place, largest first: no copies, but slow reads.

    The order is independent of the budget. A plan is the shortest prefix that fits, so a larger budget never moves more.
    """
    hidden_saved, exposed_saved = _saved_demotions(trace, rates)
    hidden_weights, exposed_weights, in_place = _weight_demotions(trace, rates)
    gradients: Ranked = [
        (index, Demotion(kind="gradients", unit=index)) for index, unit in enumerate(trace.units) if unit.gradient_bytes
    ]
    state: Ranked = [(item.bytes, Demotion(kind="state", name=item.name)) for item in trace.state if item.bytes]
    groups: list[Ranked] = [state, gradients, hidden_saved, hidden_weights, exposed_saved, exposed_weights, in_place]
    return tuple(move for group in groups for _, move in sorted(group, key=lambda item: -item[0]))  # sorted() is stable


def _saved_demotions(trace: Trace, rates: CopyBandwidth) -> tuple[Ranked, Ranked]:
    """Return saved tensors by idle seconds, with hidden copies and without."""
    elapsed, num_units = _elapsed_seconds(trace), len(trace.units)
    idle_bytes: Counter[tuple[int, int]] = Counter()  # idle bytes by first and last slot
    tensors = [(index, tensor) for index, unit in enumerate(trace.units) for tensor in unit.saved]
    tensors = [(index, tensor) for index, tensor in tensors if tensor.bytes and is_offloadable(trace, index, tensor)]
    for index, tensor in tensors:
        idle_bytes[last_saver(trace, index, tensor), num_units + tensor.first_reader] += tensor.bytes
    hidden: Ranked = []
    exposed: Ranked = []
    for index, tensor in tensors:
        span = last_saver(trace, index, tensor), num_units + tensor.first_reader
        idle, copied = elapsed[span[1]] - elapsed[span[0] + 1], idle_bytes[span]
        demotion = Demotion(kind="saved", unit=index, ordinal=tensor.ordinal)
        (hidden if idle >= copied / rates.offload + copied / rates.load else exposed).append((idle, demotion))
    return hidden, exposed


def _weight_demotions(trace: Trace, rates: CopyBandwidth) -> tuple[Ranked, Ranked, Ranked]:
    """Return weights by pause between forward and backward, with hidden copies and without, and by bytes."""
    elapsed, end = _elapsed_seconds(trace), 2 * len(trace.units)
    hidden: Ranked = []
    exposed: Ranked = []
    in_place: Ranked = []
    for index, unit in enumerate(trace.units):
        if unit.weight_bytes:
            pause = elapsed[end - 1 - index] - elapsed[index + 1]
            is_hidden = min(pause, elapsed[index]) >= unit.weight_bytes / rates.load
            (hidden if is_hidden else exposed).append((pause, Demotion(kind="copied", unit=index)))
            in_place.append((unit.weight_bytes, Demotion(kind="in place", unit=index)))
    return hidden, exposed, in_place


def decide(
    trace: Trace, demotions: Sequence[Demotion], recomputed: frozenset[int] = frozenset()
) -> tuple[dict[str, UnitDecision], dict[str, Place]]:
    """Return decisions and state placement after these demotions, without prefetch."""
    state: dict[str, Place] = {item.name: "fast" for item in trace.state}
    weights: list[Literal["fast", "copied", "in place"]] = ["fast"] * len(trace.units)
    gradients: list[Place] = ["fast"] * len(trace.units)
    saved: list[list[Literal["keep", "offload"]]] = [["keep"] * len(unit.saved) for unit in trace.units]
    for demotion in demotions:
        if demotion.kind == "state":
            state[demotion.name] = "slow"
        elif demotion.kind == "saved":
            saved[demotion.unit][demotion.ordinal] = "offload"
        elif demotion.kind == "gradients":
            gradients[demotion.unit] = "slow"
        else:
            weights[demotion.unit] = demotion.kind
    for index in recomputed:
        inputs = [tensor.ordinal for tensor in trace.units[index].saved if tensor.is_input]
        offloads = all(saved[index][ordinal] == "offload" for ordinal in inputs)
        saved[index] = ["offload" if offloads and tensor.is_input else "keep" for tensor in trace.units[index].saved]
    decisions = {
        unit.name: UnitDecision(
            weights=weights[index], gradients=gradients[index], saved=tuple(saved[index]), recompute=index in recomputed
        )
        for index, unit in enumerate(trace.units)
    }
    return decisions, state


def _elapsed_seconds(trace: Trace) -> list[float]:
    """Return the computing seconds before each slot, and of all slots."""
    return [0.0, *accumulate(compute_seconds(trace))]
