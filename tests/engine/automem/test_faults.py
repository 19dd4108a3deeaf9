"""Tests of failures and unusual call orders: an error or the correct result, with empty tiers at the end.

The plan moves all tensors, and each test asserts that it did.
"""

import errno
import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dithc.engine.automem import AutoMem, get_manager
from dithc.engine.memory import CopyEngine, Tiers, TierSpec
from tests.engine.automem.managed_models import (
    MIB,
    assert_equal,
    assert_moved,
    dit,
    gradients,
    loss_of,
    manager_of,
    moving_plan,
    small,
    train,
    used_bytes,
)

pytestmark = pytest.mark.sampled("managed tensors")
Build = Callable[..., nn.Module]


@pytest.fixture(params=["memory", "file"])
def model(request: pytest.FixtureRequest, moving_model: Build) -> Iterator[nn.Module]:
    """Yield a model with a plan; it must move tensors in the test, and is deleted afterwards."""
    found = [warm(moving_model(small, file=request.param == "file"))]
    yield found[0]
    del request.node.funcargs["model"]  # a reference of pytest that would outlive the tiers
    assert_moved(found.pop())


def warm(model: nn.Module) -> nn.Module:
    """Return the model with its plan active from the next call on, and unchanged weights and gradients."""
    loss_of(model, 0).backward()
    model.zero_grad()
    return model


def assert_gradients_match(model: nn.Module, action: Callable[[nn.Module], object]) -> None:
    plain = small()
    action(plain)
    assert_equal(gradients(model), gradients(plain))


@cache
def gradients_of_seed(seed: int) -> list[Tensor | None]:
    plain = small()
    loss_of(plain, seed).backward()
    return gradients(plain)


def assert_correct(model: nn.Module, *, seed: int = 2) -> None:
    """Assert that a new pass computes correct gradients."""
    model.zero_grad()
    loss_of(model, seed).backward()
    assert_equal(gradients(model), gradients_of_seed(seed))
    model.zero_grad()


@pytest.mark.parametrize("file", [False, True])
@pytest.mark.slow
def test_failed_copies_raise_and_next_pass_is_correct(make_tiers: Callable[..., Tiers], file: bool) -> None:
    tiers = make_tiers(50, file=file)
    copies = CopyEngine(tiers)
    model = warm(AutoMem(small(), tiers=tiers, copies=copies, plan=moving_plan(small, file=file)))
    assert_correct(model)
    assert_moved(model)
    copies.inject_faults(error=errno.EIO, after_bytes=10 * MIB)
    for _ in range(2):
        with pytest.raises(OSError, match="load of") as caught:
            loss_of(model, 2).backward()
        assert caught.value.errno == errno.EIO
        model.zero_grad()
        del caught
    assert copies.counters().failed > 0
    copies.inject_faults()
    assert_correct(model)
    del model
    gc.collect()
    copies.close()


def test_failed_offloads_keep_saved_tensors_in_fast_memory(make_tiers: Callable[..., Tiers]) -> None:
    tiers = make_tiers(100, file=True)
    copies, plan = CopyEngine(tiers), moving_plan(small, file=True)
    units = {name: replace(unit, weights="fast", gradients="fast") for name, unit in plan.units.items()}
    model = warm(AutoMem(small(), tiers=tiers, copies=copies, plan=replace(plan, units=units)))
    assert_correct(model)
    assert manager_of(model).counters().offloaded_bytes > 0
    copies.inject_faults(error=errno.ENOSPC)
    assert_correct(model)
    assert copies.counters().failed > 0
    del model
    gc.collect()
    copies.close()


def test_step_larger_than_memory_and_file_raises_and_frees_tiers(tmp_path: Path) -> None:
    fast = TierSpec(name="fast", kind="ddr", budget_bytes=16 * MIB)
    tiers = Tiers([fast, TierSpec(name="file", kind="file", budget_bytes=16 * MIB, folder=tmp_path)])
    model = AutoMem(dit(), tiers=tiers)
    with pytest.raises(MemoryError, match="no memory"):  # both together are smaller than a step
        train(model)
    del model
    gc.collect()
    assert used_bytes(tiers) == [0, 0]
    tiers.close()


