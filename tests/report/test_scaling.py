"""Figures of benchmarks in the report: every curve with its kind, without oversubscribed points; bars of speedups."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dithc.core.logging import UserError
from dithc.core.reproduction import read_reference
from dithc.report import write_report
from dithc.report.collect.experiment import read_scaling
from dithc.report.figures.benchmarks.measured import draw_scaling, scaling_series, stage_cells
from dithc.report.figures.canvas import render_png
from dithc.report.scaling_curves import ScalingCurve, add_published, parse_curves, points_table


def point(ranks: int, seconds: float | None, efficiency: float | None, **more: Any) -> dict[str, Any]:
    return {"nodes": -(-ranks // 4), "ranks": ranks, "seconds": seconds, "efficiency": efficiency, **more}


def content(
    kind: str = "measured", mode: str = "weak", *, points: list[dict[str, Any]] | None = None, **more: Any
) -> Any:
    spread = {"median": 1.25, "mad": 0.02, "all": [1.25]}
    comparison = {"largest_difference": 1e-9, "tolerance": 1e-5, "same": True}
    two = point(
        2, 1.25, 0.8, seconds_spread=spread, exposed_seconds=0.05, overlap_fraction=0.9, flops_per_second=2.5e11,
        linear_flops_per_second=2.4e11, no_communication_baseline={"ratio": {"median": 1.04}}, same_training=comparison,
    )  # fmt: skip
    shared = point(4, 9.0, None, oversubscribed=True)
    head = {
        "label": "B/2",
        "kind": kind,
        "model": "DiT-B/2",
        "mode": mode,
        "global_batch_size": 8 if mode == "strong" else None,
    }
    return head | {"points": points or [two, point(1, 1.0, 1.0), shared]} | more


def curve(*args: Any, **more: Any) -> ScalingCurve:
    return parse_curves([content(*args, **more)], origin="test")[0]


def test_title_of_a_curve_has_model_batch_and_kind_once() -> None:
    assert curve().title == "B/2 (measured)"
    assert curve(mode="strong").title == "B/2, batch 8 (measured)"
    assert curve(mode="strong", global_batch_size=2).title == "B/2, batch 2 (measured)"
    assert curve("simulated", label="DiT-B/2: ours, simulated").title == "B/2 ours, simulated"
    assert curve("published", label="logs").title == "B/2 logs (published)"


def test_points_are_sorted_and_oversubscribed_points_are_not_drawn() -> None:
    one = curve()
    assert [item.ranks for item in one.points] == [1, 2, 4]
    efficiency, seconds = (scaling_series(one, name) for name in ("efficiency", "seconds"))
    assert (efficiency.label, efficiency.x, efficiency.y) == ("B/2", (1.0, 2.0), (1.0, 0.8))
    assert seconds.y == (1.0, 1.25)


def test_table_contains_all_points_and_marks_oversubscription() -> None:
    curves = [curve(), curve("simulated", mode="strong", points=[point(1024, 19.0, 0.9)])]
    first, second, shared = points_table(curves, "weak").rows
    assert first[2:6] == ["1", "1", "1", "100.0%"]
    assert second[1:] == ["yes", "2", "1", "1.25 ± 0.02", "80.0%", "0.05", "90.0%", "0.25", "0.24"]
    assert "correctness only" in shared[0]
    (simulated,) = points_table(curves, "strong").rows
    assert simulated[:6] == ["B/2, batch 8 (simulated)", "", "1,024", "256", "19", "90.0%"]


def test_published_efficiency_follows_from_published_seconds() -> None:
    published = parse_curves(read_reference().scaling, origin="reference")
    assert {one.kind for one in published} == {"published"}
    for one in published:
        for item in one.points:
            assert item.ranks == 4 * item.nodes
            if item.seconds is not None and one.points[0].seconds is not None:
                assert item.efficiency == pytest.approx(one.points[0].seconds / item.seconds, abs=1e-3)
    assert any(item.efficiency == 0.906 and item.nodes == 256 for one in published for item in one.points)


def test_published_curves_are_added_once_for_measured_modes() -> None:
    published = parse_curves(read_reference().scaling, origin="reference")
    assert add_published([], published) == []
    repeated = curve("published", model="DiT-XL/2", label="again")
    found = add_published([curve(), repeated], published)
    assert [one.kind for one in found] == ["measured", *["published"] * len(published)]
    assert [one.kind for one in add_published([curve(mode="strong")], published)] == ["measured"]


@pytest.mark.parametrize(
    "bad",
    [
        "{}",
        '{"curves": {}}',
        json.dumps({"curves": [content("guessed")]}),
        json.dumps({"curves": [content(mode="sideways")]}),
        json.dumps({"curves": [content(points=[{"ranks": 1}])]}),
    ],
)
def test_file_without_scaling_curves_is_rejected(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "bench.json"
    path.write_text(bad)
    with pytest.raises(UserError, match="has no scaling curves"):
        read_scaling([path])


@pytest.mark.slow
def test_page_and_figures_contain_all_three_kinds(small: Any, tmp_path: Path) -> None:
    path, out = tmp_path / "scaling.json", tmp_path / "report.html"
    simulated = content(
        "simulated", model="DiT-XL/2", label="dithc", points=[point(4, 17.0, 1.0), point(4096, 17.5, 0.97)]
    )
    path.write_text(json.dumps({"curves": [content(), simulated]}))
    records = write_report(small.experiment, small.paths, out=out, scaling=[path])
    text = out.read_text()
    for title in ("B/2 (measured)", "XL/2 dithc (simulated)", "XL/2 authors&#39; logs (published)", "4,096", "90.6%"):
        assert title in text
    assert {item["kind"] for item in json.loads(out.with_suffix(".json").read_text())["scaling"]} == {
        "measured", "simulated", "published",
    }  # fmt: skip
    assert (tmp_path / "figures" / "weak_scaling.png").read_bytes()[:4] == b"\x89PNG"
    # Published numbers alone are not a result of this experiment.
    drawn = {mode: len(render_png(partial(draw_scaling, records, mode=mode))) for mode in ("weak", "strong")}
    assert drawn["strong"] < drawn["weak"] / 4, "without strong scaling the figure is one line of text"


def speedup(name: str, value: float | None, **more: Any) -> dict[str, Any]:
    return {"name": name, "label": name, "status": "ok", "speedup": value and {"median": value, "mad": 0.25}, **more}


def test_stages_have_measured_and_published_speedups_or_a_reason() -> None:
    stages = [speedup("baseline", 1.0), speedup("gemm", 1.5), speedup("tuned", None, status="skipped", reason="why")]
    found = list(stage_cells({"stages": [*stages, speedup("mpi", None)]}))
    assert [cell.published for cell in found] == [1.0, 5.5, 8.2, 6.3]
    assert [(cell.value, cell.low, cell.high) for cell in found[:2]] == [(1.0, 0.75, 1.25), (1.5, 1.25, 1.75)]
    assert [cell.reason for cell in found[2:]] == ["why", "the baseline has no time"]
