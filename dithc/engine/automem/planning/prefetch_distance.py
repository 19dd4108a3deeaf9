"""Prefetch distances in slots that hide loads behind computing."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import add

from dithc.engine.automem.planning.decision import UnitDecision
from dithc.engine.automem.planning.schedule import is_offloadable, is_offloaded
from dithc.engine.automem.trace import Trace


def compute_seconds(trace: Trace, decisions: Mapping[str, UnitDecision] | None = None) -> list[float]:
    """Return the computing seconds of the 2 L slots, including recomputation."""
    forward = [unit.forward_seconds for unit in trace.units]
    backward = [
        unit.backward_seconds + (unit.forward_seconds if decisions and decisions[unit.name].recompute else 0.0)
        for unit in reversed(trace.units)
    ]
    return forward + backward


def weight_loads(trace: Trace, decisions: Mapping[str, UnitDecision] | None) -> list[int]:
    """Return weight bytes to load before each of the 2 L slots; without decisions, the maximum over all decisions."""
    copied = [
        unit.weight_bytes if decisions is None or decisions[unit.name].weights == "copied" else 0
        for unit in trace.units
    ]
    return copied + copied[::-1]


def saved_loads(trace: Trace, decisions: Mapping[str, UnitDecision] | None) -> list[int]:
    """Return saved tensor bytes to load before each of the 2 L slots; without decisions, the maximum."""
    num_units = len(trace.units)
    bytes_at = [0] * (2 * num_units)
    for index, unit in enumerate(trace.units):
        for tensor in unit.saved:
            is_loaded = is_offloadable(trace, index, tensor) and (
                decisions is None or is_offloaded(decisions[unit.name], tensor.ordinal)
            )
            bytes_at[num_units + tensor.first_reader] += tensor.bytes if is_loaded else 0
    return bytes_at


def loads(trace: Trace, decisions: Mapping[str, UnitDecision] | None) -> list[int]:
    """Return the bytes of weights and saved tensors to load before each of the 2 L slots."""
    return list(map(add, weight_loads(trace, decisions), saved_loads(trace, decisions)))


def hiding_distances(seconds: Sequence[float], bytes_at: Sequence[int], load_bytes_per_second: float) -> list[int]:
    """Return for each slot the smallest number of earlier slots whose computing hides its loads.

    Loads share one stream. A load that cannot be hidden gets the distance with the least waiting.
    """
    loading = [num_bytes / load_bytes_per_second for num_bytes in bytes_at]
    tolerance = 1e-12 * (sum(loading) + sum(seconds))  # for sums that should be equal
    # `backlog` is the load time up to a slot less the compute time before it. A load that starts at an earlier slot
    # waits for the growth of `backlog` since then. `marks` are the slots after which it was never as high, latest last.
    backlog = 0.0
    marks: list[tuple[float, int]] = []
    distances = []
    for slot, (load, compute) in enumerate(zip(loading, seconds, strict=True)):
        backlog += load
        distance = 0
        if marks:
            position = bisect_right(marks, tolerance - backlog, key=lambda mark: -mark[0]) - 1
            mark, start = marks[max(0, position)]  # the latest slot that hides everything, or else the highest mark
            distance = slot - start if max(0.0, backlog - mark) < load - tolerance else 0
        distances.append(distance)
        while marks and marks[-1][0] <= backlog + tolerance:
            marks.pop()
        marks.append((backlog, slot))
        backlog -= compute
    return distances


def with_distances(
    trace: Trace, decisions: Mapping[str, UnitDecision], distances: Sequence[int]
) -> dict[str, UnitDecision]:
    """Return the decisions with these distances, or 0 for slots without loads."""
    num_units = len(trace.units)
    needed = loads(trace, decisions)
    return {
        unit.name: replace(
            decisions[unit.name],
            forward_ahead=distances[index] if needed[index] else 0,
            backward_ahead=distances[2 * num_units - 1 - index] if needed[2 * num_units - 1 - index] else 0,
        )
        for index, unit in enumerate(trace.units)
    }
