"""Tests of `partition`: it covers the range in order, without overlap, as evenly as possible, for any size."""

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dithc.engine import native
from dithc.engine.cftp import partition

LENGTHS, PARTS, MULTIPLES = st.integers(0, 5000), st.integers(1, 64), st.integers(1, 64)


@given(LENGTHS, PARTS, MULTIPLES)
def test_parts_cover_the_range_aligned_and_balanced_within_one_multiple(length, parts, multiple):
    slices = partition(length, parts, multiple=multiple)
    assert len(slices) == parts
    assert [index for part in slices for index in range(part.start, part.stop)] == list(range(length))
    units = [-(-(part.stop - part.start) // multiple) for part in slices]
    assert max(units) - min(units) <= 1
    assert all(part.start % multiple == 0 or part.start == length for part in slices)


@pytest.mark.skipif(native.library() is None, reason=f"C kernels: {native.load_library().reason}")
@given(LENGTHS, PARTS, MULTIPLES)
def test_partition_matches_the_c_library(length, parts, multiple):
    start, stop = ctypes.c_int64(), ctypes.c_int64()
    found = []
    for part in range(parts):
        native.library().hc_part(length, multiple, part, parts, ctypes.byref(start), ctypes.byref(stop))
        found.append(slice(start.value, stop.value))
    assert found == partition(length, parts, multiple=multiple)


@pytest.mark.parametrize(("length", "parts", "multiple"), [(-1, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_impossible_partitions_are_rejected(length, parts, multiple):
    with pytest.raises(ValueError, match="expected length 0 or more"):
        partition(length, parts, multiple=multiple)
