"""Loss curves on several platforms: equal with equal arithmetic, determined by the seed, rejected with a reason."""

import pytest
import torch

from dithc.bench.step.loss_curves import CurveSettings, bench_curves
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
