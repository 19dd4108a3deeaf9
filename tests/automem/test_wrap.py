"""Tests of recomputation: it changes the lifetime of activations only."""

import copy
import logging

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dithc.automem import AutoMem
from dithc.log import UserError
from dithc.model import DiT


class Stack(nn.Module):
    """Model of another type: residual blocks with dropout in a ModuleList, next to a small list."""

    def __init__(self) -> None:
        super().__init__()
        self.small = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 8)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in (*self.small, *self.layers):
            x = x + layer(x)
        return x


def _dit() -> DiT:
    torch.manual_seed(1)
    model = DiT.from_preset("DiT-S/2", hidden_size=32, num_heads=2, depth=3, input_size=8, num_classes=3)
    for parameter in model.parameters():  # nonzero head, so that every weight has a gradient
        parameter.data += 0.02 * torch.randn_like(parameter)
    return model


def _run(name: str, model: nn.Module) -> Tensor:
    torch.manual_seed(7)
    if name == "dit":
        out: Tensor = model(torch.randn(2, 4, 8, 8), torch.tensor([3, 900]), torch.tensor([0, 3]))
    else:
        out = model(torch.randn(5, 8))
    return (out**2).mean()


def _build(name: str) -> nn.Module:
    torch.manual_seed(1)
    match name:
        case "dit":
            return _dit()
        case "stack":
            return Stack()
        case _:
            return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))


NAMES = ["dit", "stack", "sequential"]


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_gradients_are_the_same_bits_with_and_without_recomputation(name: str) -> None:
    plain, saving = AutoMem(_build(name)), AutoMem(_build(name), recompute="block")
    for _ in range(3):
        losses = []
        for model in (plain, saving):
            loss = _run(name, model)
            loss.backward()
            losses.append(loss.item())
        assert losses[0] == losses[1]
        for one, other in zip(plain.parameters(), saving.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None)
            if one.grad is not None and other.grad is not None:
                assert torch.equal(one.grad, other.grad)
                one.data -= 0.1 * one.grad
                other.data -= 0.1 * other.grad


@pytest.mark.parametrize("name", NAMES)
def test_state_dictionary_keeps_its_names(name: str) -> None:
    assert list(AutoMem(_build(name), "block").state_dict()) == list(_build(name).state_dict())


def test_recomputation_keeps_fewer_bytes_for_backward() -> None:
    def saved_bytes(model: nn.Module) -> int:
        kept: list[int] = []

        def pack(tensor: Tensor) -> Tensor:
            kept.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            _run("dit", model)
        return sum(kept)

    assert saved_bytes(AutoMem(_dit(), "block")) < 0.5 * saved_bytes(_dit())


def test_largest_list_is_chosen_and_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("dithc").propagate = True
    with caplog.at_level(logging.INFO, logger="dithc"):
        AutoMem(Stack(), "block")
    assert "3 blocks in layers" in caplog.text


def test_deep_copy_runs_its_own_weights() -> None:
    model = AutoMem(_dit(), "block")
    twin = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.data.zero_()
    reference = _run("dit", _dit())
    assert _run("dit", twin).item() == reference.item()
    assert _run("dit", model).item() != reference.item()


def test_second_call_replaces_the_first() -> None:
    model = AutoMem(AutoMem(_dit(), "block"), "block")
    assert vars(model.blocks[0])["forward"].args[0].__func__ is type(model.blocks[0]).forward
    AutoMem(model, "none")
    assert "forward" not in vars(model.blocks[0])


def test_trains_inside_distributed_data_parallel() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        plain, saving = _dit(), AutoMem(_dit(), "block")
        _run("dit", plain).backward()
        _run("dit", DistributedDataParallel(saving)).backward()
        for one, other in zip(plain.parameters(), saving.parameters(), strict=True):
            if one.requires_grad:
                torch.testing.assert_close(one.grad, other.grad)
    finally:
        dist.destroy_process_group()


def test_bf16_autocast_is_the_same_in_the_recomputed_pass() -> None:
    losses, models = [], [_dit(), AutoMem(_dit(), "block")]
    for model in models:
        with torch.autocast("cpu", torch.bfloat16):
            loss = _run("dit", model)
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == losses[1]
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert not one.requires_grad or (one.grad is not None and torch.equal(one.grad, other.grad))


def test_model_without_repeated_blocks_is_refused() -> None:
    with pytest.raises(UserError, match="without repeated blocks"):
        AutoMem(nn.Linear(2, 2), "block")


def test_unknown_choice_is_refused() -> None:
    with pytest.raises(UserError, match="none or block"):
        AutoMem(_dit(), "everything")  # type: ignore[arg-type]
