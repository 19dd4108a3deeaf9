"""Step benchmark: variants, spreads, ceilings and environment. Tests do not check times."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dithc.bench import summary
from dithc.bench.step import StepSettings, bench_step
from dithc.bench.step import variants as step_variants
from dithc.cli import main
from dithc.core.logging import UserError
from dithc.engine.hcops.kernel_registry import obstacle

TINY = {"hidden_size": 32, "depth": 1, "num_heads": 2, "input_size": 8, "num_classes": 3}
PROFILES = Path(__file__).parents[3] / "profiles"
WORDS = [f"--override={name}={value}" for name, value in TINY.items()]


@pytest.mark.slow
def test_result_contains_flop_rates_machine_versions_and_settings(tmp_path, capsys):
    path = tmp_path / "bench.json"
    arguments = ["--batch", "2", "--compare", "eager", "--rounds", "2", "--warmup", "1"]
    assert main(["bench", "step", *WORDS, *arguments, "--json", str(path)]) == 0
    result = json.loads(path.read_text())
    dithc, row = result["variants"]
    assert (dithc["name"], row["name"], row["status"]) == ("dithc", "eager", "ok")
    assert (len(row["seconds"]["all"]), len(row["share_of_gemm_ceiling"]["rounds"])) == (2, 2)
    tokens, width, per_image = 16, 32, result["gflop_per_image"]
    attention = 3 * 2 * 2 * tokens**2 * width  # three passes of two products of T x T x D, multiply and add
    assert per_image["training_total"] - per_image["training_linear"] == pytest.approx(attention / 1e9)
    for rule, rate in row["gflop_per_second"].items():
        assert rate == pytest.approx(per_image[rule] * 2 / row["seconds"]["median"])
    assert row["first_loss"] == pytest.approx(1.0, abs=0.3)
    assert result["settings"]["overrides"] == TINY
    assert result["machine"]["cores"]
    assert {"dithc", "python", "torch", "onednn"} <= set(result["versions"])
    assert result["best_peer"] == "eager"
    assert result["ceilings"]["gemm_gflop_per_second"] > 0
    assert result["memory"]["peak_rss_bytes"] > 0
    assert "eager" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu_error_has_four_lines_with_the_reason():
    with pytest.raises(UserError, match="finds no GPU") as raised:
        bench_step(StepSettings(overrides=TINY, device="cuda"))
    assert len(str(raised.value).splitlines()) == 4


def test_adamw_state_is_on_the_device_of_the_weights(monkeypatch):
    adamw = torch.optim.AdamW
    monkeypatch.setattr(
        torch.optim, "AdamW", lambda weights, *, fused, **more: adamw(weights, **more)
    )  # the meta device has no fused kernel
    model = step_variants.DiT.from_preset("DiT-S/2", **TINY).to("meta")
    training = step_variants.Training(model, batch=None, dtype="fp32")
    devices = {value.device.type for state in training.torch_adamw.state.values() for value in state.values()}
    assert devices == {"meta"}


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["dithc", "numba"])
def test_dithc_and_numba_steps_match_the_eager_loss(name, dtype):
    if reason := obstacle({"dithc": "c"}.get(name, name)):
        pytest.skip(f"{name}: {reason}")
    result = bench_step(StepSettings(overrides=TINY, batch=2, dtype=dtype, compare=("eager", name), warmup=1, rounds=1))
    rows = {row["name"]: row for row in result["variants"]}
    assert rows[name]["status"] == "ok"
    tolerance = 1e-5 if dtype == "fp32" else 2e-2
    assert rows[name]["first_loss"] == pytest.approx(rows["eager"]["first_loss"], rel=tolerance)
    if rows["dithc"]["status"] == "ok":
        assert rows["dithc"]["speedup_of_dithc"]["median"] == 1
        assert rows["eager"]["speedup_of_dithc"]["median"] > 0
        assert rows["eager"]["share_of_peak"]["median"] > 0
        assert "FMA" in summary(result).text()


def test_medium_precision_is_a_peer_of_fp32_only_and_never_the_fastest_in_the_same_precision():
    precision = torch.get_float32_matmul_precision()
    result = bench_step(StepSettings(overrides=TINY, batch=2, compare=("medium",), warmup=1, rounds=1))
    assert {row["name"]: row["status"] for row in result["variants"]}["medium"] == "ok"
    assert result["best_peer"] is None
    assert torch.get_float32_matmul_precision() == precision
    assert step_variants.VARIANTS["medium"].skip_reason("bf16")


@pytest.mark.slow
def test_all_clusters_are_compared_with_a_single_cluster_and_ceilings(tmp_path):
    if reason := obstacle("c"):
        pytest.skip(reason)
    path, machine = tmp_path / "bench.json", PROFILES / "machines" / "two-clusters.yaml"
    arguments = ["--batch=2", "--compare=one-cluster", "--warmup=1", "--rounds=2", "--threads=2", f"--json={path}"]
    done = subprocess.run(
        [sys.executable, "-m", "dithc", "bench", "step", *WORDS, *arguments],
        env=os.environ | {"DITHC_MACHINE_FILE": str(machine)},
        capture_output=True,
        text=True,
        check=True,
    )
    result = json.loads(path.read_text())
    dithc, row = result["variants"]
    if len(result["machine"]["cores"]) < 2:
        assert "the team has 1 core cluster(s)" in row["reason"]
        return
    assert (dithc["status"], row["status"]) == ("ok", "ok")
    assert row["first_loss"] == pytest.approx(dithc["first_loss"], rel=1e-5)
    assert row["speedup_of_dithc"]["median"] > 0
    assert set(result["ceilings"]["all_clusters_over_one"]) == {"multiply_add", "gemm", "copy"}
    assert "all core clusters over one" in done.stdout


def test_cluster_comparison_is_skipped_with_a_single_cluster():
    result = bench_step(StepSettings(overrides=TINY, batch=2, compare=("one-cluster",), threads=1, warmup=1, rounds=1))
    row = result["variants"][1]
    assert (row["status"], row["reason"]) == ("skipped", "the team has 1 core cluster(s), and 2 are required")
    assert "all_clusters_over_one" not in result["ceilings"]


def test_variants_share_moments_counted_once_in_the_state():
    model = step_variants.DiT.from_preset("DiT-S/2", **TINY)
    training = step_variants.Training(model, batch=None, dtype="fp32")
    for weight in training.weights:
        weight.grad = torch.ones_like(weight)
    training.torch_adamw.step()
    assert all((moment != 0).all() for moment in (*training.first, *training.second))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    fixed = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    assert training.state_bytes == 4 * (4 * trained + fixed)


def test_compile_is_skipped_without_a_compiler_and_without_bf16_products(monkeypatch):
    compiled = step_variants.VARIANTS["compile"]
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    assert "compare in fp32" in compiled.skip_reason("bf16")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    assert "C++ compiler" in compiled.skip_reason("fp32")


@pytest.mark.slow
def test_out_of_memory_is_reported_as_oom(monkeypatch):
    def refuse(_: object, **__: object) -> float:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    monkeypatch.setattr(step_variants.TrainingStep, "__call__", refuse)
    result = bench_step(StepSettings(overrides=TINY, batch=1, compare=("eager",), warmup=1, rounds=1))
    assert result["variants"][1]["status"] == "oom"
    assert "oom" in summary(result).text()


@pytest.mark.slow
def test_compiled_step_matches_the_eager_loss():
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler (g++)")
    result = bench_step(StepSettings(overrides=TINY, batch=2, compare=("eager", "compile"), warmup=1, rounds=1))
    _, eager, compiled = result["variants"]
    assert compiled["status"] == "ok"
    assert compiled["first_loss"] == pytest.approx(eager["first_loss"], rel=1e-5)
