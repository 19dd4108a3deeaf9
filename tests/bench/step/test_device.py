"""Step benchmark on another PyTorch device: rates follow the closed form, and the error without a GPU has a fix."""

import pytest
import torch

from dithc.bench.step import StepSettings, bench_device
from dithc.bench.step.variants import Batch, Training
from dithc.diffusion import Schedule
from dithc.log import UserError
from dithc.model import DiT

TINY = {"hidden_size": 32, "depth": 1, "num_heads": 2, "input_size": 8, "num_classes": 3}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_refusal_says_what_was_got_and_the_fix():
    with pytest.raises(UserError, match="finds no GPU") as refused:
        bench_device(StepSettings(overrides=TINY), "cuda")
    assert len(str(refused.value).splitlines()) == 4


def test_rates_by_both_rules_are_operations_over_time(monkeypatch):
    monkeypatch.setattr("dithc.bench.step.device.NAMES", ("eager",))  # compilation takes long
    monkeypatch.setattr("dithc.bench.step.device.GEMM_SIZE", 64)
    monkeypatch.setattr("dithc.bench.step.device.COPY_BYTES", 4096)
    result = bench_device(StepSettings(overrides=TINY, batch=2, warmup=1, repeats=2), "cpu")
    (row,) = result["contenders"]
    assert row["status"] == "ok", row.get("reason")
    tokens, width = 16, 32
    attention = 3 * 2 * 2 * tokens**2 * width  # three passes of two products of T x T x D, multiply and add
    per_image = result["gflop_per_image"]
    assert per_image["training_total"] - per_image["training_linear"] == pytest.approx(attention / 1e9)
    for rule, rate in row["gflop_per_second"].items():
        assert rate == pytest.approx(per_image[rule] * 2 / row["seconds"]["median"])


def test_adamw_counts_its_steps_where_the_weights_are(monkeypatch):
    made = torch.optim.AdamW
    monkeypatch.setattr(
        torch.optim, "AdamW", lambda weights, *, fused, **more: made(weights, **more)
    )  # the meta device has no fused kernel
    model = DiT.from_preset("DiT-S/2", **TINY)
    batch = Batch.random(model, Schedule.linear(), size=1, seed=0)
    training = Training(model.to("meta"), batch=batch, dtype="fp32")
    devices = {value.device.type for state in training.torch_adamw.state.values() for value in state.values()}
    assert devices == {"meta"}
