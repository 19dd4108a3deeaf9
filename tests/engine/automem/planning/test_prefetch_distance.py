"""Tests of prefetch distances against a search over all distances."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dithc.engine.automem.planning.prefetch_distance import compute_seconds, hiding_distances, loads
from tests.engine.automem.steps import blocks


def wait_seconds(slot: int, distance: int, seconds: list[float], bytes_at: list[int]) -> float:
    """Return the waiting seconds of a slot for a distance, with the loads in between before it on the stream."""
    copying = sum(bytes_at[slot - distance + 1 : slot + 1]) if distance else bytes_at[slot]
    return max(0.0, copying - sum(seconds[slot - distance : slot]))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=10))
def test_hiding_distance_is_the_shortest_with_minimal_wait(step: list[tuple[int, int]]) -> None:
    seconds, bytes_at = [float(row[0]) for row in step], [row[1] for row in step]
    for slot, distance in enumerate(hiding_distances(seconds, bytes_at, 1.0)):
        waits = [wait_seconds(slot, other, seconds, bytes_at) for other in range(slot + 1)]
        assert waits[distance] == min(waits)
        assert distance == waits.index(min(waits))


def test_loads_without_decisions_count_all_movable_bytes() -> None:
    trace = blocks(3, weight=10, saved=30)
    assert loads(trace, None) == [10, 10, 10, 10, 40, 40]  # the last block's tensor is read immediately
    assert compute_seconds(trace) == pytest.approx([1, 1, 1, 2, 2, 2])
