"""Tests of saved tensor handles: values, geometry and errors as without hooks, one record per storage."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from dithc.engine.automem.saved_tensors import SavedStorage, SavedTensorRegistry, other_hooks_are_on

SIDE = 256  # 256 KiB of fp32


def book(weight: nn.Parameter | None = None, told: list[str] | None = None) -> SavedTensorRegistry:
    def fetch(record: SavedStorage) -> Tensor:
        found = record.away if record.here is None else record.here
        assert found is not None
        return found

    def at(address: int) -> nn.Parameter | None:
        inside = weight is not None and 0 <= address - weight.data_ptr() < weight.nbytes
        return weight if inside else None

    reached = (lambda unit: told.append(unit)) if told is not None else (lambda unit: None)
    return SavedTensorRegistry(weight_at=at, is_tracked=lambda tensor: True, fetch=fetch, reached=reached)


def send_away(found: SavedTensorRegistry) -> None:
    """Move every record's bytes elsewhere and release the originals."""
    for record in list(found.named.values()):
        assert record.here is not None
        record.away, record.here = record.here.clone(), None


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
def test_gradients_are_the_same_bits_after_everything_was_moved(number: int) -> None:
    torch.manual_seed(0)
    values = torch.randn(SIDE, SIDE)
    plain, hooked = (values.clone().requires_grad_() for _ in range(2))
    FUNCTIONS[number](plain).backward()
    records = book()
    with records.hooks("unit"):
        out = FUNCTIONS[number](hooked)
    assert len(records.named) > 0
    send_away(records)
    out.backward()
    assert plain.grad is not None
    assert hooked.grad is not None
    assert torch.equal(plain.grad, hooked.grad)


def test_views_of_one_storage_share_a_record_which_dies_with_the_graph() -> None:
    records = book()
    x = torch.randn(SIDE, SIDE, requires_grad=True)
    y = x * 2
    with records.hooks("a"):
        one = (y.t() * y.view(-1).view(SIDE, SIDE)).sum()
    with records.hooks("b"):
        two = y[: SIDE // 2].sin().sum()
    assert list(records.named) == [("a", 0)]
    del one
    assert len(records.named) == 1
    del two
    assert len(records.named) == 0


@pytest.mark.parametrize("size", [16, SIDE * SIDE])
@pytest.mark.parametrize("moved", [False, True])
def test_change_in_place_after_saving_is_an_error_as_without_hooks(size: int, moved: bool) -> None:
    for records in (None, book()):
        x = torch.randn(size, requires_grad=True)
        with nullcontext() if records is None else records.hooks("unit"):
            y = x.exp()
            z = y.sin()
        if records is not None and moved:
            send_away(records)
        with torch.no_grad():
            y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()


def test_storage_changed_between_two_savings_is_saved_twice() -> None:
    records = book()
    x = torch.randn(SIDE, SIDE)
    w = torch.randn(SIDE, SIDE, requires_grad=True)
    with records.hooks("unit"):
        (w * x).sum()
        x.add_(1)
        out = (w * x).sum()
    send_away(records)
    out.backward()
    assert w.grad is not None
    assert torch.equal(w.grad, x)


def test_saved_parameter_is_read_from_whatever_memory_it_has_then() -> None:
    weight = nn.Parameter(torch.randn(SIDE, SIDE))
    home = weight.data
    told: list[str] = []
    records = book(weight, told)
    x = torch.randn(SIDE, SIDE, requires_grad=True)
    with records.hooks("unit"):
        out = (x @ weight.t()).sum() + (x * weight[3:].flatten()[:SIDE]).sum()
    held = [record.here for record in records.named.values()]
    assert not any(one is not None and one.data_ptr() == home.data_ptr() for one in held)
    weight.data = home.clone()
    expected = weight.detach().sum(0) + weight.detach()[3]
    home.zero_()
    out.backward()
    assert told
    assert x.grad is not None
    torch.testing.assert_close(x.grad, expected.expand(SIDE, SIDE))


def test_changed_parameter_is_an_error() -> None:
    weight = nn.Parameter(torch.randn(SIDE, SIDE))
    records = book(weight)
    x = torch.randn(SIDE, SIDE, requires_grad=True)
    with records.hooks("unit"):
        out = (x @ weight).sum()
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_second_derivatives_are_the_same() -> None:
    values = torch.randn(SIDE, SIDE)
    found = []
    for records in (None, book()):
        x = values.clone().requires_grad_()
        with nullcontext() if records is None else records.hooks("unit"):
            y = x.exp() * x
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        first.sum().backward()
        found.append(x.grad)
    assert torch.equal(found[0], found[1])


def test_other_hooks_are_seen() -> None:
    assert not other_hooks_are_on()
    with torch.autograd.graph.save_on_cpu():
        assert other_hooks_are_on()
    seen = []

    def function(x: Tensor) -> Tensor:
        seen.append(other_hooks_are_on())
        return x.sum()

    torch.func.grad(function)(torch.ones(2))
    assert seen == [True]
