"""Bytes in both levels at each slot under given decisions, with all possible copies complete.

This is the minimum that a plan needs, so it decides if the plan fits. Slots count as in `dithc.engine.automem.trace`; the update
is the last.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from dithc.engine.automem.planning.decision import KINDS, Kind, Place, UnitDecision
from dithc.engine.automem.planning.schedule import ScheduledPass, is_offloaded, last_saver, schedule_passes
from dithc.engine.automem.trace import SavedTensor, Trace, Unit


class Occupancy:
    """Bytes of a level by kind and slot, summed over spans."""

    def __init__(self, num_slots: int) -> None:
        self._changes = {kind: [0] * (num_slots + 1) for kind in KINDS}

    def add(self, kind: Kind, first: int, last: int, num_bytes: int) -> None:
        if num_bytes and first <= last:
            self._changes[kind][first] += num_bytes
            self._changes[kind][last + 1] -= num_bytes

    def parts(self) -> list[dict[Kind, int]]:
        columns = [list(accumulate(self._changes[kind]))[:-1] for kind in KINDS]
        return [dict(zip(KINDS, row, strict=True)) for row in zip(*columns, strict=True)]

    def totals(self) -> list[int]:
        return list(accumulate(map(sum, zip(*self._changes.values(), strict=True))))[:-1]


def occupancy(
    trace: Trace, decisions: Mapping[str, UnitDecision], state: Mapping[str, Place]
) -> tuple[Occupancy, Occupancy]:
    """Return the bytes in fast and in slow memory at each of the 2 L + 1 slots."""
    num_units = len(trace.units)
    passes = schedule_passes(trace, decisions)
    end = 2 * num_units
    fast, slow = Occupancy(end + 1), Occupancy(end + 1)
    fast.add("outside", 0, end, trace.outside_bytes)
    for item in trace.state:
        (fast if state[item.name] == "fast" else slow).add("state", 0, end, item.bytes)
    starts = _starts(trace, passes)
    for index, unit in enumerate(trace.units):
        decision = decisions[unit.name]
        backward = end - 1 - index
        tier = fast if decision.weights == "fast" else slow
        tier.add("weights", 0, end, unit.weight_bytes)
        if decision.weights == "copied" and passes[index].keep_weights:
            fast.add("weights", starts[unit.name, "forward"], backward, unit.weight_bytes)
        elif decision.weights == "copied":
            fast.add("weights", starts[unit.name, "forward"], index, unit.weight_bytes)
            fast.add("weights", starts[unit.name, "backward"], backward, unit.weight_bytes)
        if decision.gradients == "slow":
            slow.add("gradients", 0, end, unit.gradient_bytes)
        else:
            fast.add("gradients", 0 if trace.gradients_persist else backward + 1, end, unit.gradient_bytes)
        for tensor in unit.saved:
            if is_dropped(decision, tensor, num_units - 1 - index):
                continue
            # In its own forward slot a tensor counts as the unit's use, unless it is an input.
            first, last = index if tensor.is_input else index + 1, num_units + tensor.last_reader
            if is_offloaded(decision, tensor.ordinal):
                last_use = last_saver(trace, index, tensor)
                fast.add("saved", first, last_use, tensor.bytes)
                slow.add("saved", last_use + 1, num_units + tensor.first_reader, tensor.bytes)
                first = max(starts[unit.name, tensor.ordinal], first, last_use + 1)
            fast.add("saved", first, last, tensor.bytes)
        for slot, carried in ((index, unit.forward_carried_bytes), (backward, unit.backward_carried_bytes)):
            fast.add("working", slot, slot, carried + working_bytes(unit, decision, forward=slot < num_units))
    return fast, slow


def working_bytes(unit: Unit, decision: UnitDecision, *, forward: bool) -> int:
    """Return a unit's bytes during its run; a recomputed unit also holds its saved tensors."""
    if forward:
        return unit.forward_bytes
    if not decision.recompute:
        return unit.backward_bytes
    created = sum(tensor.bytes for tensor in unit.saved if not tensor.is_input)
    return max(unit.forward_bytes, created + unit.backward_bytes)


def is_dropped(decision: UnitDecision, tensor: SavedTensor, position: int) -> bool:
    """Return whether recomputation frees a tensor saved at `position`: made and read by that unit only."""
    return decision.recompute and not tensor.is_input and tensor.first_reader == tensor.last_reader == position


def required_bytes(trace: Trace, decisions: Mapping[str, UnitDecision]) -> list[int]:
    """Return the fast bytes required before each of the 2 L slots: the unit's use, and the loads that start."""
    units = {unit.name: unit for unit in trace.units}
    required = []
    for scheduled in schedule_passes(trace, decisions):
        loads = sum(units[name].weight_bytes for name in scheduled.load_weights)
        loads += sum(units[name].saved[ordinal].bytes for name, ordinal in scheduled.load_saved)
        unit, decision = units[scheduled.unit], decisions[scheduled.unit]
        required.append(loads + working_bytes(unit, decision, forward=scheduled.kind == "forward"))
    return required


def _starts(trace: Trace, passes: Sequence[ScheduledPass]) -> dict[tuple[str, object], int]:
    """Return start slots of loads by (unit, "forward" or "backward") for weights, (unit, ordinal) for saved tensors."""
    index_of = {unit.name: index for index, unit in enumerate(trace.units)}
    starts: dict[tuple[str, object], int] = {}
    for slot, scheduled in enumerate(passes):
        for name in scheduled.load_weights:
            starts[name, "forward" if index_of[name] >= slot else "backward"] = slot
        starts.update(dict.fromkeys(scheduled.load_saved, slot))
    return starts
