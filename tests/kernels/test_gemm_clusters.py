"""Products cut among clusters, by rows or by columns: correct against float64, bits of one thread, and parts that tile
C.

Legend: C (m, n) = A (m, k) B (k, n).
"""

import ctypes
from collections.abc import Iterator

import pytest
import torch

from dithc.engine import native
from dithc.engine.native.loading import isa_number
from dithc.engine.native.signatures import Machine
from tests.kernels.test_gemm import BF16, F32, ISAS, arguments, check, matrix, product

pytestmark = pytest.mark.skipif(not ISAS, reason=f"C kernels: {native.load_library().reason}")
MACHINES = [(1, 2), (2, 2), (2, 3), (2, 4), (3, 3), (3, 5), (3, 6)]  # clusters and threads
BY_COST, ROWS, COLUMNS = 0, 1, 2
SHAPES = [(97, 210, 65), (210, 97, 130), (5, 300, 70), (300, 5, 70), (1, 1, 40), (47, 3, 17)]


@pytest.fixture(params=MACHINES, ids=lambda machine: "{}x{}".format(*machine))
def machine(request) -> Iterator[tuple[int, int, int]]:
    """Number of clusters and threads, and their context, with separate memory for each cluster."""
    clusters, threads = request.param
    context = ctypes.c_void_p()
    settings = Machine(isa_number(""), threads, num_clusters=clusters, nodes=(ctypes.c_int * clusters)())
    native.library().hc_context_create(ctypes.byref(settings), ctypes.byref(context))
    yield clusters, threads, context.value
    native.library().hc_context_destroy(context)


def parts(context: int, threads: int, product: native.GemmArguments) -> list[tuple[int, ...]]:
    """Return first row, end row, first column and end column of each thread."""
    found = []
    for thread in range(threads):
        part = (ctypes.c_int64 * 4)(-1, -1, -1, -1)
        native.library().hc_gemm_cut(context, ctypes.byref(product), thread, part)
        found.append(tuple(part))
    return found


@pytest.mark.parametrize("compute", [F32, BF16])
@pytest.mark.parametrize("cut", [BY_COST, ROWS, COLUMNS])
def test_any_cut_matches_a_single_thread_bitwise(machine, cut, compute):
    _, threads, context = machine
    for number, (m, n, k) in enumerate(SHAPES):
        a, b = matrix(m, k, F32, "rows", seed=number), matrix(k, n, F32, "columns", seed=number + 9)
        single, c = torch.full((m, n), 7.0), torch.full((m, n), 7.0)
        sums_alone, sums = torch.zeros(m), torch.zeros(m)
        # explicit cuts, because one thread computes small products by default
        for grid in ({"row_cuts": 1}, {"column_cuts": 1}):
            cut_product = arguments(a, b, c, compute, kc=64, cluster_cut=cut, row_sum_a=sums.data_ptr(), **grid)
            native.library().hc_gemm(context, ctypes.byref(cut_product))
            single_product = arguments(a, b, single, compute, kc=64, num_threads=1, row_sum_a=sums_alone.data_ptr())
            native.library().hc_gemm(context, ctypes.byref(single_product))
            assert torch.equal(c, single), (m, n, k, grid)
            assert torch.equal(sums, sums_alone)
            exact, bound = product(a, b, compute)
            check(c, exact, 7 * bound)  # AMX sums parts of bf16; see hc_gemm in kernels/include/hcops.h
            assert len([part for part in parts(context, threads, cut_product) if any(part)]) >= 1


@pytest.mark.parametrize("cut", [ROWS, COLUMNS])
@pytest.mark.parametrize(("m", "n"), [(1000, 700), (31, 5000), (4, 4000), (2000, 190)])
def test_parts_cover_c_exactly_once(machine, cut, m, n):
    clusters, threads, context = machine
    a, b, c = torch.zeros(m, 300), torch.zeros(300, n), torch.zeros(m, n)
    found = parts(context, threads, arguments(a, b, c, F32, cluster_cut=cut))
    times = torch.zeros(m, n, dtype=torch.int32)
    for row, row_stop, column, column_stop in found:
        times[row:row_stop, column:column_stop] += 1
    assert (times == 1).all()
    whole_rows = all(part[2:] == (0, n) for part in found if any(part))
    if clusters == threads and clusters > 1:  # no cuts inside a cluster
        assert whole_rows == (cut == ROWS)


def test_cost_model_cuts_the_longer_side(machine):
    """With fewer rows than columns, packing all of A is cheaper for a cluster than packing all of B."""
    clusters, threads, context = machine
    if clusters != threads:
        pytest.skip("one thread in a cluster shows its part")
    tall = arguments(torch.zeros(4096, 384), torch.zeros(384, 1152), torch.zeros(4096, 1152), F32)
    wide = arguments(torch.zeros(384, 900), torch.zeros(900, 1536), torch.zeros(384, 1536), F32)
    assert all(part[2:] == (0, 1152) for part in parts(context, threads, tall))
    assert all(part[:2] == (0, 384) for part in parts(context, threads, wide))


@pytest.mark.parametrize(("m", "n"), [(4096, 1152), (384, 4608)])
def test_clusters_on_the_same_memory_node_are_cut_as_a_single_cluster(m, n):
    library, found = native.library(), []
    for clusters in (1, 2):
        ctx = ctypes.c_void_p()
        library.hc_context_create(ctypes.byref(Machine(isa_number(""), 4, num_clusters=clusters)), ctypes.byref(ctx))
        settings = arguments(torch.zeros(m, 384), torch.zeros(384, n), torch.zeros(m, n), F32)
        found.append(parts(ctx.value, 4, settings))
        library.hc_context_destroy(ctx)
    assert found[0] == found[1]


def test_small_or_empty_product_has_at_most_one_part(machine):
    _, threads, context = machine
    small = arguments(torch.zeros(3, 4), torch.zeros(4, 5), torch.zeros(3, 5), F32)
    assert parts(context, threads, small) == [(0, 3, 0, 5)] + [(0, 0, 0, 0)] * (threads - 1)
    empty = arguments(torch.zeros(0, 4), torch.zeros(4, 5), torch.zeros(0, 5), F32)
    assert parts(context, threads, empty) == [(0, 0, 0, 0)] * threads


@pytest.mark.parametrize("changes", [{"cluster_cut": 3}, {"cluster_cut": -1}, {"m": -1}], ids=str)
def test_invalid_cuts_sizes_and_threads_are_rejected(machine, changes):
    _, threads, context = machine
    a, b, c = torch.zeros(4, 4), torch.zeros(4, 4), torch.full((4, 4), 7.0)
    bad = arguments(a, b, c, F32, **changes)
    with pytest.raises(ValueError, match="hc_gemm"):
        native.library().hc_gemm(context, ctypes.byref(bad))
    with pytest.raises(ValueError, match="hc_gemm_cut"):
        parts(context, threads, bad)
    assert (c == 7.0).all()
    good = arguments(a, b, c, F32)
    for thread in (-1, threads):
        with pytest.raises(ValueError, match="hc_gemm_cut"):
            native.library().hc_gemm_cut(context, ctypes.byref(good), thread, (ctypes.c_int64 * 4)())
