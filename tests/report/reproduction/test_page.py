"""The page of the paper targets: numbers link to their files, external texts are escaped, claims are correct."""

import csv
import html
from dataclasses import replace
from pathlib import Path

from dithc.core.reproduction import ResultCell, ResultImage, TargetResult
from dithc.report import reproduction
from dithc.report.reproduction import claims
from tests.report.reproduction import documents
from tests.report.texts import Page

EVIL = '<script>alert("x")</script>&amp;\'"'


def test_every_number_links_to_the_result_file(page: Path, all_targets: list[TargetResult]) -> None:
    links = Page(page.read_text()).values("href")
    for document in all_targets:
        for cell in document.cells:
            assert cell.value is None or cell.file in links
        assert {f"{document.target}{ending}" for ending in (".json", ".csv", ".svg", ".png")} <= set(links)
    assert not [link for link in links if "://" in link]


def test_anchors_are_unique_and_every_image_has_a_text(page: Path) -> None:
    found = Page(page.read_text())
    ids, images = found.values("id"), [attributes for tag, attributes in found.tags if tag == "img"]
    assert len(ids) == len(set(ids))
    assert {link.removeprefix("#") for link in found.values("href") if link.startswith("#")} <= set(ids)
    assert len(images) == 9
    assert all(image["alt"] and image["src"].startswith("data:image/webp") for image in images)


def test_page_contains_status_counts_and_reasons(page: Path, all_targets: list[TargetResult]) -> None:
    text = html.unescape(page.read_text())
    for status, number in claims.count(all_targets).items():
        if status != "published":
            assert f"<li><b>{number}</b><span>{status}</span></li>" in text
    for document in all_targets:
        for line in (*document.notes, document.command, *(cell.reason for cell in document.cells)):
            assert line in text


def test_external_text_is_escaped(tmp_path: Path) -> None:
    texts = dict.fromkeys(("id", "row", "column", "quantity", "unit", "reason", "command", "digest"), EVIL)
    cells = [ResultCell(**texts, value=1.0, status="measured", file=f"a b/{EVIL}.json")]  # type: ignore[arg-type]
    images = [ResultImage(label=EVIL, path=f"{EVIL}.png", caption=EVIL, alt=EVIL)]
    parts = dict.fromkeys(("title", "command", "digest"), EVIL)
    parts |= {"machine": {EVIL: EVIL, "name": EVIL}, "versions": {EVIL: EVIL}}
    more = {"cells": cells, "images": images, "notes": [EVIL]}
    path = tmp_path / "report.html"
    reproduction.write_page([TargetResult(target="table1", paper=EVIL, scale="ci", **parts, **more)], path)  # type: ignore[arg-type]
    assert [tag for tag, _ in Page(path.read_text()).tags].count("script") == 1
    assert "alert(" in html.unescape(path.read_text())
    assert EVIL not in path.read_text()
    assert f"Missing: {EVIL}.png" in html.unescape(path.read_text())


def test_page_without_targets(tmp_path: Path) -> None:
    reproduction.write_page([], tmp_path / "report.html")
    assert "No targets exist." in (tmp_path / "report.html").read_text()


def test_csv_contains_every_cell_with_the_ratio(tmp_path: Path) -> None:
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
    return "\n".join(one.text for one in claims.check_claims([document]) if one.holds == holds)


def test_claims_compare_order_instead_of_seconds() -> None:
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


def test_simulated_cells_do_not_decide_claims() -> None:
    assert "measured" not in texts(documents.fig10(), holds=True) + texts(documents.fig10(), holds=False)
    table = documents.table2()
    simulated = [
        replace(cell, status="simulated", reason="r") if cell.value is not None else cell for cell in table.cells
    ]
    assert claims.check_claims([replace(table, cells=simulated)]) == []


def test_platform_without_a_finite_loss_exceeds_the_noise_of_seeds() -> None:
    document = documents.fig7()
    quantity, reason = "largest deviation of the smoothed loss", "the loss of step 3 of seed 0 is not finite"
    broken = documents.cell("fig7", "S/2, batch 2", "broken", quantity, "%", status="skipped", reason=reason)
    changed = replace(document, cells=(*document.cells, broken))
    assert reason in texts(changed, holds=False)
    assert "broken" not in texts(changed, holds=True)
