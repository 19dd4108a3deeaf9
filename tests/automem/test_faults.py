"""Whatever fails or is done in an unusual order: an error, or the right result, and nothing is left in the tiers."""

import errno
import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dithc.automem import AutoMem, manager
from dithc.automem.manager import Manager
from dithc.log import UserError
from dithc.memory import Copies, Tiers, TierSpec
from tests.automem.managed import MIB, dit, loss_of, train, used_bytes


def managed(model: nn.Module) -> Manager:
    found = manager(model)
    assert found is not None
    return found


def warm(model: nn.Module) -> nn.Module:
    """The model, with its plan followed from the next call on; its weights and gradients are as before."""
    loss_of(model, 0).backward()
    model.zero_grad()
    return model


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]


def assert_gradients(model: nn.Module, expected: list[Tensor | None]) -> None:
    for one, two in zip(gradients(model), expected, strict=True):
        assert (one is None) == (two is None)
        assert one is None or two is None or torch.equal(one, two)


def of_plain(action: Callable[[nn.Module], object]) -> list[Tensor | None]:
    model = dit()
    action(model)
    return gradients(model)


@pytest.mark.parametrize("by", ["threads", "team"])
@pytest.mark.parametrize("file", [False, True])
def test_copies_that_fail_never_give_wrong_numbers(make_tiers: Callable[..., Tiers], by: str, file: bool) -> None:
    tiers = make_tiers(24, file=file)
    copies = Copies(tiers, by=by)  # type: ignore[arg-type]
    model = warm(AutoMem(dit(), tiers=tiers, copies=copies))
    loss_of(model, 1).backward()
    model.zero_grad()
    copies.inject(error=errno.EIO, after_bytes=20 * MIB)
    results = []
    for _ in range(2):
        try:
            loss_of(model, 2).backward()
        except OSError as error:
            results.append(error.errno)
        else:
            assert_gradients(model, of_plain(lambda plain: loss_of(plain, 2).backward()))
            results.append(0)
        model.zero_grad()
    assert copies.counters().failed > 0
    assert set(results) <= {0, errno.EIO}
    assert file or results == [0, 0], "memory can be read in place"
    copies.inject()
    loss_of(model, 2).backward()
    assert_gradients(model, of_plain(lambda plain: loss_of(plain, 2).backward()))
    del model
    gc.collect()
    copies.close()


def test_slow_copies_only_take_time(make_tiers: Callable[..., Tiers]) -> None:
    tiers = make_tiers(24, file=True)
    copies = Copies(tiers)
    model = warm(AutoMem(dit(), tiers=tiers, copies=copies))
    copies.inject(delay_seconds=0.02)
    loss_of(model, 2).backward()
    assert_gradients(model, of_plain(lambda plain: loss_of(plain, 2).backward()))
    assert copies.counters().stall_seconds > 0
    copies.inject()
    del model
    gc.collect()
    copies.close()


def test_full_file_keeps_the_rest_in_memory(tmp_path: Path) -> None:
    fast = TierSpec(name="fast", kind="ddr", budget_bytes=24 * MIB)
    tiers = Tiers([fast, TierSpec(name="file", kind="file", budget_bytes=24 * MIB, folder=tmp_path)])
    model = AutoMem(dit(), tiers=tiers)
    with pytest.raises(MemoryError, match="no memory"):  # both together are less than a step takes
        train(model)
    del model
    gc.collect()
    assert used_bytes(tiers) == [0, 0]
    tiers.close()


