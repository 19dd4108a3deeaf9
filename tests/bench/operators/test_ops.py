"""Operator benchmark: variants, spreads, shares of a ceiling and ratios. Tests do not check times."""

import json

import pytest
import torch

from dithc.bench import summary
from dithc.bench.operators import cases, ops
from dithc.bench.operators.ops import OpsSettings, bench_ops
from dithc.bench.operators.settings import autocast_context
from dithc.bench.operators.shapes import PASSES, LinearShape
from dithc.cli import main
from dithc.engine.hcops.kernel_registry import obstacle
from dithc.model import PRESETS


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Use 4 tokens, width 16, heads of 8, hidden layers of 24, one small tensor, and no loops."""
    config = PRESETS["DiT-S/2"]
    tiny = type(config)(hidden_size=16, depth=1, num_heads=2, patch_size=2, input_size=4)
    monkeypatch.setattr(cases, "PRESETS", {"tiny": tiny})
    monkeypatch.setattr(cases, "ATTENTION_SHAPES", ((2, 8, 1),))
    monkeypatch.setattr(cases, "WIDTH", 16)
    monkeypatch.setattr(cases, "TOKENS", 4)
    monkeypatch.setattr(cases, "HEADS", 2)
    monkeypatch.setattr(cases, "HIDDEN", 24)
    monkeypatch.setattr(cases, "PARAMETER_SHAPE", (8, 16))
    monkeypatch.setattr(ops, "SECONDS_PER_TIME", 1e-6)


def settings(**changes):
    return OpsSettings(**{"models": ("tiny",), "size_bytes": 4096, "repeats": 2, "backend": "reference"} | changes)


@pytest.mark.slow
def test_every_operator_has_times_ratios_and_spreads():
    result = bench_ops(settings())
    assert {row["op"] for row in result["cases"]} == {"gemm", "attention", *cases.MEMORY_BOUND}
    assert len(result["cases"]) == 2 * (15 + 1 + 7) + 1  # AdamW is fp32 in every training run
    for row in result["cases"]:
        assert {"hcops", "eager"} <= set(row["contenders"])
        for contender in row["contenders"].values():
            assert len(contender["seconds"]["all"]) == 2
            assert contender["seconds"]["median"] > 0
            assert contender["seconds"]["mad"] >= 0
            parts = [part["all"] for part in contender["parts"].values()]
            assert [sum(times) for times in zip(*parts, strict=True)] == pytest.approx(contender["seconds"]["all"])
        assert len(row["speedup_of_hcops_over"]["eager"]["rounds"]) == 2
    assert json.loads(json.dumps(result)) is not None
    assert "adamw" in summary(result).text()
    groups = {(group["group"], group["dtype"], group["kind"]): group["cases"] for group in result["groups"]}
    assert groups == {
        ("gemm tiny", t, of): 15 if of == "all" else 5 for t in ("fp32", "bf16") for of in ("all", *PASSES)
    }


def test_shares_are_of_the_ceiling_of_the_same_round():
    if why := obstacle("c"):
        pytest.skip(f"back end c: {why}")
    result = bench_ops(settings(ops=("gemm", "gelu"), dtypes=("fp32",), backend="c"))
    for row in result["cases"]:
        rounds = row["ceiling"]["per_second"]["rounds"]
        for contender in row["contenders"].values():
            work = row["work"].get("flop", row["work"].get("bytes"))
            expected = [work / time / rate for time, rate in zip(contender["seconds"]["all"], rounds, strict=True)]
            assert contender["share_of_ceiling"]["rounds"] == pytest.approx(expected)
    assert set(result["ceilings"]) == {"multiply_add fp32", "copy"}
    team = result["team"]
    assert (team["threads"], sum(team["clusters"])) == (result["settings"]["threads"],) * 2
    assert team["barrier_seconds"]["median"] > 0 or team["threads"] == 1


@pytest.mark.parametrize("backend", ["reference", "numba", "c"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_contenders_compute_the_same_products(backend, dtype, use_backend):
    use_backend(backend)
    layer = LinearShape("up", 8, 16, 32)
    types = {"fp32": torch.float32, "bf16": torch.bfloat16}
    for of in PASSES:
        with autocast_context(dtype):
            ours = cases.our_linear_run(layer, of, dtype)()
            eager = cases.linear_run(layer, of, torch.nn.functional.linear, dtype, weight_dtype=types[dtype])()
        pairs = zip(ours, eager, strict=True) if isinstance(ours, tuple) else [(ours, eager)]
        for own, other in pairs:
            torch.testing.assert_close(own.float(), other.float(), rtol=2e-2 if dtype == "bf16" else 1e-5, atol=0.2)


@pytest.mark.parametrize("backend", ["numba", "c"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("op", [op for op in cases.MEMORY_BOUND if op != "adamw"])
def test_contenders_compute_the_same(backend, dtype, op, use_backend):
    use_backend(backend)
    with autocast_context(dtype):
        ways = cases.memory_bound(op, dtype, 4096).ways
        assert ways["hcops"].keys() == ways["eager"].keys()
        outputs = [[parts["forward"](), *parts["backward"]()] for parts in ways.values()]
    largest = 2e-5 if dtype == "fp32" else 0.1  # absolute, for values below 10
    for own, other in zip(*outputs, strict=True):
        torch.testing.assert_close(own.float(), other.float(), rtol=0, atol=largest)


def test_the_bytes_of_an_ideal_implementation():
    tokens, heads, gates = (4096 // (4 * width) // 4 * 4 for width in (16, 3 * 16, 2 * 24))  # of complete images of 4
    expected = {
        ("gelu", "fp32"): 5 * 4 * tokens * 16,
        ("gelu", "bf16"): 5 * 2 * tokens * 16,
        ("adaln", "fp32"): 5 * 4 * tokens * 16,
        ("adaln", "bf16"): (3 * 4 + 2 * 2) * tokens * 16,
        ("adarms", "fp32"): 5 * 4 * tokens * 16,
        ("adarms", "bf16"): (3 * 4 + 2 * 2) * tokens * 16,
        ("gate_residual", "fp32"): 6 * 4 * tokens * 16,
        ("gate_residual", "bf16"): (3 * 4 + 3 * 2) * tokens * 16,
        ("rotate_heads", "fp32"): 4 * 4 * heads * 3 * 16,  # q, k and v: read, written; read, written
        ("rotate_heads", "bf16"): 4 * 2 * heads * 3 * 16,
        ("swiglu", "fp32"): (3 + 5) * 4 * gates * 24,  # reads 2E, writes E; reads E and 2E, writes 2E
        ("swiglu", "bf16"): (3 + 5) * 2 * gates * 24,
    }
    for (op, dtype), num_bytes in expected.items():
        assert cases.memory_bound(op, dtype, 4096).work == num_bytes


def test_the_sizes_are_those_of_the_presets(monkeypatch):
    monkeypatch.undo()
    for name in ("DiT-XL/2", "ModernDiT-XL/2"):
        config = PRESETS[name]
        sizes = config.hidden_size, config.num_tokens, config.num_heads
        assert sizes == (cases.WIDTH, cases.TOKENS, cases.HEADS)
    assert config.mlp_width == cases.HIDDEN


def test_the_verb_prints_a_table_and_writes_json(tmp_path, capsys):
    path = tmp_path / "ops.json"
    words = ["--ops", "gemm,silu", "--models", "tiny", "--dtype", "fp32", "--bytes", "4096", "--repeats", "1"]
    assert main(["bench", "ops", *words, "--backend", "reference", "--json", str(path)]) == 0
    assert "x eager" in capsys.readouterr().out
    assert json.loads(path.read_text())["bench"] == "ops"
    with pytest.raises(SystemExit):
        main(["bench", "ops", "--help"])
    assert f"among {', '.join(cases.OPS)} (default" in " ".join(capsys.readouterr().out.split())
