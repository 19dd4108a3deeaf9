"""Modules that compute an RMSNorm from several operators: detected by their results, served, and restored."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from dithc.engine import hcops, native

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C library")


class ARMSNorm(nn.Module):
    """RMSNorm as in transformers."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float64 if x.dtype is torch.float64 else torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(x.dtype)


class OffsetRMSNorm(ARMSNorm):
    """RMSNorm as in Gemma, with the weight as an offset from 1."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon) * (1 + self.weight)


class NoEpsRMSNorm(ARMSNorm):
    """RMSNorm without eps."""

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True))


class GatedRMSNorm(ARMSNorm):
    def forward(self, x: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x) * gate


def build_model(norm, width=24):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, width), norm(width), nn.Linear(width, 3))
    nn.init.normal_(model[1].weight)
    return model


def gradients(model, x):
    model.zero_grad()
    model(x).square().sum().backward()
    return [parameter.grad.double() for parameter in model.parameters()]


def kinds(patched):
    return {row.op: row.served for row in patched.table()}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_gradients_match_float64(dtype, tolerance):
    model, x = build_model(ARMSNorm).to(dtype), torch.randn(6, 5).to(dtype)
    exact = gradients(copy.deepcopy(model).double(), x.double())
    patched = hcops.patch(model, always=True)
    for found, expected in zip(gradients(model, x), exact, strict=True):
        assert (found - expected).norm() <= tolerance * expected.norm()
    assert kinds(patched) == {"linear": True, "rms_norm": True}


@pytest.mark.parametrize("norm", [OffsetRMSNorm, NoEpsRMSNorm])
def test_norms_with_different_formulas_are_not_patched(norm):
    model, x = build_model(norm), torch.randn(6, 5)
    before = model(x)
    patched = hcops.patch(model, always=True)
    assert torch.allclose(model(x), before, rtol=1e-5, atol=1e-5)
    assert kinds(patched) == {"linear": True}
    assert "forward" not in vars(model[1])


def test_norm_with_extra_argument_is_not_patched():
    norm = GatedRMSNorm(8)
    hcops.patch(nn.ModuleList([norm]), always=True)
    assert torch.equal(norm(torch.ones(2, 8), torch.zeros(2, 8)), torch.zeros(2, 8))


def test_original_norm_runs_standalone_with_mixed_types_and_compiled():
    model = build_model(ARMSNorm)
    x = torch.randn(2, 24)
    before = model[1](x)
    patched = hcops.patch(model, always=True)
    assert torch.equal(model[1](x), before)  # outside of the model's forward
    with torch.autocast("cpu", torch.bfloat16):  # its weight is fp32, but the layer's output is bf16
        model(torch.randn(2, 5))
    assert [row.reason for row in patched.table() if row.op == "rms_norm"] == ["types that differ"]
    plain = copy.deepcopy(model)
    hcops.unpatch(plain)
    compiled = torch.compile(model, backend="eager")
    assert torch.equal(compiled(torch.ones(2, 5)), plain(torch.ones(2, 5)))


def test_copied_models_stay_patched_and_unpatch_restores_bits():
    model, x = build_model(ARMSNorm), torch.randn(6, 5)
    before, names = model(x), list(model.state_dict())
    hcops.patch(model, always=True)
    for clone in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            model[1].weight.mul_(2)  # the copy has a separate weight
        assert torch.allclose(clone(x), before, rtol=1e-5, atol=1e-5)
        with torch.no_grad():
            model[1].weight.div_(2)
        hcops.unpatch(clone)
        assert torch.equal(clone(x), before)
    hcops.unpatch(model)
    assert torch.equal(model(x), before)
    assert list(model.state_dict()) == names
    assert "forward" not in vars(model[1])
