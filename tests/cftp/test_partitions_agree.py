"""Tests of the optimizer on partitions: the same bits on all of them. `test_cases.py` tests other operators."""

import ctypes
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dithc import hcops, native
from dithc.hardware import discover
from dithc.native import contexts

pytestmark = pytest.mark.skipif(native.library() is None, reason=f"C kernels: {native.load().reason}")

# Clusters and threads; with nodes (0, 0) the optimizer follows the clusters' parts of each tensor.
PARTITIONS = [(1, 1, ()), (1, 2, ()), (2, 2, ()), (1, 3, ()), (2, 3, (0, 0)), (3, 3, ())]


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


@pytest.fixture
def results_on(monkeypatch, use_backend) -> Callable[..., list[Tensor]]:
    """Return a function that runs an operator on a context with a given partition."""
    use_backend("c")
    made: list[int] = []

    def results(
        operator: Callable[[], list[Tensor]], clusters: int, threads: int, nodes: tuple[int, ...]
    ) -> list[Tensor]:
        edges = [threads * cluster // clusters for cluster in range(clusters + 1)]
        wanted = contexts.Layout(
            num_threads=threads, cpus=(), clusters=tuple(map(range, edges, edges[1:])), nodes=nodes
        )
        context = contexts.new_context(discover(), wanted, isa=native.isa())
        made.append(context)
        monkeypatch.setattr(native, "context", lambda **_: context)
        return operator()

    yield results
    for context in made:
        native.library().hc_context_destroy(context)


def test_numbers_agree_across_partitions(results_on):
    right = results_on(adamw, *PARTITIONS[0])
    for partition in PARTITIONS[1:]:
        assert all(torch.equal(*pair) for pair in zip(results_on(adamw, *partition), right, strict=True)), partition


def test_the_partition_is_what_is_tested(results_on):
    """The operators ran on the created context, because its scratch memory was used."""
    results_on(lambda: [hcops.attention(drawn(3, 77, 96, seed=1), 4)], 2, 3, ())
    pages, count = ctypes.c_void_p(), ctypes.c_int64()
    native.library().hc_context_scratch(native.context(), ctypes.byref(pages), ctypes.byref(count))
    assert count.value > 0
