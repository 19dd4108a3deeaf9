"""Tests of `partition`: it covers the range in order, without overlap, as evenly as possible, for any size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dithc.cftp import partition, partition_two_level

LENGTHS, PARTS, MULTIPLES = st.integers(0, 5000), st.integers(1, 64), st.integers(1, 64)


@given(LENGTHS, PARTS, MULTIPLES)
def test_parts_cover_the_range_in_order_without_overlap(length, parts, multiple):
    slices = partition(length, parts, multiple=multiple)
    assert len(slices) == parts
    assert [index for part in slices for index in range(part.start, part.stop)] == list(range(length))


@given(LENGTHS, PARTS)
def test_sizes_differ_by_at_most_one(length, parts):
    sizes = [part.stop - part.start for part in partition(length, parts)]
    assert max(sizes) - min(sizes) <= 1


@given(LENGTHS, PARTS, MULTIPLES)
def test_parts_start_on_a_multiple_and_differ_by_at_most_one_multiple(length, parts, multiple):
    slices = partition(length, parts, multiple=multiple)
    units = [-(-(part.stop - part.start) // multiple) for part in slices]
    assert max(units) - min(units) <= 1
    assert all(part.start % multiple == 0 or part.start == length for part in slices)


@given(LENGTHS, st.integers(1, 8), st.integers(1, 16), MULTIPLES)
def test_two_levels_cover_the_range_and_nest(length, clusters, cores, multiple):
    outer = partition(length, clusters, multiple=multiple)
    inner = partition_two_level(length, clusters, cores, multiple=multiple)
    assert [index for row in inner for part in row for index in range(part.start, part.stop)] == list(range(length))
    for cluster, row in zip(outer, inner, strict=True):
        assert all(cluster.start <= part.start <= part.stop <= cluster.stop for part in row)


def test_more_parts_than_elements_leaves_the_last_empty():
    assert [part.stop - part.start for part in partition(2, 4)] == [1, 1, 0, 0]


@pytest.mark.parametrize(("length", "parts", "multiple"), [(-1, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_impossible_cuts_are_refused(length, parts, multiple):
    with pytest.raises(ValueError, match="expected length 0 or more"):
        partition(length, parts, multiple=multiple)
