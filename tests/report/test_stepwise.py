"""Figure 9 stands in the report with the paper's numbers beside ours, and says what was not measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from dithc.log import UserError
from dithc.report import write_report
from dithc.report.engine.published import read_reference
from dithc.report.engine.stepwise_stages import HEAD, read_stepwise, stage_bars, stepwise_parts
from dithc.report.figures.stepwise import draw_stages

REFERENCE = Path(__file__).parents[2] / "config" / "paper" / "reference.yaml"


def spread(value: float) -> dict[str, Any]:
    return {"median": value, "mad": 0.02, "rounds": [value]}


def row(name: str, label: str, speedup: float, over: float) -> dict[str, Any]:
    told = {"seconds": spread(2.0 / speedup), "speedup": spread(speedup), "speedup_over_previous": spread(over)}
    return {"name": name, "label": label, "what": f"{label} in words", "status": "ok", **told}


RESULT = {
    "bench": "stepwise",
    "settings": {"model": "DiT-B/2", "batch": 8, "dtype": "fp32", "rounds": 3, "steps": 3},
    "ranks": {"ranks": 1, "cpus": 2},
    "stages": [
        row("baseline", "baseline", 1.0, 1.0),
        row("gemm", "+ GEMM", 1.25, 1.25),
        {"name": "mpi", "label": "+ async MPI", "what": "", "status": "same", "reason": "one rank"},
        row("operators", "+ AI operators", 1.5, 1.2),
        row("automem", "+ AutoMem", 1.8, 1.2),
        {"name": "tuned", "label": "+ tuning", "what": "", "status": "skipped", "reason": "not tuned"},
    ],
}


def test_each_stage_stands_beside_the_papers_speed_up_and_what_the_paper_gained_by_it() -> None:
    paper = read_reference(REFERENCE).tables["figure9"]
    rows = {cells[0]: dict(zip(HEAD, cells, strict=True)) for cells in stepwise_parts(RESULT, paper)["rows"]}
    assert rows["+ GEMM"]["Speed-up"] == "1.25 ± 0.02"
    assert [cells["Paper, speed-up"] for cells in rows.values()] == ["1", "5.5", "6.3", "6.6", "6.7", "8.2"]
    assert rows["+ async MPI"]["Paper, over the stage before"] == "1.15"
    assert rows["+ tuning"]["s a step"] == "– (not tuned)"
    assert rows["baseline"]["Paper, over the stage before"] == "–"
    bars = stage_bars(RESULT, paper)
    assert [bar.measured for bar in bars] == [1.0, 1.25, None, 1.5, 1.8, None]
    assert [bar.note for bar in bars] == ["", "", "nothing to exchange", "", "", "skipped"]


def test_without_the_paper_ours_stand_alone() -> None:
    assert all(bar.published is None for bar in stage_bars(RESULT, None))
    assert draw_stages(stage_bars(RESULT, None), title="alone")[:4] == b"\x89PNG"
    assert stepwise_parts(None, None)["rows"] == []


def test_stages_without_a_baseline_have_seconds_and_no_speed_up() -> None:
    alone = row("gemm", "+ GEMM", 1.25, 1.25) | {"speedup": None, "speedup_over_previous": None}
    (bar,) = stage_bars(RESULT | {"stages": [alone]}, None)
    assert (bar.measured, bar.note) == (None, "no baseline")
    assert stepwise_parts(RESULT | {"stages": [alone]}, None)["rows"][0][:4] == ["+ GEMM", "1.6 ± 0.02", "–", "–"]


def test_another_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "stepwise.json"
    path.write_text('{"bench": "step"}')
    with pytest.raises(UserError, match="no training by stages"):
        read_stepwise(path)


@pytest.mark.slow
def test_the_page_has_the_table_and_the_figure_where_it_was_measured(plant: Any, tmp_path: Path) -> None:
    tree = plant(tmp_path)
    tree.codec(tree.dataset("sentinel2"))
    path, out = tmp_path / "stepwise.json", tmp_path / "report.html"
    path.write_text(json.dumps(RESULT))
    write_report(tree.experiment, tree.paths, out=out, stepwise=path, reference=REFERENCE)
    text = out.read_text()
    assert "+ AI operators in words" in text
    assert "Paper, speed-up" in text
    with_it = (tmp_path / "figures" / "stepwise.png").stat().st_size
    write_report(tree.experiment, tree.paths, out=out, reference=REFERENCE)
    assert "Paper, speed-up" not in out.read_text()
    assert (tmp_path / "figures" / "stepwise.png").stat().st_size < with_it / 2, (
        "it says in a line that nothing was run"
    )
    assert json.loads(out.with_suffix(".json").read_text())["stepwise"] is None
