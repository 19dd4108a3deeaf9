"""Tests of the end of management, also early, on errors or within a pass: torch and the model are restored."""

import gc
from collections.abc import Callable

import pytest
import torch

from dithc.engine.automem import AutoMem
from dithc.engine.memory import CopyEngine, Tiers, allocator
from tests.engine.automem.managed_models import (
    assert_equal,
    dit,
    gradients,
    loss_of,
    manager_of,
    train,
    train_unmanaged,
)
from tests.engine.automem.test_faults import fail_backward
from tests.engine.memory import allocator_mode

LARGE = 1 << 20  # elements of fp32: 4 MiB, which the mode serves
pytestmark = pytest.mark.slow
needs_allocator = pytest.mark.skipif(not allocator.available(), reason=f"torch's allocator: {allocator.reason()}")


@needs_allocator
def test_allocation_mode_ends_with_a_failed_backward_pass(make_tiers: Callable[..., Tiers]) -> None:
    tiers = make_tiers(24)
    model = AutoMem(dit(), tiers=tiers)
    before = allocator_mode.counters().num_served
    fail_backward(model)
    assert allocator_mode.counters().num_served > before, "the mode must be active in the pass"
    assert not allocator_mode.is_active()
    assert tiers.tier_of(torch.empty(LARGE)) is None
    del model
    gc.collect()
    tiers.close()
    assert not allocator_mode.is_active()
    assert float(torch.ones(LARGE).sum()) == LARGE


@needs_allocator
def test_mode_lasts_as_long_as_the_outermost_backward_pass(make_tiers: Callable[..., Tiers]) -> None:
    modes_on: list[bool] = []

    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, dy: torch.Tensor) -> torch.Tensor:
            losses.pop().backward()
            modes_on.append(allocator_mode.is_active())
            return dy

    model = AutoMem(dit(), tiers=make_tiers(24))
    losses = [loss_of(model, 2)]
    hook = model.blocks[0].register_forward_hook(lambda module, args, out: Inner.apply(out))
    loss = loss_of(model, 1)
    hook.remove()
    loss.backward()
    assert (modes_on, allocator_mode.is_active()) == ([True], False)


def test_model_trains_unmanaged_after_manager_close(make_tiers: Callable[..., Tiers]) -> None:
    """Close the manager first, then copies and tiers, as at the end of training; then use the model."""
    tiers = make_tiers(24)
    copies = CopyEngine(tiers)
    model = AutoMem(dit(), tiers=tiers, copies=copies)
    train(model, steps=3)
    manager = manager_of(model)
    manager.close()
    before = copies.counters()
    copies.close()
    tiers.close()
    model.load_state_dict(dit().state_dict())
    model.zero_grad()
    train(model, before_step=manager.begin_step).assert_same(train_unmanaged(dit))
    with torch.no_grad():
        assert loss_of(model, 5).isfinite()
    assert manager.active is None
    assert copies.counters() == before
    assert manager.counters().loaded_bytes == manager.counters().hits == 0


def test_running_pass_completes_after_close(make_tiers: Callable[..., Tiers]) -> None:
    model, plain = AutoMem(dit(), tiers=make_tiers(24)), dit()
    for seed in (1, 2):
        loss_of(model, seed).backward()
        model.zero_grad()
    loss = loss_of(model, 3)
    manager_of(model).close()
    loss.backward()
    loss_of(plain, 3).backward()
    assert_equal(gradients(model), gradients(plain))


def test_plan_computed_in_inference_mode_is_valid_in_training(make_tiers: Callable[..., Tiers]) -> None:
    model = AutoMem(dit(), tiers=make_tiers(24))
    for seed in (6, 7):
        loss_of(model, seed, images=1).backward()
        model.zero_grad()
    with torch.inference_mode():
        loss_of(model, 8, images=1)
    assert manager_of(model).plan is not None
    with torch.inference_mode():
        loss_of(model, 9, images=1)  # follows the plan and renews gradient buffers
    train(model).assert_same(train_unmanaged(dit))
