"""Tests of `partition`: order, balance and coverage for any size. The optimizer has the same bits on all partitions."""

import ctypes

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dithc.engine import hcops, native
from dithc.engine.cftp import partition
from dithc.engine.hardware import discover_machine
from dithc.engine.native import thread_layout

NEEDS_C = pytest.mark.skipif(native.library() is None, reason=f"C kernels: {native.load_library().reason}")
LENGTHS, PARTS, MULTIPLES = st.integers(0, 5000), st.integers(1, 64), st.integers(1, 64)
# Clusters and threads; with nodes (0, 0) the optimizer follows the clusters' parts of each tensor.
PARTITIONS = [(1, 1, ()), (1, 2, ()), (2, 2, ()), (1, 3, ()), (2, 3, (0, 0)), (3, 3, ())]


@given(LENGTHS, PARTS, MULTIPLES)
def test_parts_cover_the_range_aligned_and_balanced_within_one_multiple(length, parts, multiple):
    slices = partition(length, parts, multiple=multiple)
    assert len(slices) == parts
    assert [index for part in slices for index in range(part.start, part.stop)] == list(range(length))
    units = [-(-(part.stop - part.start) // multiple) for part in slices]
    assert max(units) - min(units) <= 1
    assert all(part.start % multiple == 0 or part.start == length for part in slices)


@NEEDS_C
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


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def adamw() -> list[Tensor]:
    shapes = [(300, 211), (7,), (5000, 9), (1,), (1025,)]
    weights, gradients, first, second, averages = (
        [drawn(*shape, seed=10 * kind + i) for i, shape in enumerate(shapes)] for kind in range(5)
    )
    second = [tensor.square() for tensor in second]
    settings = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1, "step": 3, "ema_decay": 0.5}
    hcops.optimizer.adamw(weights, gradients, first, second, averages=averages, **settings)
    return [*weights, *first, *second, *averages]


@NEEDS_C
def test_adamw_is_bitwise_equal_on_all_partitions(monkeypatch, use_backend):
    use_backend("c")
    found = []
    for clusters, threads, nodes in PARTITIONS:
        edges = [threads * cluster // clusters for cluster in range(clusters + 1)]
        parts = tuple(map(range, edges, edges[1:]))
        layout = thread_layout.ThreadLayout(num_threads=threads, cpus=(), clusters=parts, nodes=nodes)
        context = thread_layout.new_context(discover_machine(), layout, isa=native.instruction_set())
        monkeypatch.setattr(native, "context", lambda context=context, **_: context)
        found.append(adamw())
        native.library().hc_context_destroy(context)
    assert all(torch.equal(*pair) for other in found[1:] for pair in zip(other, found[0], strict=True))
