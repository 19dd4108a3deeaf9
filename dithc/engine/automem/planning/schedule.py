"""Start points of loads and offloads by slot, from the plan's `forward_ahead` and `backward_ahead`."""

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
    load_weights: tuple[str, ...]  # units with weight loads that start at this slot
    load_saved: tuple[tuple[str, int], ...]  # saved tensors to load from this slot: (first saving unit, ordinal)
    offload_saved: tuple[tuple[str, int], ...]  # saved tensors offloaded from the end of this (forward) slot
    keep_weights: bool  # keep the unit's forward copy for backward after this slot


def schedule_passes(trace: Trace, decisions: Mapping[str, UnitDecision]) -> tuple[ScheduledPass, ...]:
    """Return the 2 L slots of a step: forward of units 0 to L - 1, backward of L - 1 to 0; own loads come first."""
    num_units = len(trace.units)
    weights: list[list[str]] = [[] for _ in range(2 * num_units)]
    saved: list[list[tuple[str, int]]] = [[] for _ in range(2 * num_units)]
    offloads: list[list[tuple[str, int]]] = [[] for _ in range(2 * num_units)]
    resident_units = set()
    by_first_reader: dict[int, list[tuple[str, int]]] = {}
    for index, unit in enumerate(trace.units):
        for tensor in unit.saved:
            if is_offloaded(decisions[unit.name], tensor.ordinal):
                by_first_reader.setdefault(tensor.first_reader, []).append((unit.name, tensor.ordinal))
                offloads[last_saver(trace, index, tensor)].append((unit.name, tensor.ordinal))
    for slot in range(2 * num_units):
        index = min(slot, 2 * num_units - 1 - slot)
        name = trace.units[index].name
        decision = decisions[name]
        start = max(0, slot - (decision.forward_ahead if slot < num_units else decision.backward_ahead))
        if decision.weights == "copied":
            if slot >= num_units and start <= index:
                resident_units.add(name)
            else:
                weights[start].append(name)
        if slot >= num_units:
            saved[max(start, num_units)].extend(by_first_reader.get(slot - num_units, []))
    return tuple(
        ScheduledPass(
            unit=trace.units[min(slot, 2 * num_units - 1 - slot)].name,
            kind="forward" if slot < num_units else "backward",
            load_weights=tuple(weights[slot]),
            load_saved=tuple(saved[slot]),
            offload_saved=tuple(offloads[slot]),
            keep_weights=slot < num_units and trace.units[slot].name in resident_units,
        )
        for slot in range(2 * num_units)
    )


def last_saver(trace: Trace, index: int, tensor: SavedTensor) -> int:
    """Return the unit that reads a tensor of unit `index` first in backward."""
    return max(index, len(trace.units) - 1 - tensor.first_reader)


def is_offloadable(trace: Trace, index: int, tensor: SavedTensor) -> bool:
    """Return whether a slot separates the last forward use from the first backward use."""
    return len(trace.units) + tensor.first_reader - last_saver(trace, index, tensor) > 1


def is_offloaded(decision: UnitDecision, ordinal: int) -> bool:
    """Return whether a plan offloads this saved tensor; ordinals beyond the plan are kept."""
    return ordinal < len(decision.saved) and decision.saved[ordinal] == "offload"
