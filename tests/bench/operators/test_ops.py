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
    tiny = type(PRESETS["DiT-S/2"])(hidden_size=16, depth=1, num_heads=2, patch_size=2, input_size=4)
    monkeypatch.setattr(cases, "PRESETS", {"tiny": tiny})
    monkeypatch.setattr(cases, "ATTENTION_SHAPES", ((2, 8, 1),))
    monkeypatch.setattr(cases, "WIDTH", 16)
    monkeypatch.setattr(cases, "TOKENS", 4)
    monkeypatch.setattr(cases, "HEADS", 2)
    monkeypatch.setattr(cases, "HIDDEN", 24)
    monkeypatch.setattr(cases, "PARAMETER_SHAPE", (8, 16))
    monkeypatch.setattr(ops, "SECONDS_PER_TIME", 1e-6)


def settings(**changes):
    return OpsSettings(**{"models": ("tiny",), "size_bytes": 4096, "rounds": 2, "backend": "reference"} | changes)


@pytest.mark.slow
def test_every_operator_has_times_ratios_and_spreads():
    result = bench_ops(settings())
    assert {row["op"] for row in result["cases"]} == {"gemm", "attention", *cases.MEMORY_BOUND}
    assert len(result["cases"]) == 2 * (15 + 1 + 7) + 1  # AdamW is fp32 in every training run
    for row in result["cases"]:
        assert {"hcops", "eager"} <= set(row["variants"])
        for contender in row["variants"].values():
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
        ("gemm tiny", t, kind): 15 if kind == "all" else 5 for t in ("fp32", "bf16") for kind in ("all", *PASSES)
    }


def test_shares_divide_by_the_ceiling_of_the_same_round():
    if reason := obstacle("c"):
        pytest.skip(f"back end c: {reason}")
    result = bench_ops(settings(ops=("gemm", "gelu"), dtypes=("fp32",), backend="c"))
    for row in result["cases"]:
        rounds = row["ceiling"]["per_second"]["rounds"]
        for contender in row["variants"].values():
            work = row["work"].get("flop", row["work"].get("bytes"))
            expected = [work / time / rate for time, rate in zip(contender["seconds"]["all"], rounds, strict=True)]
            assert contender["share_of_ceiling"]["rounds"] == pytest.approx(expected)
    assert set(result["ceilings"]) == {"multiply_add fp32", "copy"}
    team = result["team"]
    assert (team["threads"], sum(team["clusters"])) == (result["settings"]["threads"],) * 2
    assert team["barrier_seconds"]["median"] > 0 or team["threads"] == 1


@pytest.mark.parametrize("backend", ["reference", "numba", "c"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_variants_compute_equal_linear_products(backend, dtype, use_backend):
    use_backend(backend)
    layer = LinearShape("up", 8, 16, 32)
    for kind in PASSES:
        with autocast_context(dtype):
            fused_run = cases.linear_run(layer, kind, dtype)()
            eager = cases.linear_run(layer, kind, dtype, torch.nn.functional.linear)()
        pairs = zip(fused_run, eager, strict=True) if isinstance(fused_run, tuple) else [(fused_run, eager)]
        for fused, other in pairs:
            torch.testing.assert_close(fused.float(), other.float(), rtol=2e-2 if dtype == "bf16" else 1e-5, atol=0.2)


@pytest.mark.parametrize("backend", ["numba", "c"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("op", [op for op in cases.MEMORY_BOUND if op != "adamw"])
def test_variants_compute_equal_memory_bound_operators(backend, dtype, op, use_backend):
    use_backend(backend)
    with autocast_context(dtype):
        runs = cases.memory_bound(op, dtype, 4096).runs
        assert runs["hcops"].keys() == runs["eager"].keys()
        outputs = [[parts["forward"](), *parts["backward"]()] for parts in runs.values()]
    largest = 2e-5 if dtype == "fp32" else 0.1  # absolute, for values below 10
    for fused, other in zip(*outputs, strict=True):
        torch.testing.assert_close(fused.float(), other.float(), rtol=0, atol=largest)


def test_memory_bound_work_equals_ideal_bytes():
    tokens, heads, gates = (4096 // (4 * width) // 4 * 4 for width in (16, 3 * 16, 2 * 24))  # of complete images of 4
    expected = {  # bytes in fp32 and in bf16 for each element, and elements
        "gelu": (5 * 4, 5 * 2, tokens * 16),
        "adaln": (5 * 4, 3 * 4 + 2 * 2, tokens * 16),
        "adarms": (5 * 4, 3 * 4 + 2 * 2, tokens * 16),
        "gate_residual": (6 * 4, 3 * 4 + 3 * 2, tokens * 16),
        "rotate_heads": (4 * 4, 4 * 2, heads * 3 * 16),  # q, k and v: read, written; read, written
        "swiglu": ((3 + 5) * 4, (3 + 5) * 2, gates * 24),  # reads 2E, writes E; reads E and 2E, writes 2E
    }
    for op, (fp32, bf16, elements) in expected.items():
        assert cases.memory_bound(op, "fp32", 4096).work == fp32 * elements
        assert cases.memory_bound(op, "bf16", 4096).work == bf16 * elements


def test_case_sizes_equal_the_presets(monkeypatch):
    monkeypatch.undo()
    for name in ("DiT-XL/2", "ModernDiT-XL/2"):
        config = PRESETS[name]
        sizes = config.hidden_size, config.num_tokens, config.num_heads
        assert sizes == (cases.WIDTH, cases.TOKENS, cases.HEADS)
    assert config.mlp_width == cases.HIDDEN


def test_bench_ops_prints_a_table_and_writes_json(tmp_path, capsys):
    path = tmp_path / "ops.json"
    arguments = ["--ops", "gemm,silu", "--models", "tiny", "--dtype", "fp32", "--bytes", "4096", "--rounds", "1"]
    assert main(["bench", "ops", *arguments, "--backend", "reference", "--json", str(path)]) == 0
    assert "x eager" in capsys.readouterr().out
    assert json.loads(path.read_text())["bench"] == "ops"
    with pytest.raises(SystemExit):
        main(["bench", "ops", "--help"])
    assert f"among {', '.join(cases.OPS)} (default" in " ".join(capsys.readouterr().out.split())
