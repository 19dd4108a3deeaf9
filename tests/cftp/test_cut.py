"""Tests of operator partitions: each output is covered once for any size, and the parts equal the C library's."""

import ctypes
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dithc import native
from dithc.cftp import Part, cut, partition
from dithc.cftp.cut import ELEMENTWISE_MULTIPLE, NUM_DIMENSIONS, OPTIMIZER_MULTIPLE, TOKENS_OF_BLOCK
from dithc.log import UserError
from dithc.native.loading import isa_number
from dithc.native.signatures import Machine

KERNELS = Path(__file__).parents[2] / "kernels"
PRODUCTS = ("linear", "linear dx", "linear dw")
FLAT = tuple(operation for operation in NUM_DIMENSIONS if operation not in PRODUCTS)
CORES = st.lists(st.integers(1, 5), min_size=1, max_size=4)
TILES = st.tuples(st.integers(1, 17), st.integers(1, 17))
needs_library = pytest.mark.skipif(native.library() is None, reason=f"C kernels: {native.load().reason}")


def sizes(operation: str) -> st.SearchStrategy[tuple[int, ...]]:
    largest = 60 if operation in (*PRODUCTS, "attention") else 90_000 if NUM_DIMENSIONS[operation] == 1 else 200
    return st.tuples(*[st.integers(0, largest)] * NUM_DIMENSIONS[operation])


def flat(parts: list[list[Part]]) -> list[Part]:
    return [part for cluster in parts for part in cluster]


def check_product(parts: list[list[Part]], c: tuple[int, int], cores: list[int]) -> None:
    covered = np.zeros(c, dtype=int)
    for part in flat(parts):
        covered[part.rows, part.columns] += 1
    assert (covered == 1).all()
    assert [len(cluster) for cluster in parts] == cores
    assert [(part.cluster, part.core) for part in flat(parts)] == [
        (cluster, core) for cluster, size in enumerate(cores) for core in range(size)
    ]


