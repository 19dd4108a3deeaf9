"""Tests of recomputation: it changes the lifetime of activations only."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dithc.core.logging import UserError
from dithc.engine.automem import AutoMem
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


def dit() -> DiT:
    model = DiT.from_preset("DiT-S/2", hidden_size=32, num_heads=2, depth=3, input_size=8, num_classes=3)
    for parameter in model.parameters():  # nonzero head, so that every weight has a gradient
        parameter.data += 0.02 * torch.randn_like(parameter)
    return model


def sequential() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))


def build_model(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return kind()


def loss_of(model: nn.Module) -> Tensor:
    torch.manual_seed(7)
    given = (torch.randn(2, 4, 8, 8), torch.tensor([3, 900]), torch.tensor([0, 3]))
    out: Tensor = model(*given) if isinstance(model, DiT) else model(torch.randn(5, 8))
    return (out**2).mean()


@pytest.mark.parametrize("kind", [dit, Stack, sequential])
@pytest.mark.parametrize("bf16", [False, True])
def test_recomputation_changes_neither_losses_nor_gradients_nor_names(
    kind: Callable[[], nn.Module], bf16: bool
) -> None:
    plain, saving = AutoMem(build_model(kind)), AutoMem(build_model(kind), recompute="block")
    assert list(saving.state_dict()) == list(build_model(kind).state_dict())
    for _ in range(3):
        losses = []
        for model in (plain, saving):
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = loss_of(model)
            loss.backward()
            losses.append(loss.item())
        assert losses[0] == losses[1]
        for one, other in zip(plain.parameters(), saving.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None)
            if one.grad is not None and other.grad is not None:
                assert torch.equal(one.grad, other.grad)
                one.data -= 0.1 * one.grad
                other.data -= 0.1 * other.grad


def test_recomputation_keeps_fewer_bytes_for_backward() -> None:
    def saved_bytes(model: nn.Module) -> int:
        kept: list[int] = []

        def pack(tensor: Tensor) -> Tensor:
            kept.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss_of(model)
        return sum(kept)

    assert saved_bytes(AutoMem(dit(), "block")) < 0.5 * saved_bytes(dit())


def test_repeated_call_replaces_hooks_and_deep_copy_uses_separate_weights() -> None:
    model = AutoMem(AutoMem(build_model(dit), "block"), "block")
    assert vars(model.blocks[0])["forward"].args[0].__func__ is type(model.blocks[0]).forward
    twin = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.data.zero_()
    assert loss_of(twin).item() == loss_of(build_model(dit)).item() != loss_of(model).item()
    AutoMem(model, "none")
    assert "forward" not in vars(model.blocks[0])


def test_model_without_repeated_blocks_and_unknown_choices_are_rejected() -> None:
    with pytest.raises(UserError, match="without repeated blocks"):
        AutoMem(nn.Linear(2, 2), "block")
    with pytest.raises(UserError, match="none or block"):
        AutoMem(dit(), "everything")  # type: ignore[arg-type]
