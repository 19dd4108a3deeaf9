"""`hcops.patch` on models with common structures: gradients against float64, and complete removal by `unpatch`."""

import copy
import logging
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from dithc.core.logging import UserError
from dithc.engine import hcops, native
from dithc.engine.hcops.patching import autotune, dispatch_mode
from tests.engine.hcops.patching.models import LIBRARY_MODELS, SMALL_MODELS
from tests.engine.hcops.patching.reference_models import Vit

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C library")
LIBRARY_KINDS = ("fp32", "autocast")
ROUNDOFF = {"fp32": 2.0**-24, "autocast": 2.0**-8, "bf16": 2.0**-8}
# Allowed error of the norm of all gradients, in roundoffs, for a chain of about 30 operators. torch's error is below
# half of it.
ALLOWED = 40


def fresh(name):
    torch.manual_seed(3)
    return {**SMALL_MODELS, **LIBRARY_MODELS}[name]()


def gradients(model, inputs, *, autocast=False):
    """Return the gradients of a weighted sum of outputs by name, in float64."""
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        out = model(*inputs)
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape)
    (out.double() * weights).sum().backward()
    return {name: p.grad.double().clone() for name, p in model.named_parameters() if p.grad is not None}


def relative_error(found, exact):
    """Return the relative error of all gradients in the 2-norm."""
    size = sum(t.square().sum() for t in exact.values())
    return (sum((found[name] - exact[name]).square().sum() for name in exact) / size).sqrt().item()


def cast_floats(inputs, dtype):
    return tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *product(SMALL_MODELS, ROUNDOFF),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in product(LIBRARY_MODELS, LIBRARY_KINDS)),
    ],
)
def test_gradients_match_float64_and_unpatch_restores_error(name, kind):
    model, inputs = fresh(name)
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    model, inputs = model.to(dtype), cast_floats(inputs, dtype)
    exact = gradients(copy.deepcopy(model).double(), cast_floats(inputs, torch.float64))
    plain = relative_error(gradients(model, inputs, autocast=kind == "autocast"), exact)
    patched = hcops.patch(model, always=True)
    found = relative_error(gradients(model, inputs, autocast=kind == "autocast"), exact)
    assert {"linear", "attention"} <= {row.op for row in patched.table() if row.served}
    assert name in LIBRARY_MODELS or all(row.served for row in patched.table()), str(patched)
    assert found <= max(ALLOWED * ROUNDOFF[kind], 1.2 * plain)
    hcops.unpatch(model)
    assert relative_error(gradients(model, inputs, autocast=kind == "autocast"), exact) == plain


def test_served_operators_are_listed_in_the_table():
    model, inputs = fresh("decoder")
    patched = hcops.patch(model, always=True)
    gradients(model, inputs)
    assert {row.op for row in patched.table()} == {"linear", "rms_norm", "silu", "attention"}
    lines = str(patched).splitlines()
    assert lines[0].split()[:2] == ["operator", "shape"]
    assert any(line.startswith("attention") and "layers.0 and 1 more" in line for line in lines)


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_unpatch_restores_hooks_parameters_and_gradients(name):
    model, inputs = fresh(name)
    keys, parameters = list(model.state_dict()), list(model.parameters())
    hooks = [(len(m._forward_pre_hooks), len(m._forward_hooks), "forward" in vars(m)) for m in model.modules()]
    before = gradients(model, inputs)
    hcops.patch(model, always=True)
    assert list(model.state_dict()) == keys
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    gradients(model, inputs)
    hcops.unpatch(model)
    after = gradients(model, inputs)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert hooks == [(len(m._forward_pre_hooks), len(m._forward_hooks), "forward" in vars(m)) for m in model.modules()]


@pytest.mark.slow
def test_only_faster_kernels_are_served_and_measured_once(monkeypatch, tmp_path, caplog):
    """The measured ratio decides. It is measured once per process and once per machine."""
    monkeypatch.setenv("DITHC_TUNING_FOLDER", str(tmp_path))
    monkeypatch.setattr(dispatch_mode, "MEASURED", autotune.AutotuneCache())
    measured = []

    def measure(torch_call, kernel_call, inputs):
        measured.append(kernel_call().shape)
        return (
            autotune.AutotuneResult(0.5, is_faster=True)
            if measured[-1][-1] == 96
            else autotune.AutotuneResult(1.5, is_faster=False)
        )

    monkeypatch.setattr(dispatch_mode, "measure", measure)
    model, inputs = fresh("vit")
    patched = hcops.patch(model)
    with caplog.at_level(logging.INFO):
        gradients(model, inputs)
        gradients(model, inputs)
    rows = patched.table()
    assert {row.served for row in rows} == {True, False}
    assert all(row.served == (row.ratio == 0.5) for row in rows)
    assert len(measured) == len(rows)
    assert sum("patched model" in record.message for record in caplog.records) == 1
    hcops.unpatch(model)
    monkeypatch.setattr(dispatch_mode, "MEASURED", autotune.AutotuneCache())  # another process on this machine
    hcops.patch(model)
    gradients(model, inputs)
    assert len(measured) == len(rows)
    monkeypatch.setattr(dispatch_mode, "MEASURED", autotune.AutotuneCache())
    (path,) = tmp_path.glob("*.json")
    path.write_text("damaged")
    hcops.unpatch(model)
    hcops.patch(model)
    gradients(model, inputs)
    assert len(measured) == 2 * len(rows)
    assert "measured again" in caplog.text