@pytest.mark.parametrize("operation", PRODUCTS)
@pytest.mark.parametrize("dimension", ["rows", "columns"])
@given(st.data())
def test_a_product_is_covered_once_in_whole_tiles(operation, dimension, data):
    shape, cores, tile = data.draw(sizes(operation)), data.draw(CORES), data.draw(TILES)
    rows = data.draw(st.integers(1, min(cores)))
    grid = data.draw(st.sampled_from([None, (rows, min(cores) // rows)]))
    m, k, f = shape
    c = {"linear": (m, f), "linear dx": (m, k), "linear dw": (f, k)}[operation]
    parts = cut(operation, shape, cores=cores, dimension=dimension, tile=tile, grid=grid)
    check_product(parts, c, cores)
    for part in flat(parts):
        for own, size, multiple in zip((part.rows, part.columns), c, tile, strict=True):
            assert own.start % multiple == 0 or own.start == size


@pytest.mark.parametrize("operation", PRODUCTS)
@pytest.mark.parametrize("dimension", ["rows", "columns"])
@given(st.data())
def test_clusters_get_equal_shares_of_the_dimension_that_is_cut(operation, dimension, data):
    shape, clusters, tile = data.draw(sizes(operation)), data.draw(st.integers(1, 6)), data.draw(st.integers(1, 17))
    parts = cut(operation, shape, cores=[1] * clusters, dimension=dimension, tile=(tile, tile))
    units = [-(-(own.stop - own.start) // tile) for own in (getattr(part, dimension) for part in flat(parts))]
    assert max(units) - min(units) <= 1


@pytest.mark.parametrize("operation", FLAT)
@given(st.data())
def test_a_flat_output_is_covered_in_order_with_equal_units(operation, data):
    shape, cores = data.draw(sizes(operation)), data.draw(CORES)
    tile = (data.draw(st.integers(0, 17)), 1)
    parts = flat(cut(operation, shape, cores=cores, tile=tile))
    assert [part.rows.start for part in parts[:1]] == [0]
    assert all(before.rows.stop == after.rows.start for before, after in pairwise(parts))
    assert parts[-1].rows.stop == math.prod(shape)


def test_units_of_work_never_span_two_images_or_heads():
    # 3 images of 70 tokens are blocks of 32, 32, 6: nine units on four cores
    tokens = [part.rows for part in flat(cut("tokens", (3, 70), cores=[2, 2]))]
    assert tokens == [slice(0, 70), slice(70, 134), slice(134, 172), slice(172, 210)]
    queries = [part.rows for part in flat(cut("attention", (1, 3, 10), cores=[2], tile=(4, 1)))]
    assert queries == [slice(0, 18), slice(18, 30)]
    heads = [part.rows for part in flat(cut("attention", (1, 3, 10), cores=[2], tile=(0, 1)))]
    assert heads == [slice(0, 20), slice(20, 30)]


def test_more_cores_than_work_leaves_the_last_ones_idle():
    assert [part.rows for part in flat(cut("rows", (2,), cores=[2, 2]))] == [
        slice(0, 1),
        slice(1, 2),
        *[slice(2, 2)] * 2,
    ]
    check_product(cut("linear", (1, 5, 3), cores=[3, 2], tile=(8, 8)), (1, 3), [3, 2])


@pytest.mark.parametrize(
    ("operation", "shape", "how"),
    [
        ("linear", (4, 4), {"cores": [1]}),
        ("rows", (-1,), {"cores": [1]}),
        ("rows", (4,), {"cores": []}),
        ("rows", (4,), {"cores": [1, 0]}),
        ("linear", (4, 4, 4), {"cores": [4, 3], "grid": (2, 2)}),
        ("linear", (4, 4, 4), {"cores": [4], "grid": (0, 1)}),
        ("linear", (4, 4, 4), {"cores": [4], "tile": (0, 1)}),
    ],
)
def test_impossible_cuts_are_refused(operation, shape, how):
    with pytest.raises(UserError, match=r"(?s)cut of .*expected"):
        cut(operation, shape, **how)


@pytest.mark.parametrize(
    ("constant", "file", "name"),
    [
        (ELEMENTWISE_MULTIPLE, "activation/elementwise.c", "MULTIPLE"),
        (OPTIMIZER_MULTIPLE, "array.h", "HC_CHUNK"),
        (TOKENS_OF_BLOCK, "array.h", "HC_BLOCK_ROWS"),
    ],
)
def test_units_of_work_are_those_of_the_library(constant, file, name):
    assert f"#define {name} {constant}\n" in (KERNELS / file).read_text()


@needs_library
@given(st.integers(0, 10_000), st.integers(1, 70), st.integers(1, 40))
def test_partition_is_the_rule_of_the_library(length, multiple, parts):
    start, stop = ctypes.c_int64(), ctypes.c_int64()
    found = []
    for part in range(parts):
        native.library().hc_part(length, multiple, part, parts, ctypes.byref(start), ctypes.byref(stop))
        found.append(slice(start.value, stop.value))
    assert found == partition(length, parts, multiple=multiple)


def parts_of_library(context: int, threads: int, c: tuple[int, int], k: int, **blocking: int) -> list[tuple[int, ...]]:
    """Return first and end row, first and end column for each thread; no computation."""
    (m, n), anything = c, torch.zeros(1).data_ptr()
    fields = {"m": m, "n": n, "k": k, "compute": 0, "a_data": anything, "b_data": anything, "c_data": anything}
    strides = {"a_row_stride": k, "b_row_stride": n, "c_row_stride": n} | {f"{x}_column_stride": 1 for x in "abc"}
    asked = native.GemmArguments(**fields, **strides, **blocking)
    found = []
    for thread in range(threads):
        part = (ctypes.c_int64 * 4)()
        native.library().hc_gemm_cut(context, ctypes.byref(asked), thread, part)
        found.append(tuple(part))
    return found


@needs_library
@pytest.mark.parametrize(("clusters", "threads"), [(1, 1), (1, 4), (2, 4), (2, 3), (3, 6), (4, 4)])
def test_products_are_cut_as_the_library_cuts_them(clusters, threads):
    made, cores = ctypes.c_void_p(), [part.stop - part.start for part in partition(threads, clusters)]
    native.library().hc_context_create(
        ctypes.byref(Machine(isa_number("ref"), threads, num_clusters=clusters)), ctypes.byref(made)
    )
    try:
        sizes_of_c = [(640, 384), (97, 1031), (1031, 97), (7, 500), (513, 3)]
        # Tile of the kernel: every part starts at a multiple of it.
        alone = {"row_cuts": min(cores), "column_cuts": 1, "cluster_cut": 1}
        starts = [part for c in sizes_of_c for part in parts_of_library(made.value, threads, c, 64, **alone)]
        across = {"row_cuts": 1, "column_cuts": min(cores), "cluster_cut": 2}
        starts_across = [part for c in sizes_of_c for part in parts_of_library(made.value, threads, c, 64, **across)]
        tile = (math.gcd(*(part[0] for part in starts)) or 1, math.gcd(*(part[2] for part in starts_across)) or 1)
        for c in sizes_of_c:
            for dimension, number in (("rows", 1), ("columns", 2)):
                for rows in range(1, min(cores) + 1):
                    grid = (rows, min(cores) // rows)
                    asked = {"row_cuts": grid[0], "column_cuts": grid[1], "cluster_cut": number}
                    ours = flat(cut("linear", (c[0], 64, c[1]), cores=cores, dimension=dimension, tile=tile, grid=grid))
                    found = parts_of_library(made.value, threads, c, 64, **asked)
                    for part, theirs in zip(ours, found, strict=True):
                        own = (part.rows.start, part.rows.stop, part.columns.start, part.columns.stop)
                        is_empty = own[0] == own[1] or own[2] == own[3]
                        assert theirs == ((0, 0, 0, 0) if is_empty else own), (c, dimension, grid)
    finally:
        native.library().hc_context_destroy(made)
