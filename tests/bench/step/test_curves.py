"""Losses of trainings on several platforms: the same where the arithmetic is, decided by the seed, and refused with a reason."""

from dataclasses import replace

import pytest
import torch

from dithc import native
from dithc.bench.step.curves import PLATFORMS, CurveSettings, bench_curves
from dithc.log import UserError

ABSENT = replace(PLATFORMS["reference"].contender, obstacle=lambda dtype: "it is absent")
TINY = {"hidden_size": 32, "depth": 1, "num_heads": 2, "input_size": 8, "num_classes": 3}


def losses(platform, **more):
    result = bench_curves(CurveSettings(platform=platform, overrides=TINY, batch=2, **{"steps": 4, **more}))
    (curve,) = result["curves"]
    assert curve["status"] == "ok", curve.get("reason")
    return torch.tensor(curve["losses"])


@pytest.mark.skipif(native.library() is None, reason="no C library")
@pytest.mark.slow
def test_platforms_agree_as_far_as_their_arithmetic_goes():
    reference = losses("reference")
    assert torch.allclose(losses("c-fp32"), reference, rtol=1e-5)
    assert torch.allclose(losses("numba"), reference, rtol=1e-5)
    rounded = losses("c-bf16")
    assert torch.allclose(rounded, reference, rtol=1e-2)
    assert not torch.equal(rounded, reference)


def test_a_seed_decides_and_the_first_loss_is_of_a_network_that_predicts_nothing():
    first, again, other = losses("reference"), losses("reference"), losses("reference", seed=1)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(losses("reference", steps=2), first[:2])
    many = losses("reference", steps=1, seed=3)
    assert many.item() == pytest.approx(1.0, abs=0.4)  # of 512 numbers of noise, and a small bound of variances


def test_a_platform_that_is_not_here_is_a_result(monkeypatch):
    monkeypatch.setitem(PLATFORMS, "absent", replace(PLATFORMS["reference"], contender=ABSENT))
    result = bench_curves(CurveSettings(platform="absent", overrides=TINY, batch=2, steps=2))
    assert [(one["status"], one["reason"]) for one in result["curves"]] == [("skipped", "it is absent")]


@pytest.mark.parametrize("settings", [{"platform": "gpu"}, {"batch": 0}, {"steps": 0}])
def test_settings_without_sense_are_refused(settings):
    with pytest.raises(UserError, match="bench curves"):
        bench_curves(CurveSettings(**settings))
