"""Start points of loads and offloads by turn, from the plan's `forward_ahead` and `backward_ahead`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dithc.engine.automem.planning.decision import UnitDecision
from dithc.engine.automem.trace import SavedTensor, Trace


@dataclass(frozen=True, kw_only=True)
class ScheduledPass:
    """A unit's forward or backward pass, with the loads that start before it, in order of need."""

    unit: str
    kind: Literal["forward", "backward"]
    load_weights: tuple[str, ...]  # units with weight loads that start at this turn
    load_saved: tuple[tuple[str, int], ...]  # saved tensors to load from this turn: (first saving unit, ordinal)
    offload_saved: tuple[tuple[str, int], ...]  # saved tensors offloaded from the end of this (forward) turn
    keep_weights: bool  # keep the unit's forward copy for backward after this turn


def schedule_passes(trace: Trace, decisions: Mapping[str, UnitDecision]) -> tuple[ScheduledPass, ...]:
    """Return the 2 L turns of a step: forward of units 0 to L - 1, backward of L - 1 to 0; own loads come first."""
    num_units = len(trace.units)
    weights: list[list[str]] = [[] for _ in range(2 * num_units)]
    saved: list[list[tuple[str, int]]] = [[] for _ in range(2 * num_units)]
    offloads: list[list[tuple[str, int]]] = [[] for _ in range(2 * num_units)]
    kept = set()
    by_first_reader: dict[int, list[tuple[str, int]]] = {}
    for index, unit in enumerate(trace.units):
        for tensor in unit.saved:
            if is_offloaded(decisions[unit.name], tensor.ordinal):
                by_first_reader.setdefault(tensor.first, []).append((unit.name, tensor.ordinal))
                offloads[last_saver(trace, index, tensor)].append((unit.name, tensor.ordinal))
    for turn in range(2 * num_units):
        index = min(turn, 2 * num_units - 1 - turn)
        name = trace.units[index].name
        decision = decisions[name]
        start = max(0, turn - (decision.forward_ahead if turn < num_units else decision.backward_ahead))
        if decision.weights == "copied":
            if turn >= num_units and start <= index:
                kept.add(name)
            else:
                weights[start].append(name)
        if turn >= num_units:
            saved[max(start, num_units)].extend(by_first_reader.get(turn - num_units, []))
    return tuple(
        ScheduledPass(
            unit=trace.units[min(turn, 2 * num_units - 1 - turn)].name,
            kind="forward" if turn < num_units else "backward",
            load_weights=tuple(weights[turn]),
            load_saved=tuple(saved[turn]),
            offload_saved=tuple(offloads[turn]),
            keep_weights=turn < num_units and trace.units[turn].name in kept,
        )
        for turn in range(2 * num_units)
    )


def last_saver(trace: Trace, index: int, tensor: SavedTensor) -> int:
    """Return the unit that reads a tensor of unit `index` first in backward."""
    return max(index, len(trace.units) - 1 - tensor.first)


def is_offloaded(decision: UnitDecision, ordinal: int) -> bool:
    """Return whether a plan offloads this saved tensor; ordinals beyond the plan are kept."""
    return ordinal < len(decision.saved) and decision.saved[ordinal] == "offload"
