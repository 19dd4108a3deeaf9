"""Tests of operators on partitions: nearly equal results on all of them."""

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
EPSILON = torch.finfo(torch.float32).eps


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def linear() -> list[Tensor]:
    x, w, b = (drawn(*shape, seed=i).requires_grad_() for i, shape in enumerate([(3, 67, 130), (201, 130), (201,)]))
    y = hcops.linear(x, w, b)
    y.backward(drawn(*y.shape, seed=9))
    return [y.detach(), x.grad, w.grad, b.grad]


def attention() -> list[Tensor]:
    qkv = (0.5 * drawn(3, 77, 3 * 4 * 24, seed=1)).requires_grad_()
    y = hcops.attention(qkv, 4)
    y.backward(drawn(*y.shape, seed=2))
    return [y.detach(), qkv.grad]


def adaln() -> list[Tensor]:
    x, shift, scale = (
        drawn(*shape, seed=i).requires_grad_() for i, shape in enumerate([(3, 150, 130), (3, 130), (3, 130)])
    )
    y = hcops.vector.adaln(x, shift, scale)
    y.backward(drawn(*y.shape, seed=9))
    return [y.detach(), x.grad, shift.grad, scale.grad]


def rotate_heads() -> list[Tensor]:
    qkv, query, key = (
        drawn(*shape, seed=i).requires_grad_() for i, shape in enumerate([(3, 150, 3 * 2 * 66), (66,), (66,)])
    )
    angles = drawn(150, 33, seed=7)
    weights = {"query_weight": query, "key_weight": key}
    y = hcops.vector.rotate_heads(qkv, 2, cos=angles.cos(), sin=angles.sin(), **weights)
    y.backward(drawn(*y.shape, seed=9))
    return [y.detach(), qkv.grad, query.grad, key.grad]


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


@pytest.mark.parametrize("operator", [linear, attention, adaln, rotate_heads, adamw])
def test_numbers_agree_across_partitions(operator, results_on):
    right = results_on(operator, *PARTITIONS[0])
    for partition in PARTITIONS[1:]:
        for ours, theirs in zip(results_on(operator, *partition), right, strict=True):
            # A sum of up to n terms in another order differs by at most 2 n epsilon of their magnitudes. Here n < 512,
            # and the largest result approximates the magnitudes.
            bound = 2 * 512 * EPSILON * float(theirs.abs().max())
            assert float((ours - theirs).abs().max()) <= bound, partition


def test_the_partition_is_what_is_tested(results_on):
    """The operators ran on the created context, because its scratch memory was used."""
    results_on(attention, 2, 3, ())
    pages, count = ctypes.c_void_p(), ctypes.c_int64()
    native.library().hc_context_scratch(native.context(), ctypes.byref(pages), ctypes.byref(count))
    assert count.value > 0
