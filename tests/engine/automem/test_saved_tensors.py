"""Tests of saved tensor handles: values, geometry and errors as without hooks, one record per storage."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from dithc.engine.automem.saved_tensors import SavedStorage, SavedTensorRegistry, has_other_hooks

SIDE = 256  # 256 KiB of fp32


def make_registry(weight: nn.Parameter | None = None, units: list[str] | None = None) -> SavedTensorRegistry:
    def fetch(record: SavedStorage) -> Tensor:
        return record.slow_copy if record.original is None else record.original

    def find(address: int) -> nn.Parameter | None:
        inside = weight is not None and 0 <= address - weight.data_ptr() < weight.nbytes
        return weight if inside else None

    enter = (lambda unit: units.append(unit)) if units is not None else (lambda unit: None)
    return SavedTensorRegistry(find, lambda tensor: True, fetch, enter)


def offload_all(found: SavedTensorRegistry) -> None:
    """Move every record's bytes elsewhere and release the originals."""
    for record in list(found.records.values()):
        record.slow_copy, record.original = record.original.clone(), None


FUNCTIONS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.exp().sum(),
    lambda x: (x.t() @ x).sin().sum(),
    lambda x: (x[::2, 3:] * x[1::2, :-3]).tanh().sum(),
    lambda x: torch.nn.functional.layer_norm(x, (SIDE,)).pow(3).sum(),
    lambda x: torch.view_as_real(torch.view_as_complex(x.view(-1, 2)).conj().exp() * 2).sum(),
    lambda x: torch.nn.functional.max_pool2d(x[None], 2).exp().sum(),
    lambda x: x.to(torch.bfloat16).softmax(1).float().pow(2).sum(),
    lambda x: x.expand(3, SIDE, SIDE).sigmoid().prod(0).sum(),
]


@pytest.mark.parametrize("number", range(len(FUNCTIONS)))
def test_gradients_are_bitwise_equal_after_offloading_all_records(number: int) -> None:
    torch.manual_seed(0)
    values = torch.randn(SIDE, SIDE)
    plain, hooked = (values.clone().requires_grad_() for _ in range(2))
    FUNCTIONS[number](plain).backward()
    registry = make_registry()
    with registry.hooks("unit"):
        out = FUNCTIONS[number](hooked)
    assert len(registry.records) > 0
    offload_all(registry)
    out.backward()
    assert torch.equal(plain.grad, hooked.grad)


def test_views_of_one_storage_share_a_record_freed_with_the_graph() -> None:
    registry = make_registry()
    x = torch.randn(SIDE, SIDE, requires_grad=True)
    y = x * 2
    with registry.hooks("a"):
        one = (y.t() * y.view(-1).view(SIDE, SIDE)).sum()
    with registry.hooks("b"):
        two = y[: SIDE // 2].sin().sum()
    assert list(registry.records) == [("a", 0)]
    del one
    assert len(registry.records) == 1
    del two
    assert len(registry.records) == 0


@pytest.mark.parametrize("size", [16, SIDE * SIDE])
@pytest.mark.parametrize("offloaded", [False, True])
def test_in_place_change_after_saving_raises_as_without_hooks(size: int, offloaded: bool) -> None:
    for registry in (None, make_registry()):
        x = torch.randn(size, requires_grad=True)
        with nullcontext() if registry is None else registry.hooks("unit"):
            y = x.exp()
            z = y.sin()
        if registry is not None and offloaded:
            offload_all(registry)
        with torch.no_grad():
            y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()


def test_storage_changed_between_two_saves_is_saved_twice() -> None:
    registry = make_registry()
    x = torch.randn(SIDE, SIDE)
    w = torch.randn(SIDE, SIDE, requires_grad=True)
    with registry.hooks("unit"):
        (w * x).sum()
        x.add_(1)
        out = (w * x).sum()
    offload_all(registry)
    out.backward()
    assert torch.equal(w.grad, x)


def test_saved_parameter_is_read_from_current_memory() -> None:
    weight = nn.Parameter(torch.randn(SIDE, SIDE))
    storage = weight.data
    units: list[str] = []
    registry = make_registry(weight, units)
    x = torch.randn(SIDE, SIDE, requires_grad=True)
    with registry.hooks("unit"):
        out = (x @ weight.t()).sum() + (x * weight[3:].flatten()[:SIDE]).sum()
    originals = [record.original for record in registry.records.values()]
    assert not any(one is not None and one.data_ptr() == storage.data_ptr() for one in originals)
    weight.data = storage.clone()
    expected = weight.detach().sum(0) + weight.detach()[3]
    storage.zero_()
    out.backward()
    assert units
    torch.testing.assert_close(x.grad, expected.expand(SIDE, SIDE))


def test_changed_parameter_raises_in_backward() -> None:
    weight = nn.Parameter(torch.randn(SIDE, SIDE))
    registry = make_registry(weight)
    x = torch.randn(SIDE, SIDE, requires_grad=True)
    with registry.hooks("unit"):
        out = (x @ weight).sum()
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_second_derivatives_are_equal_with_and_without_hooks() -> None:
    values = torch.randn(SIDE, SIDE)
    found = []
    for registry in (None, make_registry()):
        x = values.clone().requires_grad_()
        with nullcontext() if registry is None else registry.hooks("unit"):
            y = x.exp() * x
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        first.sum().backward()
        found.append(x.grad)
    assert torch.equal(found[0], found[1])


def test_external_hooks_are_detected() -> None:
    assert not has_other_hooks()
    with torch.autograd.graph.save_on_cpu():
        assert has_other_hooks()
    results = []

    def function(x: Tensor) -> Tensor:
        results.append(has_other_hooks())
        return x.sum()

    torch.func.grad(function)(torch.ones(2))
    assert results == [True]