def test_slow_memory_that_is_full_leaves_the_rest_in_fast_memory(
    make_tiers: Callable[..., Tiers], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers = make_tiers(24)
    model = warm(AutoMem(dit(), tiers=tiers))
    loss_of(model, 1).backward()
    model.zero_grad()
    assert tiers.slow is not None

    def refuse(*_: object, **__: object) -> Tensor:
        raise MemoryError("full")

    monkeypatch.setattr(tiers.slow, "empty", refuse)
    before = managed(model).counters().offloaded_bytes
    loss_of(model, 2).backward()
    assert_gradients(model, of_plain(lambda plain: loss_of(plain, 2).backward()))
    assert managed(model).counters().offloaded_bytes == before


def test_folder_that_cannot_be_used_is_an_error_before_work(tmp_path: Path) -> None:
    for folder in (tmp_path / "missing", Path("/proc")):
        with pytest.raises(UserError, match="file tier"):
            Tiers(
                [
                    TierSpec(name="fast", kind="ddr", budget_bytes=MIB),
                    TierSpec(name="file", kind="file", budget_bytes=MIB, folder=folder),
                ]
            )


class Boom(Exception):
    """Raised in the midst of a pass."""


class FailBackward(torch.autograd.Function):
    """The identity, whose gradient fails."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, dy: Tensor) -> Tensor:
        raise Boom


@pytest.mark.parametrize("warm_first", [False, True])
def test_exception_in_forward(tiers: Tiers, warm_first: bool) -> None:
    model = AutoMem(dit(), tiers=tiers)
    if warm_first:
        warm(model)

    def fail(*_: object) -> None:
        raise Boom

    hook = model.blocks[1].attn.register_forward_hook(fail)
    with pytest.raises(Boom):
        loss_of(model, 1)
    hook.remove()
    assert all(tiers.fast is not tiers.tier_of(p) for p in model.blocks[1].parameters()), "weights are at home"
    for _ in range(2):
        model.zero_grad()
        loss_of(model, 2).backward()
        assert_gradients(model, of_plain(lambda plain: loss_of(plain, 2).backward()))


@pytest.mark.parametrize("warm_first", [False, True])
def test_exception_in_backward(tiers: Tiers, warm_first: bool) -> None:
    model = AutoMem(dit(), tiers=tiers)
    if warm_first:
        warm(model)
    hook = model.blocks[1].register_forward_hook(lambda module, args, out: FailBackward.apply(out))
    with pytest.raises(Boom):
        loss_of(model, 1).backward()
    hook.remove()
    for _ in range(2):
        model.zero_grad()
        loss_of(model, 2).backward()
        assert_gradients(model, of_plain(lambda plain: loss_of(plain, 2).backward()))


@pytest.mark.parametrize("order", ["apart", "reversed", "together"])
@pytest.mark.parametrize("warm_first", [False, True])
def test_forward_twice_before_backward(tiers: Tiers, order: str, warm_first: bool) -> None:
    def twice(model: nn.Module) -> None:
        losses = [loss_of(model, seed) for seed in (1, 2)]
        if order == "together":
            (losses[0] + losses[1]).backward()
        else:
            for loss in losses if order == "apart" else reversed(losses):
                loss.backward()

    model = AutoMem(dit(), tiers=tiers)
    if warm_first:
        warm(model)
    twice(model)
    assert_gradients(model, of_plain(twice))


def test_forward_without_backward_leaves_nothing(tiers: Tiers) -> None:
    model = warm(AutoMem(dit(), tiers=tiers))
    for seed in range(3):
        loss_of(model, seed)
    loss_of(model, 2).backward()
    assert_gradients(model, of_plain(lambda plain: loss_of(plain, 2).backward()))
    model.zero_grad()
    assert used_bytes(tiers)[0] < MIB


def test_backward_twice_over_a_kept_graph(tiers: Tiers) -> None:
    def twice(model: nn.Module) -> None:
        loss = loss_of(model, 1)
        loss.backward(retain_graph=True)
        loss.backward()

    model = warm(AutoMem(dit(), tiers=tiers))
    twice(model)
    assert_gradients(model, of_plain(twice))


def test_without_gradients(tiers: Tiers) -> None:
    model = AutoMem(dit(), tiers=tiers)
    expected = loss_of(dit(), 1).item()
    for step in range(3):
        with torch.no_grad():
            assert loss_of(model, 1).item() == expected
        with torch.inference_mode():
            assert loss_of(model, 1).item() == expected
        if step == 1:
            warm(model)
    model.zero_grad()
    assert used_bytes(tiers)[0] < MIB


def test_gradient_of_the_input_alone(tiers: Tiers) -> None:
    def of_input(model: nn.Module) -> Tensor:
        x = torch.randn(4, 4, 32, 32, generator=torch.Generator().manual_seed(5)).requires_grad_()
        out = model(x, torch.arange(4), torch.arange(4))
        return torch.autograd.grad(out.pow(2).mean(), x)[0]

    model = warm(AutoMem(dit(), tiers=tiers))
    assert torch.equal(of_input(model), of_input(dit()))


def test_unit_that_is_called_by_itself_or_left_out(tiers: Tiers) -> None:
    def alone(model: nn.Module) -> None:
        x, c = (torch.randn(*size, generator=torch.Generator().manual_seed(4)) for size in ((4, 256, 256), (4, 256)))
        model.blocks[1](x, c).sum().backward()  # type: ignore[operator,index]

    def without(model: nn.Module) -> None:
        kept = model.blocks
        model.blocks = kept[:1]  # type: ignore[index]
        loss_of(model, 1).backward()
        model.blocks = kept

    model = warm(AutoMem(dit(), tiers=tiers))
    for action in (alone, without, lambda model: loss_of(model, 3).backward()):
        model.zero_grad()
        action(model)
        assert_gradients(model, of_plain(action))


def test_gradient_that_is_held_beyond_a_step_keeps_its_numbers(tiers: Tiers) -> None:
    model = warm(AutoMem(dit(), tiers=tiers))
    loss_of(model, 1).backward()
    held = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    loss_of(model, 2).backward()
    for one, two in zip(held, of_plain(lambda plain: loss_of(plain, 1).backward()), strict=True):
        assert one is None or two is None or torch.equal(one, two)
    del held
    model.zero_grad()
