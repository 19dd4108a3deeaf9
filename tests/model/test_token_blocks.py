"""Tests of recomputation by parts of the tokens: gradients of all inputs and weights, places of gradients, micro-batches."""

from copy import deepcopy

import pytest
import torch

from dithc.engine import hcops
from dithc.engine.automem import AutoMem
from dithc.model import token_blocks
from tests.model.networks import nonzero

SIZE = 96  # latents of 96 x 96 with patches of 2: 2,304 tokens
MODERN = {"norm": "rms", "mlp": "swiglu", "qk_norm": True, "position_embedding": "rope"}


def gradients(model, *, recompute: str, dtype: torch.dtype, passes: int = 1) -> dict[str, torch.Tensor]:
    AutoMem(model, recompute)
    for seed in range(passes):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(2, 4, SIZE, SIZE, generator=generator).to(next(model.parameters()).dtype).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
            out = model(x, torch.tensor([3, 700]), torch.tensor([0, 1]))
        (
            (out.float() if dtype is torch.bfloat16 else out) * torch.randn(out.shape, generator=generator)
        ).sum().backward()
    found = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.requires_grad}
    for weight in model.parameters():
        weight.grad = None
    return found | {"x": x.grad}


@pytest.mark.parametrize("changes", [{}, MODERN], ids=["plain", "modern"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.bfloat16, 2e-2)])
def test_gradients_equal_those_without_recomputation(monkeypatch, changes, dtype, tolerance):
    model = nonzero(input_size=SIZE, **changes)
    expected = gradients(model, recompute="none", dtype=dtype)
    calls = []
    backward = token_blocks._backward
    monkeypatch.setattr(token_blocks, "_backward", lambda *given: calls.append(1) or backward(*given))
    found = gradients(model, recompute="block", dtype=dtype)
    assert len(calls) == len(model.blocks)
    assert all(value.any() for value in expected.values())
    for name, value in expected.items():
        assert (found[name] - value).norm() <= tolerance * value.norm(), name


def test_two_micro_batches_add_in_the_flat_buffer():
    model = nonzero(input_size=SIZE)
    expected = gradients(model, recompute="none", dtype=torch.float32, passes=2)
    AutoMem(model, "block")
    weights = [module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)]
    buffer = hcops.optimizer.flat_gradients(weights)
    found = gradients(model, recompute="block", dtype=torch.float32, passes=2)
    assert buffer.numel() == 0 or buffer.any()
    assert all(value.any() for value in expected.values())
    for name, value in expected.items():
        assert (found[name] - value).norm() <= 5e-6 * value.norm(), name


@pytest.mark.parametrize(("size", "is_hooked", "dtype"), [(32, False, torch.float32), (SIZE, True, torch.float32),
                                                         (SIZE, False, torch.float64)])  # fmt: skip
def test_few_tokens_and_unusual_weights_are_recomputed_as_a_whole(monkeypatch, size, is_hooked, dtype):
    monkeypatch.setattr(token_blocks, "_backward", None)
    model, calls = AutoMem(nonzero(input_size=size).to(dtype), "block"), []
    if is_hooked:
        for block in model.blocks:
            block.attn.qkv.weight.register_hook(calls.append)
    model(torch.randn(1, 4, size, size, dtype=dtype), torch.tensor([3]), torch.tensor([0])).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters() if weight.requires_grad)
    assert len(calls) == is_hooked * len(model.blocks)


def test_errors_against_float64_are_those_of_fp32():
    model = nonzero(input_size=SIZE)
    truth = gradients(deepcopy(model).double(), recompute="none", dtype=torch.float64)
    errors = {
        recompute: [(value - truth[name]).norm() / truth[name].norm() for name, value in found.items()]
        for recompute in ("none", "block")
        for found in [gradients(deepcopy(model), recompute=recompute, dtype=torch.float32)]
    }
    assert max(errors["block"]) <= max(2e-6, 2 * max(errors["none"]))
