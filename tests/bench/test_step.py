"""A bench of a step reports every contender, its spread, the ceilings, and what it was measured on; no time is judged."""

import json
import shutil

import pytest

from dithc.bench import StepSettings, bench_step, contenders, step_table
from dithc.bench.timing import Timing, take_turns
from dithc.cli import main
from dithc.log import UserError

TINY = {"hidden_size": 32, "depth": 1, "num_heads": 2, "input_size": 8, "num_classes": 3}
WORDS = [f"--override={name}={value}" for name, value in TINY.items()]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_result_holds_numbers_machine_versions_and_settings(dtype, tmp_path, capsys):
    path = tmp_path / "bench.json"
    words = ["--batch", "2", "--dtype", dtype, "--compare", "eager", "--repeats", "2", "--warmup", "1"]
    assert main(["bench", "step", *WORDS, *words, "--json", str(path)]) == 0
    result = json.loads(path.read_text())
    (row,) = result["contenders"]
    assert row["status"] == "ok"
    assert len(row["seconds"]["all"]) == 2
    assert row["seconds"]["median"] > 0
    assert row["seconds"]["mad"] >= 0
    assert row["ratio_to_first"] == 1
    rates = row["gflop_per_second"]
    assert rates["training_total"] > rates["training_linear"] > 0
    assert row["first_loss"] == pytest.approx(1.0, abs=0.3)
    assert result["settings"]["dtype"] == dtype
    assert result["settings"]["overrides"] == TINY
    assert result["machine"]["cores"]
    assert {"dithc", "python", "torch"} <= set(result["versions"])
    assert result["ceilings"]["gemm_gflop_per_second"] > 0
    assert result["memory"]["peak_rss_bytes"] > 0
    assert result["operators"]
    assert "eager" in capsys.readouterr().out


def test_state_counts_weights_gradients_and_both_moments():
    result = bench_step(StepSettings(overrides=TINY, batch=1, compare=("eager",), warmup=1, repeats=1))
    (row,) = result["contenders"]
    model = contenders.DiT.from_preset("DiT-S/2", **TINY)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    fixed = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    num_tensors = sum(1 for p in model.parameters() if p.requires_grad)
    assert row["state_bytes"] == 4 * (4 * trained + fixed + num_tensors)  # and one step counter a tensor


def test_without_a_compiler_the_contender_is_skipped_with_its_reason(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    result = bench_step(StepSettings(overrides=TINY, batch=1, compare=("eager", "compile"), warmup=1, repeats=1))
    row = result["contenders"][1]
    assert row["status"] == "skipped"
    assert "C++ compiler" in row["reason"]
    assert "skipped" in step_table(result)


def test_running_out_of_memory_is_a_result(monkeypatch):
    def refuse(_: object) -> float:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    monkeypatch.setattr(contenders.TrainingStep, "__call__", refuse)
    result = bench_step(StepSettings(overrides=TINY, batch=1, compare=("eager",), warmup=1, repeats=1))
    assert result["contenders"][0]["status"] == "oom"


@pytest.mark.slow
def test_the_compiled_step_computes_the_eager_loss():
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler (g++)")
    result = bench_step(StepSettings(overrides=TINY, batch=2, compare=("eager", "compile"), warmup=1, repeats=1))
    eager, compiled = result["contenders"]
    assert compiled["status"] == "ok"
    assert compiled["first_loss"] == pytest.approx(eager["first_loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"compare": ("eager", "magic")}, "eager, compile"),
        ({"compare": ("eager", "eager")}, "at most once"),
        ({"repeats": 0}, "1 or more"),
        ({"model": "DiT-Q/2", "compare": ("eager",)}, "unknown model preset"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        bench_step(StepSettings(**settings))


def test_runs_take_turns_and_every_other_round_is_reversed():
    order = []
    timings = take_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert all(len(timing.seconds) == 3 for timing in timings.values())


def test_a_ratio_is_taken_within_each_round():
    base, other = Timing((1.0, 10.0, 2.0)), Timing((2.0, 5.0, 4.0))
    assert other.ratio_to(base) == 2.0
    assert (base.median, base.spread) == (2.0, 1.0)
