"""The figure of a step in two memory tiers shows the content of a plan."""

import json
from pathlib import Path
from typing import Any

import pytest

from dithc.cli import main
from dithc.core.logging import UserError
from dithc.core.measurements import Measurement
from dithc.report.figures.benchmarks.timeline import draw_timeline, read_timeline, timeline_of
from dithc.report.figures.canvas import render_png

GIB = 1 << 30


def phase(kind: str, *, stall: float = 0.0, loaded: int = 0, offloaded: int = 0, saved: int = 0) -> dict[str, Any]:
    return {
        "name": "block", "kind": kind, "seconds": 1.0, "stall_seconds": stall, "fast_bytes": GIB + saved, "slow_bytes": GIB,
        "fast_parts": {"weights": GIB, "saved": saved}, "slow_parts": {"state": GIB},
        "load_bytes": loaded, "offload_bytes": offloaded,
    }  # fmt: skip


def document(*, moving: bool = True) -> dict[str, Any]:
    copied = GIB // 4 if moving else 0
    phases = [
        phase("forward", offloaded=copied, saved=GIB // 2),
        phase("backward", stall=0.5 if moving else 0.0, loaded=copied, saved=GIB // 2),
        phase("update"),
    ]
    budgets = {"fast": 2 * GIB, "slow": None}
    levels = {name: {"name": name, "budget_bytes": budget} for name, budget in budgets.items()}
    plan = {
        "schema": 1, "units": {}, "state": {}, "phases": phases, "fits": True, "reasons": ["a reason"], "in_place_bytes": 0,
        **{name: {**level, "copy_bytes_per_second": 1e9, "read_bytes_per_second": 1e9} for name, level in levels.items()},
    }  # fmt: skip
    return {"tiers": [{**level, "kind": "ddr"} for level in levels.values()], "trace": {"units": []}, "plan": plan}


def bench() -> dict[str, Any]:
    memory = document() | {"steps": {}}
    memory["tiers"][0]["peak_backed_bytes"] = int(1.75 * GIB)
    rows = [{"name": "unmanaged"}, {"name": "AutoMem", "memory": memory}]
    summary = Measurement(title="AutoMem", tables=[], notes=["the budget was never exceeded"])
    settings = {"model": "DiT-XL/2", "batch": 8}
    return {"bench": "automem", "settings": settings, "parts": {"budget": {"rows": rows}}, **summary.to_content()}


def test_pass_stalls_then_computes_and_the_next_pass_follows() -> None:
    found = timeline_of(document())
    assert found is not None
    assert [(span.start, span.end) for span in found.spans] == [(0.0, 1.0), (1.0, 2.5), (2.5, 3.5)]
    assert found.stall == 0.5
    assert timeline_of({"parts": {"pool": {"rows": [{}]}}}) is None


def test_plan_of_a_benchmark_has_peak_and_title() -> None:
    found = timeline_of(bench())
    assert found is not None
    assert found.measured_peak_bytes == int(1.75 * GIB)
    assert found.title == "DiT-XL/2, batch 8"


@pytest.mark.parametrize("moving", [True, False])
def test_timeline_with_and_without_copies(moving: bool) -> None:
    found = timeline_of(document(moving=moving), title="a step")
    assert found is not None
    assert render_png(lambda: draw_timeline(found))[:4] == b"\x89PNG"


@pytest.mark.slow
def test_show_prints_and_draws_the_plan_of_a_training_and_of_a_bench(tmp_path: Path, capsys: Any) -> None:
    for name, content, text in (("automem.json", document(), "a reason"), ("bench.json", bench(), "never exceeded")):
        path, png = tmp_path / name, tmp_path / f"{name}.png"
        path.write_text(json.dumps(content))
        assert main(["show", str(path), "--png", str(png)]) == 0
        assert text in capsys.readouterr().out
        assert png.read_bytes()[:4] == b"\x89PNG"


def test_file_without_a_plan_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "automem.json"
    path.write_text(json.dumps({"bench": "automem", "parts": {}}))
    with pytest.raises(UserError, match="no memory plan"):
        read_timeline(path)