def test_full_slow_memory_keeps_saved_tensors_in_fast_memory(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_correct(model)
    slow = manager_of(model).tiers.slow

    def refuse(*_: object, **__: object) -> Tensor:
        raise MemoryError("full")

    before = manager_of(model).counters().offloaded_bytes
    with monkeypatch.context() as patch:
        patch.setattr(slow, "empty", refuse)
        assert_correct(model)
    assert manager_of(model).counters().offloaded_bytes == before > 0


class PassError(Exception):
    """Error raised within a pass."""


class FailBackward(torch.autograd.Function):
    """Identity with a failing gradient."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, dy: Tensor) -> Tensor:
        raise PassError


def fail_forward(model: nn.Module) -> None:
    def fail(*_: object) -> None:
        raise PassError

    hook = model.blocks[1].attn.register_forward_hook(fail)  # type: ignore[index,union-attr]
    with pytest.raises(PassError):
        loss_of(model, 1)
    hook.remove()


def fail_backward(model: nn.Module) -> None:
    hook = model.blocks[0].register_forward_hook(lambda module, args, out: FailBackward.apply(out))  # type: ignore[index]
    with pytest.raises(PassError):
        loss_of(model, 1).backward()
    hook.remove()


@pytest.mark.parametrize("fail", [fail_forward, fail_backward])
def test_exception_in_pass_frees_copies_and_next_pass_is_correct(
    model: nn.Module, fail: Callable[[nn.Module], None]
) -> None:
    fail(model)
    fast = manager_of(model).tiers.fast
    assert not any(fast.holds(parameter) for parameter in model.parameters()), (
        "weights must be in their original storage"
    )
    model.zero_grad()
    gc.collect()
    manager_of(model)._copies.drain()  # copies that were active at the exception
    assert fast.counters().used_bytes == 0, "all copies must be freed"
    for _ in range(2):
        assert_correct(model)


def test_backward_is_correct_after_the_model_is_deleted(moving_model: Build) -> None:
    model = warm(moving_model(small))
    assert_correct(model)
    loss, parameters = loss_of(model, 2), list(model.parameters())
    assert manager_of(model).counters().offloaded_bytes > 0
    del model
    gc.collect()
    loss.backward()
    assert_equal([parameter.grad for parameter in parameters], gradients_of_seed(2))


@pytest.mark.parametrize("fail", [fail_forward, fail_backward])
def test_exception_in_warm_up_keeps_later_passes_correct(
    moving_model: Build, fail: Callable[[nn.Module], None]
) -> None:
    model = moving_model(small)
    fail(model)
    for _ in range(3):
        assert_correct(model)
    assert_moved(model)


def separately(model: nn.Module, *, step: int = 1) -> None:
    for loss in [loss_of(model, seed) for seed in (1, 2)][::step]:
        loss.backward()


def together(model: nn.Module) -> None:
    (loss_of(model, 1) + loss_of(model, 2)).backward()


def over_retained_graph(model: nn.Module) -> None:
    loss = loss_of(model, 1)
    loss.backward(retain_graph=True)
    loss.backward()


@pytest.mark.parametrize("order", [separately, partial(separately, step=-1), together, over_retained_graph])
def test_two_passes_in_any_order_match_unmanaged_gradients(
    model: nn.Module, order: Callable[[nn.Module], None]
) -> None:
    order(model)
    assert_gradients_match(model, order)


@pytest.mark.parametrize("order", [separately, together])
def test_two_passes_during_recording_match_unmanaged_gradients(
    moving_model: Build, order: Callable[[nn.Module], None]
) -> None:
    model = moving_model(small)
    order(model)
    assert_gradients_match(model, order)
    assert_correct(model)
    assert_moved(model)


@pytest.mark.parametrize("ahead", [False, True])
def test_held_gradients_do_not_change(model: nn.Module, ahead: bool) -> None:
    """Compute a gradient per task, as in multi-task training, with both forward passes first or interleaved."""
    losses = [loss_of(model, seed) for seed in (1, 2)] if ahead else []
    kept = []
    for task, seed in enumerate((1, 2)):
        (losses[task] if ahead else loss_of(model, seed)).backward()
        kept.append([parameter.grad for parameter in model.parameters()])
        model.zero_grad()
    manager = get_manager(model)
    assert manager is not None
    has_buffers = any(hasattr(parameter, "flat_grad") for parameter in model.parameters())
    assert has_buffers == (manager.tiers.slow.spec.kind != "file"), "gradients must not share memory"
    for seed in (1, 2):
        assert_equal(kept[seed - 1], gradients_of_seed(seed))


def test_forward_without_backward_frees_fast_memory(model: nn.Module) -> None:
    for seed in range(3):
        loss_of(model, seed)
    assert_correct(model)
    assert used_bytes(manager_of(model).tiers)[0] < MIB


def test_inference_matches_unmanaged_loss_and_frees_fast_memory(model: nn.Module) -> None:
    expected = loss_of(small(), 1).item()
    for _ in range(2):
        with torch.no_grad():
            assert loss_of(model, 1).item() == expected
        with torch.inference_mode():
            assert loss_of(model, 1).item() == expected
        assert_correct(model)
    assert used_bytes(manager_of(model).tiers)[0] < MIB


def test_input_gradient_matches_unmanaged_model(model: nn.Module) -> None:
    def input_gradient(model: nn.Module) -> Tensor:
        x = torch.randn(4, 4, 32, 32, generator=torch.Generator().manual_seed(5)).requires_grad_()
        out = model(x, torch.arange(4), torch.arange(4))
        return torch.autograd.grad(out.pow(2).mean(), x)[0]

    assert torch.equal(input_gradient(model), input_gradient(small()))


def test_unit_called_separately_or_skipped_matches_unmanaged_model(model: nn.Module) -> None:
    def alone(model: nn.Module) -> None:
        x, c = (torch.randn(*size, generator=torch.Generator().manual_seed(4)) for size in ((4, 256, 256), (4, 256)))
        model.blocks[1](x, c).sum().backward()  # type: ignore[operator,index]

    def without(model: nn.Module) -> None:
        kept = model.blocks
        model.blocks = kept[:1]  # type: ignore[index]
        loss_of(model, 1).backward()
        model.blocks = kept

    for action in (alone, without):
        model.zero_grad()
        action(model)
        assert_gradients_match(model, action)
    assert_correct(model)


@pytest.mark.parametrize("step_begins", [False, True])
def test_forward_uses_previously_changed_weights(model: nn.Module, step_begins: bool) -> None:
    """Change weights in place or by new data; `.data`, which has no version counter, only before the step begins."""
    assert_correct(model)
    plain = small()
    if step_begins:
        manager_of(model).begin_step()
    for one in (model, plain):
        for number, parameter in enumerate(one.parameters()):
            if number % 3 == 0:
                parameter.data = parameter.data * 0.5
            elif number % 3 == 1 or step_begins:
                with torch.no_grad():
                    parameter.mul_(0.5)
            else:
                parameter.data.mul_(0.5)
    if not step_begins:
        manager_of(model).begin_step()
    assert loss_of(model, 2).item() == loss_of(plain, 2).item()