def test_measurement_preserves_gradients_and_random_state(monkeypatch):
    """A real measurement with every ratio above 1 changes neither random numbers nor gradients."""
    monkeypatch.setenv("DITHC_TUNING_FOLDER", "off")
    monkeypatch.setattr(dispatch_mode, "MEASURED", autotune.AutotuneCache())
    real = autotune.measure
    monkeypatch.setattr(dispatch_mode, "measure", lambda *arguments: real(*arguments)._replace(is_faster=False))
    model, inputs = fresh("decoder")
    before, state = gradients(model, inputs), torch.get_rng_state()
    patched = hcops.patch(model)
    after = gradients(model, inputs)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(row.ratio > 0 for row in patched.table())


def test_torch_serves_masks_dropout_and_other_types_with_reasons():
    class UnsupportedCalls(nn.Module):
        def forward(self, x):
            masked = F.scaled_dot_product_attention(x, x, x, attn_mask=torch.ones(4, 4, dtype=torch.bool))
            dropped = F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
            return (
                masked
                + dropped
                + F.gelu(x.double()).float()
                + F.layer_norm(x, x.shape[2:])
                + F.silu(x.clone(), inplace=True)
            )

    x = torch.randn(1, 2, 4, 8)
    patched = hcops.patch(model := UnsupportedCalls(), always=True)
    torch.manual_seed(0)
    found = model(x)
    hcops.unpatch(model)
    torch.manual_seed(0)
    assert torch.equal(found, model(x))
    reasons = {row.reason for row in patched.table()}
    assert reasons == {
        "a mask",
        "dropout",
        "tensors of torch.float64 on cpu",
        "a norm over more than the last dimension",
        "in place",
    }


def test_invalid_input_raises_torch_errors():
    model = nn.Sequential(nn.Linear(3, 4))
    hcops.patch(model, always=True)
    for bad in (torch.randn(2, 5), torch.randint(0, 2, (2, 3)), torch.randn(2, 3, device="meta")):
        with pytest.raises(RuntimeError, match=r"mat1|dtype|meta|device"):
            model(bad)
    assert model(torch.randn(2, 3)).shape == (2, 4)  # the mode was closed


def test_failed_forward_closes_the_dispatch_mode():
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(2, 2))

        def forward(self, x):
            self.inner(x)
            raise KeyError

    model = Failing()
    hcops.patch(model, always=True)
    for _ in range(2):
        with pytest.raises(KeyError):
            model(torch.randn(1, 2))
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_gradients_match_the_unpatched_model(reentrant):
    class Checkpointed(Vit):
        def forward(self, image):
            x = self.patches(image).flatten(2).transpose(1, 2)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
            return self.head(self.norm(x.mean(1)))

    model, image = Checkpointed(width=32, depth=2, heads=2, patch=4, classes=5), torch.randn(2, 3, 16, 16)
    expected = gradients(model, [image])
    hcops.patch(model, always=True)
    found = gradients(model, [image])
    assert expected.keys() == found.keys()
    assert all(torch.allclose(found[name], expected[name], rtol=1e-4, atol=1e-5) for name in expected)


def test_second_patch_is_rejected():
    model, _ = fresh("vit")
    hcops.patch(model)
    with pytest.raises(UserError, match="unpatch"):
        hcops.patch(model)


def test_inference_matches_torch_and_second_derivatives_are_rejected():
    model, inputs = fresh("vit")
    with torch.inference_mode():
        expected = model(*inputs)
    hcops.patch(model, always=True)
    with torch.inference_mode():
        assert torch.allclose(model(*inputs), expected, rtol=1e-4, atol=1e-5)
    out = model(*inputs).sum()
    with pytest.raises(UserError, match="second derivative"):
        torch.autograd.grad(out, list(model.parameters()), create_graph=True)
