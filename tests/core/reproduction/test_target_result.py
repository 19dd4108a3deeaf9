"""Documents of targets survive a round trip; inconsistent documents are rejected."""

from dataclasses import replace
from pathlib import Path

import pytest

from dithc.core.logging import UserError
from dithc.core.reproduction import ResultCell, ResultImage, Series, TargetResult, published_value

CELL = ResultCell(
    id="cftp", row="112 S/2", column="CFTP s", quantity="seconds", status="measured", value=2.0, published=2.5, file="a"
)


def test_document_round_trip_preserves_content_and_rejects_edits() -> None:
    written = TargetResult(
        target="fig9",
        title="steps",
        paper="Figure 9",
        scale="ci",
        machine={"cores": 2},
        cells=(CELL, replace(CELL, id="dp", status="skipped", value=None, reason="no room", file="")),
        series=(Series(label="a", kind="measured", x=(1.0, 2.0), y=(3.0, None)),),
        images=(ResultImage(label="p", path="p.png"),),
    )
    text = written.to_json()
    assert TargetResult.from_json(text) == written
    assert '"ratio": 0.8' in text
    with pytest.raises(ValueError, match="changed after it was written"):
        TargetResult.from_json(text.replace("2.5", "2.6"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"status": "skipped", "reason": "r"}, "contradicts value 2.0"),
        ({"value": None}, "contradicts value None"),
        ({"status": "out of memory", "value": None}, "requires a reason"),
        ({"status": "simulated"}, "requires a reason"),
        ({"file": ""}, "requires a file"),
        ({"value": float("nan")}, "finite"),
        ({"low": 3.0, "high": 2.0}, "above"),
        ({"status": "done"}, "expected one of"),
    ],
)
def test_inconsistent_cell_is_rejected(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CELL, **change)  # type: ignore[arg-type]


def test_duplicate_cells_uneven_curves_and_unknown_targets_are_rejected() -> None:
    with pytest.raises(ValueError, match="same id"):
        TargetResult(target="table2", title="", paper="", scale="ci", cells=(CELL, CELL))
    with pytest.raises(ValueError, match="of y"):
        Series(label="a", kind="measured", x=(1.0,), y=())
    with pytest.raises(ValueError, match="target"):
        TargetResult(target="table5", title="", paper="", scale="ci")


def test_invalid_document_file_raises_a_user_error(tmp_path: Path) -> None:
    for text in ("", "{}", "[1]"):
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(UserError, match="rebuild the target"):
            TargetResult.read(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("target", "row", "column", "value"),
    [
        ("table1", "Gaofen-2", "LX2, batch 28,672", 24.70),
        ("table2", "112 L/2", "CFTP s", 9.92),
        ("table2", "112 XL/2", "DP s", None),
        ("table3", "XL/2", "OpenBLAS", 1156.37),
        ("table4", "down_proj", "Speed-up", 35.49),
        ("fig9", "+ AutoMem", "Speed-up", 6.7),
        ("fig9", "none", "Speed-up", None),
        ("fig10", "XL/2", "Efficiency", 0.906),
        ("sec56", "H100", "s", 7.6),
    ],
)
def test_published_numbers_are_found_by_row_and_column(target: str, row: str, column: str, value: float | None) -> None:
    assert published_value(target, row, column) == value
