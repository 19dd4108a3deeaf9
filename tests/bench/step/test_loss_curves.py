"""Loss curves on several platforms: equal with equal arithmetic, determined by the seed, rejected with a reason."""

import pytest
import torch

from dithc.bench.gemm_libraries import EMULATED, emulated
from dithc.bench.step.loss_curves import PLATFORMS, CurveSettings, bench_curves
from dithc.engine import native

TINY = {"hidden_size": 32, "depth": 1, "num_heads": 2, "input_size": 8, "num_classes": 3}


def losses(platform, **more):
    result = bench_curves(CurveSettings(platform=platform, overrides=TINY, batch=2, **{"steps": 4, **more}))
    (curve,) = result["curves"]
    assert curve["status"] == "ok", curve.get("reason")
    return torch.tensor(curve["losses"])


@pytest.mark.skipif(native.library() is None, reason="no C library")
@pytest.mark.slow
def test_platform_losses_agree_within_arithmetic_precision():
    reference = losses("reference")
    assert torch.allclose(losses("c-fp32"), reference, rtol=1e-5)
    assert torch.allclose(losses("numba"), reference, rtol=1e-5)
    rounded = losses("c-bf16")
    assert torch.allclose(rounded, reference, rtol=1e-2)
    assert not torch.equal(rounded, reference)


@pytest.mark.slow
def test_seed_determines_losses_and_first_loss_is_near_1():
    first, again, other = losses("reference"), losses("reference"), losses("reference", seed=1)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(losses("reference", steps=2), first[:2])
    many = losses("reference", steps=1, seed=3)
    assert many.item() == pytest.approx(1.0, abs=0.4)  # of 512 noise values, with a small bound on variances


def test_unavailable_platform_is_reported_as_skipped():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    result = bench_curves(CurveSettings(platform="cuda", overrides=TINY, batch=2, steps=2))
    assert [(one["status"], one["reason"]) for one in result["curves"]] == [("skipped", "this PyTorch finds no GPU")]


@pytest.mark.slow
def test_emulated_products_equal_float64():
    library = EMULATED["sme"]
    if reason := library.skip_reason("fp32"):
        pytest.skip(reason)
    for m, k, n in ((3, 5, 7), (33, 64, 17)):
        a, b, bias = torch.randn(k, m).t(), torch.randn(n, k).t(), torch.randn(n)
        exact = a.double() @ b.double() + bias.double()
        bounds = {"atol": 1e-5 * k**0.5, "rtol": 1e-5}
        assert torch.allclose(library.product(a, b, bias).double(), exact, **bounds)
        assert torch.allclose(library.product(a, b, None).double(), exact - bias.double(), **bounds)


@pytest.mark.slow
def test_training_on_emulated_products_matches_reference_losses(monkeypatch):
    if reason := PLATFORMS["sme"].skip_reason():
        pytest.skip(reason)
    sizes, exchange = [], emulated._exchange
    monkeypatch.setattr(emulated, "_exchange", lambda request, size: sizes.append(size) or exchange(request, size))
    settings = CurveSettings(platform="sme", compare=("reference",), overrides=TINY, batch=1, steps=3)
    sme, reference = bench_curves(settings)["curves"]
    assert sme["model"] == reference["model"]
    assert sme["model"]["hidden_size"] == 64  # a separate tiny network, because each product takes long
    assert sme["losses"] == pytest.approx(reference["losses"], rel=1e-5)
    layers, leaves = 10, 2  # a block and its ends; two layers read inputs without gradient, the image and the time
    assert len(sizes) == settings.steps * (3 * layers - leaves)  # forward, and the gradients of input and weight


def test_emulation_reports_missing_compiler_and_unsupported_dtype(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert "clang-19" in PLATFORMS["sme"].skip_reason()
    assert EMULATED["sme"].skip_reason("bf16") == "only products of fp32 are emulated"
