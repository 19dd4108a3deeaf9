"""The page of all targets: documents become sections, cells rows, everything inlined."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dithc.papers import STATUSES, TARGETS, Cell, Document
from dithc.papers.numbers import rounded
from dithc.report import page
from dithc.report.figures import canvas
from dithc.report.paper import verdict
from dithc.report.paper.figure import drawn
from dithc.report.paper.table import machine_line
from dithc.report.words import between, span
from dithc.runs import outputs

ROOM = "dithc.report.paper"
REFERENCE = Path("config/paper/reference.yaml")
FOLDED = 28  # rows, from which a table is opened by who wants it
LOOKS = {
    "measured": "good",
    "simulated": "simulated",
    "skipped": "unknown",
    "out of memory": "fair",
    "published": "unknown",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A cell on the page: texts and their links."""

    cell: Cell
    value: str
    interval: str
    published: str
    ratio: str
    look: str


@dataclass(frozen=True, kw_only=True)
class Making:
    """A command of some cells, the file it wrote, the digest of its inputs, and its predicted time."""

    command: str
    file: str
    digest: str
    predicted: str
    cells: int


def write_page(documents: Iterable[Document], path: Path) -> None:
    """Write one self-contained page of all documents, in the paper's order; their files are relative to its folder."""
    shown = sorted(documents, key=lambda one: TARGETS.index(one.target))
    sections = [_section(one, path.parent) for one in shown]
    judgements = verdict.judge(shown)
    reference = Path(os.path.relpath(REFERENCE, path.parent)).as_posix() if REFERENCE.is_file() else ""
    outputs.write(
        path,
        page.fill(
            "paper.html",
            room=ROOM,
            scripts=("copy.js",),
            sections=sections,
            counts={name: number for name, number in verdict.count(shown).items() if number},
            order=[name for name in STATUSES if name != "published"],
            looks=LOOKS,
            holding=[one for one in judgements if one.holds],
            failing=[one for one in judgements if not one.holds],
            unjudged=[one.paper for one in shown if one.target not in {found.target for found in judgements}],
            machines=list(dict.fromkeys(machine_line(one.machine) for one in shown)),
            scales=list(dict.fromkeys(one.scale for one in shown)),
            reference=reference,
        ),
    )


def _section(document: Document, folder: Path) -> dict[str, Any]:
    figure = drawn(document, folder=folder, is_framed=False)
    with canvas.styled():
        png = canvas.as_png(figure)
    statuses = [cell.status for cell in document.cells]
    counts = {name: statuses.count(name) for name in STATUSES if name in statuses}
    return {
        "document": document,
        "figure": page.embedded(canvas.recoded(png)),
        "size": page.size_of(png),
        "alt": alt(document),
        "pictures": [_picture(one, folder) for one in document.images],
        "counts": counts,
        "total": len(statuses),
        "rows": [_row(cell) for cell in document.cells],
        "is_folded": len(document.cells) > FOLDED,
        "has_published": any(cell.published is not None for cell in document.cells),
        "makings": _makings(document.cells),
        "machine": _plain(document.machine),
        "versions": _plain(document.versions),
        "files": [f"{document.target}{ending}" for ending in (".json", ".csv", ".svg", ".png")],
    }


def alt(document: Document) -> str:
    """Describe the figure of a document as a text alternative."""
    parts = [f"{document.paper}, {document.title}"]
    cells = [cell for cell in document.cells if cell.value is not None]
    if document.series:
        parts.append(f"{len(document.series)} curves: " + ", ".join(one.label for one in document.series[:8]))
    if document.images:
        parts.append("; ".join(one.alt or one.label for one in document.images))
    if cells and not document.series:
        told = [
            f"{cell.row} {cell.column} {rounded(cell.value or 0, digits=3)} {cell.unit}".strip() for cell in cells[:6]
        ]
        parts.append(f"{len(cells)} values, first: " + "; ".join(told))
    if not (cells or document.series or document.images):
        parts.append("nothing was measured")
    return ". ".join(parts) + ". All numbers are in the table."


def _row(cell: Cell) -> Row:
    has_interval = cell.low is not None and cell.high is not None
    unit = {"x": " ×", "": ""}.get(cell.unit, f" {cell.unit}")
    return Row(
        cell=cell,
        value="" if cell.value is None else f"{rounded(cell.value, digits=4)}{unit}",
        interval=between((cell.low or 0.0, cell.high or 0.0)) if has_interval else "",
        published="" if cell.published is None else f"{cell.published:,.6g}{unit}",
        ratio="" if cell.ratio is None else rounded(cell.ratio, digits=3),
        look=LOOKS[cell.status],
    )


def _makings(cells: Sequence[Cell]) -> list[Making]:
    """Return each command once."""
    by_command: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.command:
            by_command.setdefault(cell.command, []).append(cell)
    return [
        Making(
            command=command,
            file=next((cell.file for cell in own if cell.file), ""),
            digest=own[0].digest,
            predicted="" if own[0].predicted_seconds is None else span(own[0].predicted_seconds),
            cells=sum(cell.value is not None for cell in own),
        )
        for command, own in by_command.items()
    ]


def _picture(picture: Any, folder: Path) -> dict[str, Any]:
    path = folder / picture.path
    if not path.is_file():
        return {"picture": picture, "data": "", "size": (0, 0)}
    pixels = canvas.read_picture(path)
    size = (pixels.shape[1], pixels.shape[0])
    return {"picture": picture, "data": page.embedded(canvas.as_webp(pixels)), "size": size}


def _plain(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name.replace("_", " "), str(value)) for name, value in told.items() if value not in (None, "")]
