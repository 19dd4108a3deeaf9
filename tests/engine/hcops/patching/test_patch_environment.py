"""Environment of a patched model: default types, gradient scalers, back ends, read-only folders, Ctrl-C."""

import copy

import pytest
import torch
from torch import nn

from dithc.engine import hcops, native

pytestmark = pytest.mark.skipif(native.library() is None, reason=f"C kernels: {native.load_library().reason}")
WIDTH = 48


def assert_close(model: nn.Module, x: torch.Tensor, tolerance: float) -> None:
    """Compare output and gradients of a model, unpatched and patched."""
    found = []
    for network, is_patched in ((model, False), (copy.deepcopy(model), True)):
        leaf = x.clone().requires_grad_()
        if is_patched:
            hcops.patch(network, always=True)
        out = network(leaf)
        out.float().square().mean().backward()
        found.append([out.detach(), leaf.grad, *(p.grad for p in network.parameters())])
    for plain, patched in zip(*found, strict=True):
        torch.testing.assert_close(patched, plain, rtol=tolerance, atol=tolerance)


def test_default_dtype_does_not_change_results():
    model, x = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()), torch.randn(7, WIDTH)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert_close(model, x, 1e-4)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_without_eps_uses_the_torch_default(dtype):
    norm = nn.RMSNorm(WIDTH).to(dtype)
    assert_close(norm, (1e-3 * torch.randn(5, WIDTH)).to(dtype), 1e-4 if dtype is torch.float32 else 2e-2)


def test_found_inf_of_gradient_scaler_skips_the_update():
    weights = [nn.Parameter(torch.ones(4)) for _ in range(2)]
    for weight, is_patched in zip(weights, (False, True), strict=True):
        optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
        if is_patched:
            hcops.patch(nn.Linear(1, 1), optimizer)
        weight.grad = torch.tensor([1.0, 1.0, 1.0, torch.inf])
        optimizer.grad_scale, optimizer.found_inf = torch.ones(()), torch.ones(())
        optimizer.step()
    assert torch.equal(weights[0], torch.ones(4))
    assert torch.equal(weights[1], weights[0])


def test_backend_selected_after_patching_is_used():
    model, x = nn.Sequential(nn.GELU()), torch.randn(3, WIDTH, requires_grad=True)
    hcops.patch(model, always=True)
    assert "dithc" in type(model(x).grad_fn).__name__
    with hcops.use("reference"):
        assert "dithc" not in type(model(x).grad_fn).__name__


def test_unwritable_tuning_folder_does_not_fail_the_forward_pass(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DITHC_TUNING_FOLDER", str(tmp_path / "file" / "below"))
    model = nn.Linear(WIDTH, WIDTH + 1)
    hcops.patch(model)
    assert model(torch.randn(6, WIDTH)).shape == (6, WIDTH + 1)


class InterruptedOnce(nn.Module):
    """Module that raises KeyboardInterrupt in its first pass."""

    stops = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.stops:
            self.stops = False
            raise KeyboardInterrupt
        return nn.functional.gelu(x)


@pytest.mark.parametrize("is_repeated", [True, False])
def test_interrupted_pass_closes_the_dispatch_mode(is_repeated):
    model, x = nn.Sequential(nn.Sequential(InterruptedOnce())), torch.randn(3, WIDTH, requires_grad=True)
    hcops.patch(model, always=True)
    with pytest.raises(KeyboardInterrupt):
        model(x)
    if is_repeated:
        assert "dithc" in type(model(x).grad_fn).__name__
    else:
        hcops.unpatch(model)
    assert "dithc" not in type(nn.functional.gelu(x).grad_fn).__name__
