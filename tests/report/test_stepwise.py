"""Figure 9 of the report: measured and published speedups by stage, and the reason of a missing stage."""

from typing import Any

from dithc.report.figures.benchmarks.stepwise import draw_stages, stage_bars
from dithc.report.figures.canvas import render_png


def row(name: str, label: str, speedup: float) -> dict[str, Any]:
    return {"name": name, "label": label, "status": "ok", "speedup": {"median": speedup, "mad": 0.02}}


STAGES = [
    row("baseline", "baseline", 1.0),
    row("gemm", "+ GEMM", 1.25),
    {"name": "mpi", "label": "+ async MPI", "status": "same", "reason": "one rank"},
    row("operators", "+ AI operators", 1.5),
    row("automem", "+ AutoMem", 1.8),
    {"name": "tuned", "label": "+ tuning", "status": "skipped", "reason": "not tuned"},
]


def test_stages_have_measured_and_published_speedups() -> None:
    bars = stage_bars({"stages": STAGES})
    assert [bar.published for bar in bars] == [1.0, 5.5, 6.3, 6.6, 6.7, 8.2]
    assert [bar.measured for bar in bars] == [1.0, 1.25, None, 1.5, 1.8, None]
    assert [bar.note for bar in bars] == ["", "", "nothing to exchange", "", "", "skipped"]


def test_stage_without_a_baseline_has_no_measured_bar() -> None:
    bars = stage_bars({"stages": [*STAGES, row("gemm", "+ GEMM", 1.25) | {"speedup": None}]})
    assert (bars[-1].measured, bars[-1].note) == (None, "no baseline")
    assert render_png(lambda: draw_stages(bars, title="alone"))[:4] == b"\x89PNG"
