"""How many turns ahead loads start so that they hide behind computing."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dithc.automem.decision import Decision
from dithc.automem.ladder import is_offloadable
from dithc.automem.trace import Trace
from dithc.automem.turns import is_offloaded


def compute_seconds(trace: Trace, decisions: Mapping[str, Decision] | None = None) -> list[float]:
    """What each of the 2 L turns computes, recomputation included."""
    forward = [unit.forward_seconds for unit in trace.units]
    again = [
        unit.forward_seconds if decisions and decisions[unit.name].recompute else 0.0 for unit in reversed(trace.units)
    ]
    backward = [unit.backward_seconds for unit in reversed(trace.units)]
    return forward + [seconds + more for seconds, more in zip(backward, again, strict=True)]


def loads(trace: Trace, decisions: Mapping[str, Decision] | None) -> list[int]:
    """Bytes that must be loaded before each of the 2 L turns; without decisions: that any decisions could ask for."""
    num_units = len(trace.units)
    bytes_at = [0] * (2 * num_units)
    for index, unit in enumerate(trace.units):
        if decisions is None or decisions[unit.name].weights == "copied":
            bytes_at[index] += unit.weight_bytes
            bytes_at[2 * num_units - 1 - index] += unit.weight_bytes
        for tensor in unit.saved:
            moves = is_offloadable(trace, index, tensor) and (
                decisions is None or is_offloaded(decisions[unit.name], tensor.ordinal)
            )
            bytes_at[num_units + tensor.first] += tensor.bytes if moves else 0
    return bytes_at


def hiding_distances(seconds: Sequence[float], bytes_at: Sequence[int], copy_bytes_per_second: float) -> list[int]:
    """For each turn the smallest number of turns whose computing hides its loads.

    The load stream is one, so the loads of turns in between have to fit in as well. Where nothing hides them entirely
    (too early in the step, or more to load than time to load it) it is the distance that leaves least to wait for.
    """
    distances = []
    for turn, own in enumerate(bytes_at):
        best, best_wait = 0, own / copy_bytes_per_second
        copying = computing = 0.0
        for distance in range(1, turn + 1):
            if best_wait <= 0:
                break
            copying += bytes_at[turn - distance + 1] / copy_bytes_per_second
            computing += seconds[turn - distance]
            wait = max(0.0, copying - computing)
            if wait < best_wait * (1 - 1e-9):
                best, best_wait = distance, wait
        distances.append(best)
    return distances


def with_distances(trace: Trace, decisions: Mapping[str, Decision], distances: Sequence[int]) -> dict[str, Decision]:
    """The decisions with these distances where there is something to load, and 0 where there is not."""
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
