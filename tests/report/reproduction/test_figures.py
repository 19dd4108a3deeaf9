"""Figures of targets: unmeasured values look different, and missing numbers are words."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_hex

from dithc.core.reproduction import ResultCell, ResultImage, Series, TargetResult
from dithc.report import reproduction
from dithc.report.figures import theme
from dithc.report.figures.benchmarks.bars import panels_of
from dithc.report.reproduction.figure import build_figure
from tests.report.reproduction import documents

TARGETS = ("table1", "table2", "table3", "fig7", "fig9", "fig10", "fig11")
ODD = "<b>&\"' $x_1$ ünï" + " very long name" * 12


def figure_of(document: TargetResult, folder: Path = Path()) -> Any:
    return build_figure(document, folder=folder, is_framed=True)


def texts(figure: Any) -> str:
    found = figure.findobj(lambda one: hasattr(one, "get_text"))
    return "\n".join(one.get_text() for one in found if isinstance(one.get_text(), str))


@pytest.mark.parametrize("target", TARGETS)
def test_figure_contains_title_machine_and_notes(target: str) -> None:
    document = getattr(documents, target)()
    text = texts(figure_of(document))
    assert f"{document.paper}. {document.title}" in text
    assert "AMD EPYC, 2 cores, 23.5 GiB, x86_64 · scale node" in text
    for note in document.notes:
        assert note in text
    assert "_nolegend_" not in text


def test_svg_and_png_have_reproducible_bytes(tmp_path: Path) -> None:
    files = {}
    for name in ("one", "two"):
        reproduction.draw_target(documents.table1(), tmp_path / name / "table1.node")
        files[name] = {path.name: path.read_bytes() for path in (tmp_path / name).glob("[!.]*")}
    assert sorted(files["one"]) == ["table1.node.png", "table1.node.svg"]
    assert files["one"] == files["two"]
    assert files["one"]["table1.node.png"].startswith(b"\x89PNG")
    assert ElementTree.fromstring(files["one"]["table1.node.svg"]).tag.endswith("svg")


def test_missing_values_are_texts_and_ratios_are_labeled() -> None:
    text = texts(figure_of(documents.table2()))
    assert text.count("out of memory") == 10
    assert re.search(r"3\.1 × paper", text), "41 s over the paper's 13.18"
    assert "hollow: simulated" in text
    assert "skipped" in texts(figure_of(documents.table3()))


def test_simulated_is_hollow_and_measured_is_filled() -> None:
    figure = figure_of(documents.table2())
    dots = [line for line in figure.findobj(lambda one: hasattr(one, "get_marker")) if line.get_marker() == "o"]
    hollow = [line for line in dots if to_hex(line.get_markerfacecolor()) == theme.FACE]
    assert len(dots) == 38
    assert len(hollow) == 4


def test_scaling_curves_differ_by_kind() -> None:
    figure = figure_of(documents.fig10())
    lines = {
        " ".join(line.get_label().split()): line for line in figure.findobj(lambda one: hasattr(one, "get_marker"))
    }
    starts = ("S/2, measured: 0.893", "DiT-HC, authors' logs", "dithc: hierarchical, fp32 wire S/2, simulated")
    measured, printed, simulated = (line for start in starts for name, line in lines.items() if name.startswith(start))
    assert (measured.get_marker(), printed.get_marker(), simulated.get_marker()) == ("o", "x", "o")
    assert to_hex(simulated.get_markerfacecolor()) == theme.FACE != to_hex(measured.get_markerfacecolor())
    assert all(axis.get_xscale() == "log" for axis in figure.findobj(lambda one: hasattr(one, "get_xscale")))


def test_cell_without_a_quantity_joins_the_column() -> None:
    panels = panels_of(documents.table2().cells)
    assert [panel.title for panel in panels] == ["seconds an iteration", "peak memory of all ranks"]
    assert all(panel.columns == ["DP+TP", "DP", "CFTP"] and len(panel.rows) == 8 for panel in panels)
    assert panels[0].cells["112 XL/2", "DP"].status == "out of memory"


@pytest.mark.parametrize("target", ["table2", "fig7", "fig8"])
def test_figure_of_an_empty_document_reports_the_missing_content(target: str) -> None:
    text = texts(figure_of(documents.document(target, "Nothing", "of anything", machine={}, versions={})))
    assert "machine not recorded" in text
    assert re.search(r"no (cells|curves|samples)", text)


@pytest.mark.parametrize("target", ["table2", "fig7"])
def test_odd_cells_are_drawn(target: str) -> None:
    cells = [
        ResultCell(id="a", row=ODD, column=ODD, quantity=ODD, unit="s", status="measured", value=0.0, file="a b.json"),
        ResultCell(id="b", row=ODD, column="z", quantity="", status="skipped", reason=ODD),
        documents.cell("c", "", "", "x", "", -3.0, status="simulated", reason="r", low=-4.0, high=1e9),
        ResultCell(id="d", row="only published", column="z", quantity="q", status="published", published=7.0),
    ]
    series = [
        Series(label=ODD, kind="measured", x=(1, 2), y=(None, None)),
        Series(label="none", kind="published", x=(), y=()),
    ]
    figure = figure_of(documents.document(target, ODD, ODD, cells=cells, series=series, notes=[ODD] * 3))
    figure.canvas.draw()


def test_missing_image_is_reported(tmp_path: Path) -> None:
    document = documents.document(
        "fig8", "Figure 8", "Samples", images=[ResultImage(label="one", path="not/there.png")]
    )
    assert "missing: not/there.png" in texts(figure_of(document, tmp_path))
