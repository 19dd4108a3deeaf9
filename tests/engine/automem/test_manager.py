"""Tests of managed training: bitwise equality with unmanaged training, within the budget, for all moves."""

import copy
import gc
import logging
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from dithc.engine.automem import AutoMem, get_manager
from dithc.engine.memory import Tiers, allocator
from tests.engine.automem.managed_models import dit, loss_of, manager_of, mlps, train, train_unmanaged, used_bytes
from tests.engine.memory import allocator_mode

pytestmark = pytest.mark.sampled("managed tensors")


def test_tight_budget_preserves_bits_with_loads_and_offloads(tiers: Tiers) -> None:
    expected = train_unmanaged(dit)
    model = AutoMem(dit(), tiers=tiers)
    train(model, steps=3).assert_same(expected)
    manager = manager_of(model)
    counters = manager.counters()
    assert min(counters.loaded_bytes, counters.offloaded_bytes, counters.hits) > 0
    assert tiers.fast.counters().peak_backed_bytes <= 24 << 20
    assert any(decision.gradients == "slow" for decision in manager.plan.units.values())


@pytest.mark.parametrize("budget", [4, 16, 32, 48, 400])
def test_every_budget_produces_identical_bits(make_tiers: Callable[..., Tiers], budget: int) -> None:
    model = AutoMem(dit(), tiers=make_tiers(budget))
    train(model, steps=3).assert_same(train_unmanaged(dit))


def test_large_budget_keeps_everything_resident_without_hooks(make_tiers: Callable[..., Tiers]) -> None:
    model = AutoMem(dit(), tiers=make_tiers(400))
    train(model, steps=3)
    manager = manager_of(model)
    assert manager.plan.everything_resident
    assert all(
        manager.tiers.fast.holds(weight)
        for weight in model.parameters()
        if weight.nbytes >= 64 << 10 and weight.requires_grad
    )
    calls = []
    model.blocks[0].register_forward_hook(lambda *_: calls.append(manager.active))
    loss = loss_of(model, 0)
    assert calls == [None]
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    loss.backward()
    assert manager.counters().loaded_bytes == manager.counters().offloaded_bytes == 0


def test_single_tier_is_unmanaged_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("dithc").propagate = True
    with caplog.at_level(logging.INFO, logger="dithc"):
        model = AutoMem(dit())
    assert "single tier: nothing to move" in caplog.text
    assert get_manager(model) is None
    assert "forward" not in vars(model)


def test_step_restarts_warm_up_and_counters(make_tiers: Callable[..., Tiers]) -> None:
    model = AutoMem(dit(), tiers=make_tiers(24))
    manager = manager_of(model)
    loss_of(model, 0, images=1).backward()  # a call before the first step is not the warm-up
    model.zero_grad()
    expected, loaded = train_unmanaged(dit, 4), []

    def begin() -> None:
        loaded.append(manager.counters().loaded_bytes)
        manager.begin_step()

    train(model, steps=4, before_step=begin).assert_same(expected)
    assert sum(saved.bytes for unit in manager.trace.units for saved in unit.saved) > 8 << 20  # from four images
    assert loaded[:3] == [0, 0, 0]
    assert loaded[3] > 0
    assert manager.counters().loaded_bytes == loaded[3]


def test_paused_passes_run_unmanaged(make_tiers: Callable[..., Tiers]) -> None:
    model = AutoMem(dit(), tiers=make_tiers(24))
    manager = manager_of(model)
    with manager.paused():
        loss_of(model, 0).backward()
        loss_of(model, 0).backward()
    assert manager.plan is None
    model.zero_grad()
    train(model).assert_same(train_unmanaged(dit))
    before = manager.counters().loaded_bytes
    with manager.paused():
        loss_of(model, 0).backward()
    assert manager.counters().loaded_bytes == before


def test_state_is_in_slow_memory_until_planned(make_tiers: Callable[..., Tiers]) -> None:
    tiers = make_tiers(400)
    model = AutoMem(dit(), tiers=tiers)
    manager = manager_of(model)
    like = torch.empty(300, 1000, device="meta")
    first = manager.allocate_state("exp_avg.x", like)
    assert first.shape == like.shape
    assert tiers.slow.holds(first)
    train(model, steps=3)
    assert manager.plan.state == {"exp_avg.x": "fast"}
    assert tiers.fast.holds(manager.allocate_state("exp_avg.x", first))


def test_micro_batches_accumulate_to_the_same_bits(tiers: Tiers) -> None:
    model = AutoMem(dit(), tiers=tiers)
    manager = manager_of(model)
    train(model, micro_batches=3, before_step=manager.begin_step).assert_same(train_unmanaged(dit, micro_batches=3))
    assert manager.trace.gradients_persist
    assert manager.counters().loaded_bytes > 0


@pytest.mark.slow
def test_deleted_model_frees_all_memory(make_tiers: Callable[..., Tiers]) -> None:
    tiers = make_tiers(24)
    for calls in range(4):
        model = AutoMem(dit(), tiers=tiers)
        for _ in range(calls):
            loss = loss_of(model, 0)
            if calls < 3:
                loss.backward()
        del model
        if calls:
            del loss
        gc.collect()
        assert used_bytes(tiers) == [0, 0]


def test_deep_copy_is_unmanaged_and_uses_separate_weights(make_tiers: Callable[..., Tiers]) -> None:
    tiers = make_tiers(24)
    model = AutoMem(dit(), tiers=tiers)
    loss_of(model, 0).backward()
    loss_of(model, 1).backward()
    twin = copy.deepcopy(model)
    assert get_manager(twin) is None
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert loss_of(twin, 2).item() == loss_of(dit(), 2).item()
    assert not any(tiers.tier_of(parameter) for parameter in twin.parameters())


def test_state_dictionary_keeps_names_and_values(tiers: Tiers) -> None:
    model, plain = AutoMem(dit(), tiers=tiers), dit()
    loss_of(model, 0).backward()
    loss_of(model, 0).backward()
    found, expected = model.state_dict(), plain.state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in found)
    plain.load_state_dict(found)
    model.load_state_dict({name: value + 1 for name, value in expected.items()})
    assert all(torch.equal(value, expected[name] + 1) for name, value in model.state_dict().items())
    del found


def test_torch_modules_without_allocator_offload_to_files_only(
    make_tiers: Callable[..., Tiers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocator, "load", lambda: SimpleNamespace(library=None))
    expected = train_unmanaged(mlps)
    in_memory = AutoMem(mlps(), tiers=make_tiers(2))
    train(in_memory).assert_same(expected)
    assert manager_of(in_memory).counters().offloaded_bytes == 0
    manager_of(in_memory).close()
    in_file = AutoMem(mlps(), tiers=make_tiers(2, file=True))
    train(in_file).assert_same(expected)
    assert manager_of(in_file).counters().offloaded_bytes > 0


def test_torch_modules_offload_with_the_allocator(make_tiers: Callable[..., Tiers]) -> None:
    if not allocator.available():
        pytest.skip(f"torch's allocator cannot be switched: {allocator.reason()}")
    model = AutoMem(mlps(), tiers=make_tiers(6))
    train(model).assert_same(train_unmanaged(mlps))
    assert manager_of(model).counters().offloaded_bytes > 0
    assert not allocator_mode.is_active()
