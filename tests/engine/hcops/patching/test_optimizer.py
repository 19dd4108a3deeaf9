"""torch's AdamW with the update of HCOps: torch's numbers, and torch's state."""

import copy
import functools

import pytest
import torch
from torch import nn

from dithc.core.logging import UserError
from dithc.engine import hcops, native

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C library")


def train_model(steps, *, patched, state=None, scheduled=False):
    """Return a model after some steps, and its optimizer. One parameter never has a gradient."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 2))
    idle = nn.Parameter(torch.ones(3))
    groups = [{"params": model[0].parameters(), "weight_decay": 0.3}, {"params": [*model[1].parameters(), idle]}]
    optimizer = torch.optim.AdamW(groups, lr=0.1, betas=(0.8, 0.95))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) if scheduled else None
    if state is not None:
        optimizer.load_state_dict(copy.deepcopy(state))
    if patched:
        hcops.patch(model, optimizer)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 5)).square().sum().backward()
        gradients = [p.grad for p in model.parameters()]
        optimizer.step()
        assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
        if schedule is not None:
            schedule.step()
    assert torch.equal(idle, torch.ones(3))
    return model, optimizer


def assert_same(found, expected):
    for a, b in zip(found[0].parameters(), expected[0].parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)
    a, b = found[1].state_dict(), expected[1].state_dict()
    assert a["param_groups"] == b["param_groups"]
    assert a["state"].keys() == b["state"].keys()
    for number, state in b["state"].items():
        assert a["state"][number].keys() == state.keys()
        for name, value in state.items():
            assert a["state"][number][name].dtype == value.dtype
            assert torch.allclose(a["state"][number][name], value, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("scheduled", [False, True])
def test_update_and_state_match_torch(scheduled):
    run = functools.partial(train_model, 4, scheduled=scheduled)
    assert_same(run(patched=True), run(patched=False))


def test_state_transfers_between_hcops_and_torch():
    hcops_state, torch_state = (train_model(2, patched=patched)[1].state_dict() for patched in (True, False))
    assert_same(train_model(2, patched=True, state=torch_state), train_model(2, patched=False, state=torch_state))
    assert_same(train_model(2, patched=False, state=hcops_state), train_model(2, patched=True, state=hcops_state))


def test_unpatched_optimizer_is_bitwise_equal_to_torch():
    model, optimizer = train_model(1, patched=True)
    hcops.unpatch(model, optimizer)
    clone = copy.deepcopy(model)
    plain = torch.optim.AdamW(clone.parameters(), lr=0.1, betas=(0.8, 0.95))
    fresh = torch.optim.AdamW(model.parameters(), lr=0.1, betas=(0.8, 0.95))
    hcops.patch(model, fresh)
    hcops.unpatch(model, fresh)
    x = torch.randn(4, 5)
    for network, adamw in ((model, fresh), (clone, plain)):
        adamw.zero_grad()
        network(x).sum().backward()
        adamw.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), clone.parameters(), strict=True))


def test_bf16_parameters_match_float64_rounded_once():
    """Compare each step, computed in float64 from the previous state, with bf16 state as torch stores it."""
    torch.manual_seed(2)
    weight = nn.Parameter(torch.randn(3, 70).bfloat16())
    lr, (beta1, beta2), decay, eps = 0.1, (0.8, 0.95), 0.3, 1e-8
    optimizer = torch.optim.AdamW([weight], lr=lr, betas=(beta1, beta2), weight_decay=decay, eps=eps)
    hcops.patch(nn.Identity(), optimizer)
    first = second = torch.zeros(3, 70, dtype=torch.float64)
    for step in range(1, 4):
        weight.grad = gradient = torch.randn(3, 70).bfloat16()
        first, second = first.lerp(gradient.double(), 1 - beta1), beta2 * second + (1 - beta2) * gradient.double() ** 2
        root = (second / (1 - beta2**step)).sqrt() + eps
        exact = weight.double() * (1 - lr * decay) - lr / (1 - beta1**step) * first / root
        optimizer.step()
        state = optimizer.state[weight]
        assert weight.grad is gradient
        assert state["step"] == step
        for found, expected in ((weight, exact), (state["exp_avg"], first), (state["exp_avg_sq"], second)):
            assert found.dtype is torch.bfloat16
            assert torch.allclose(found.double(), expected, rtol=1.01 * 2.0**-8, atol=1e-6)
        first, second = state["exp_avg"].double(), state["exp_avg_sq"].double()


def test_closure_is_evaluated_as_in_torch():
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    hcops.patch(nn.Identity(), optimizer)

    def closure():
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3.0
    assert torch.allclose(weight, torch.full((3,), 1 - 0.1 * 0.01 - 0.1), atol=1e-5)


def test_unsupported_optimizer_and_second_patch_are_rejected():
    weight = nn.Parameter(torch.ones(3))
    with pytest.raises(UserError, match="AdamW"):
        hcops.patch(nn.Identity(), torch.optim.SGD([weight], lr=0.1))
    optimizer = torch.optim.AdamW([weight])
    hcops.patch(nn.Identity(), optimizer)
    with pytest.raises(UserError, match="unpatch"):
        hcops.patch(nn.Identity(), optimizer)
