"""Deferred updates have the bits of updates in memory, are complete before each use, and report a failed disk."""

import errno
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from dithc.engine import hcops, native
from dithc.engine.automem import AutoMem, get_manager
from dithc.engine.memory import CopyEngine, Tiers, streamed_tensors
from tests.engine.automem.managed_models import assert_equal, loss_of, manager_of, moving_plan, small

pytestmark = [
    pytest.mark.sampled("managed tensors"),
    pytest.mark.skipif(native.library() is None, reason="memory tiers require the C library"),
]
SETTINGS = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
SLOW_SECONDS = 0.003  # of each copy: an update is then slower than a forward pass


class Training:
    """AdamW steps of a model; with a manager, moments are in the file and updates are deferred."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.manager = model, get_manager(model)
        allocate = empty_like if self.manager is None else self.manager.allocate_state
        self.named = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self.moments = [
            [allocate(f"{moment}.{name}", value.detach()).zero_() for name, value in self.named.items()]
            for moment in ("first", "second")
        ]
        self.losses: list[float] = []

    def step(self) -> None:
        if self.manager is not None:
            self.manager.begin_step()
        loss = loss_of(self.model, len(self.losses))
        self.losses.append(loss.item())
        if self.manager is not None:
            self.manager.wait_for_updates()
        loss.backward()
        columns = [self.weights(), [parameter.grad for parameter in self.named.values()], *self.moments]
        adamw = partial(hcops.optimizer.adamw, step=len(self.losses), **SETTINGS)
        self.model.zero_grad()
        if self.manager is None:
            adamw(*columns)
        else:
            self.manager.update(columns, lambda part: adamw(*part), read_only={1}, defers=True)

    def tensors(self) -> list[Tensor]:
        return [*self.weights(), *self.moments[0], *self.moments[1]]

    def weights(self) -> list[Tensor]:
        return [parameter.detach() for parameter in self.named.values()]


def empty_like(_: str, value: Tensor) -> Tensor:
    return torch.empty_like(value)


@pytest.fixture
def training(request: pytest.FixtureRequest, make_tiers: Callable[..., Tiers], monkeypatch: pytest.MonkeyPatch):
    """Yield a training with a plan that moves all tensors, or as a parameter only state, and its copies."""
    plan = moving_plan(small, file=True)
    if getattr(request, "param", "all tensors") == "only state":
        kept = {name: replace(unit, weights="fast", gradients="fast", saved=()) for name, unit in plan.units.items()}
        plan = replace(plan, units=kept, state={"first": "slow"})
    monkeypatch.setattr(streamed_tensors, "PIECE_BYTES", 1 << 18)
    tiers = make_tiers(50, file=True)
    copies = CopyEngine(tiers)
    model = AutoMem(small(), tiers=tiers, copies=copies, plan=plan)
    found = [Training(model)]
    del model
    yield found[0], copies
    del request.node.funcargs["training"]  # a reference of pytest that would outlive the tiers
    manager_of(found.pop().model).close()
    copies.close()


@pytest.mark.parametrize(
    ("training", "seconds"),
    [("all tensors", 0.0), ("all tensors", SLOW_SECONDS), ("only state", SLOW_SECONDS)],
    ids=["fast disk", "slow disk", "only state"],
    indirect=["training"],
)
def test_deferred_updates_are_bitwise_equal_to_updates_in_memory(training, seconds):
    managed, copies = training
    plain, num_deferred = Training(small()), 0
    for _ in range(4):
        managed.step()
        copies.inject_faults(delay_seconds=seconds)
        num_deferred += managed.manager._updates._thread is not None
        plain.step()
    managed.manager.wait_for_updates()
    assert num_deferred == 3, "all steps but the recorded one"
    assert managed.losses == plain.losses
    assert_equal(managed.tensors(), plain.tensors())


def test_a_pass_uses_complete_weights_although_the_update_is_not_complete(training):
    managed, copies = training
    for _ in range(3):
        managed.step()
    managed.manager.wait_for_updates()
    stale = [value.clone() for value in managed.moments[0]]
    copies.inject_faults(delay_seconds=0.05)
    managed.step()
    assert any(map(torch.equal, managed.moments[0], stale)), "the update must be in progress"
    plain = Training(small())
    for _ in range(5):
        plain.step()
    managed.step()
    assert managed.losses == plain.losses
    copies.inject_faults()


def test_failed_disk_is_an_error_of_the_next_pass_and_of_every_later_use(training):
    managed, copies = training
    for _ in range(2):
        managed.step()
    managed.manager.wait_for_updates()
    loss_of(managed.model, 2).backward()
    weights = managed.weights()
    columns = [weights, [torch.ones_like(value) for value in weights], *managed.moments]
    adamw = partial(hcops.optimizer.adamw, step=3, **SETTINGS)
    managed.model.zero_grad()
    copies.inject_faults(error=errno.EIO, after_bytes=1 << 18)
    managed.manager.update(columns, lambda part: adamw(*part), read_only={1}, defers=True)
    with pytest.raises(OSError, match=r"[Ee]rror"):
        loss_of(managed.model, 3)
    copies.inject_faults()
    for use in (managed.manager.wait_for_updates, managed.manager.paused().__enter__):
        with pytest.raises(OSError, match=r"[Ee]rror"):
            use()


def test_the_end_of_the_management_completes_an_update(training):
    managed, copies = training
    plain = Training(small())
    for one in (managed, plain):
        for _ in range(3):
            one.step()
    copies.inject_faults(delay_seconds=SLOW_SECONDS)
    for one in (managed, plain):
        one.step()
    tensors = managed.tensors()
    managed.manager.close()
    assert_equal(tensors, plain.tensors())


def test_updates_outside_of_a_plan_are_complete_on_return(training):
    managed, _ = training
    managed.step()
    before = [value.clone() for value in managed.moments[1]]
    weights = managed.weights()
    columns = [weights, [torch.ones_like(value) for value in weights], *managed.moments]
    managed.manager.update(columns, lambda part: [tensor.add_(1.0) for tensor in part[3]], read_only={0, 1, 2})
    assert_equal(managed.moments[1], [value + 1.0 for value in before])
