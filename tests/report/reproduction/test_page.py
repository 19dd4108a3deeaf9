"""The page of the paper targets: numbers link to their files, external texts are escaped, claims are correct."""

import csv
import html
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dithc.core.reproduction import ResultCell, ResultImage, TargetResult, published_value
from dithc.report import reproduction
from dithc.report.reproduction import verdict
from tests.report.reproduction import documents

EVIL = '<script>alert("x")</script>&amp;\'"'


class Seen(HTMLParser):
    """Links, images and ids of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.pictures: list[dict[str, str | None]] = []
        self.ids: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the references of the page."""
        told = dict(attrs)
        self.links += [told["href"] or ""] if tag == "a" else []
        self.pictures += [told] if tag == "img" else []
        self.ids += [told["id"] or ""] if "id" in told else []
        self.scripts += tag == "script"


def seen(path: Path) -> Seen:
    """Return the parsed page."""
    found = Seen()
    found.feed(path.read_text())
    return found


def test_every_number_leads_to_its_file(page: Path, every: list[TargetResult]) -> None:
    links = seen(page).links
    for document in every:
        for cell in document.cells:
            assert cell.value is None or cell.file in links
        assert {f"{document.target}{ending}" for ending in (".json", ".csv", ".svg", ".png")} <= set(links)
    assert not [link for link in links if "://" in link]


def test_every_anchor_is_there_once_and_every_picture_has_a_text(page: Path) -> None:
    found = seen(page)
    assert len(found.ids) == len(set(found.ids))
    assert {link.removeprefix("#") for link in found.links if link.startswith("#")} <= set(found.ids)
    assert len(found.pictures) == 9
    assert all(one["alt"] and str(one["src"]).startswith("data:image/webp") for one in found.pictures)


def test_every_status_is_counted_and_every_reason_said(page: Path, every: list[TargetResult]) -> None:
    text = html.unescape(page.read_text())
    for status, number in verdict.count(every).items():
        if status != "published":
            assert f"<li><b>{number}</b><span>{status}</span></li>" in text
    for document in every:
        for said in (*document.notes, document.command, *(cell.reason for cell in document.cells)):
            assert said in text


def test_what_comes_from_outside_is_no_markup(tmp_path: Path) -> None:
    texts = dict.fromkeys(("id", "row", "column", "quantity", "unit", "reason", "command", "digest"), EVIL)
    cells = [ResultCell(**texts, value=1.0, status="measured", file=f"a b/{EVIL}.json")]  # type: ignore[arg-type]
    images = [ResultImage(label=EVIL, path=f"{EVIL}.png", caption=EVIL, alt=EVIL)]
    parts = dict.fromkeys(("title", "command", "digest"), EVIL)
    parts |= {"machine": {EVIL: EVIL, "name": EVIL}, "versions": {EVIL: EVIL}}
    more = {"cells": cells, "images": images, "notes": [EVIL]}
    path = tmp_path / "report.html"
    reproduction.write_page([TargetResult(target="table1", paper=EVIL, scale="ci", **parts, **more)], path)  # type: ignore[arg-type]
    assert seen(path).scripts == 1
    assert "alert(" in html.unescape(path.read_text())
    assert EVIL not in path.read_text()
    assert f"Missing: {EVIL}.png" in html.unescape(path.read_text())


def test_a_page_of_nothing_says_so(tmp_path: Path) -> None:
    reproduction.write_page([], tmp_path / "report.html")
    assert "No targets exist." in (tmp_path / "report.html").read_text()


def test_csv_has_every_cell_with_its_ratio(tmp_path: Path) -> None:
    document = documents.table2()
    reproduction.write_csv(document, tmp_path / "table2.csv")
    rows = list(csv.DictReader((tmp_path / "table2.csv").read_text().splitlines()))
    assert [row["id"] for row in rows] == [cell.id for cell in document.cells]
    for row, cell in zip(rows, document.cells, strict=True):
        assert row["value"] == ("" if cell.value is None else str(cell.value))
        assert row["ratio"] == ("" if cell.ratio is None else str(cell.ratio))
        assert (row["target"], row["status"], row["reason"]) == ("table2", cell.status, cell.reason)


def texts(document: TargetResult, *, holds: bool) -> str:
    """Return the claims of a document that hold, or do not hold."""
    return "\n".join(one.text for one in verdict.claims([document]) if one.holds == holds)


def test_claims_are_judged_by_order_and_not_by_seconds() -> None:
    table = documents.table2()
    assert "DP+TP over CFTP in time: ordered as in the paper for 4 of 4." in texts(table, holds=True)
    assert "for 3 of 5, not for 112 S/2 1.12 × (paper 0.851 ×)" in texts(table, holds=False)
    assert "nativeBLAS: 2.1 × to 2.1 ×, faster for 4 of 4." in texts(documents.table3(), holds=True)
    assert "no stage makes it slower" in texts(documents.fig9(), holds=True)
    assert "+ AutoMem (0.964 ×)" in texts(documents.fig9(), holds=False)
    noise = "seeds of the reference differ by 1.3%."
    assert texts(documents.fig7(), holds=True) == f"S/2, batch 2: the loss of c-fp32 deviates by 0.2%; {noise}"
    assert texts(documents.fig7(), holds=False) == f"S/2, batch 2: the loss of c-bf16 deviates by 1.6%; {noise}"
    assert texts(documents.fig10(), holds=True).startswith(
        "XL/2 with the exchange of dithc, simulated: 96.9% at 256 nodes"
    )


def test_what_is_simulated_or_measured_on_a_few_ranks_is_no_evidence() -> None:
    assert "measured" not in texts(documents.fig10(), holds=True) + texts(documents.fig10(), holds=False)
    table = documents.table2()
    simulated = [
        replace(cell, status="simulated", reason="r") if cell.value is not None else cell for cell in table.cells
    ]
    assert verdict.claims([replace(table, cells=simulated)]) == []


def test_a_platform_whose_loss_is_no_number_is_beyond_the_noise_of_seeds() -> None:
    document = documents.fig7()
    quantity, why = "largest deviation of the smoothed loss", "the loss of step 3 of seed 0 is not finite"
    lost = documents.cell("fig7", "S/2, batch 2", "broken", quantity, "%", status="skipped", reason=why)
    changed = replace(document, cells=(*document.cells, lost))
    assert why in texts(changed, holds=False)
    assert "broken" not in texts(changed, holds=True)


@pytest.mark.parametrize(
    ("target", "row", "column", "value"),
    [
        ("table1", "Gaofen-2", "LX2, batch 28,672", 24.70),
        ("table2", "224 L/2", "CFTP GB", 290),
        ("table3", "XL/2", "OpenBLAS", 1156.37),
        ("fig10", "XL/2", "Efficiency", 0.906),
        ("sec56", "LX2", "TFLOP/s", 182.47),
        ("sec56", "H100", "s", 7.6),
    ],
)
def test_published_numbers_are_the_papers(target: str, row: str, column: str, value: float | None) -> None:
    assert published_value(target, row, column) == value
