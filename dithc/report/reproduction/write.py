"""The page of all paper targets with everything inlined, and the CSV of a target."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from dithc.core.artifacts import outputs
from dithc.core.reproduction import STATUSES, TARGETS, ResultCell, TargetResult
from dithc.core.summaries import rounded
from dithc.report import html
from dithc.report.figures import canvas
from dithc.report.formatting import between, span
from dithc.report.reproduction import verdict
from dithc.report.reproduction.figure import drawn, machine_line
from dithc.report.reproduction.frame import unit_of

TEMPLATES = "dithc.report.reproduction"
FOLDED = 28  # rows above which a table is collapsed
LOOKS = {
    "measured": "good",
    "simulated": "simulated",
    "skipped": "unknown",
    "out of memory": "fair",
    "published": "unknown",
}


def write_csv(document: TargetResult, path: Path) -> None:
    """Write all fields and the ratio of every cell, one line per cell."""
    text = io.StringIO()
    names = ["target", *(one.name for one in fields(ResultCell)), "ratio"]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for cell in document.cells:
        writer.writerow({"target": document.target, **asdict(cell), "ratio": cell.ratio})
    outputs.write(path, text.getvalue())


def write_page(documents: Iterable[TargetResult], path: Path) -> None:
    """Write one page of all documents in the order of the paper; their files are relative to its folder."""
    shown = sorted(documents, key=lambda one: TARGETS.index(one.target))
    judgements = verdict.claims(shown)
    outputs.write(
        path,
        html.render_template(
            "paper.html",
            package=TEMPLATES,
            scripts=("copy.js",),
            sections=[_section(one, path.parent) for one in shown],
            counts=verdict.count(shown),
            order=[name for name in STATUSES if name != "published"],
            holding=[one for one in judgements if one.holds],
            failing=[one for one in judgements if not one.holds],
            unjudged=[one.paper for one in shown if one.target not in {found.target for found in judgements}],
            machines=list(dict.fromkeys(machine_line(one.machine) for one in shown)),
            scales=list(dict.fromkeys(one.scale for one in shown)),
        ),
    )


def _section(document: TargetResult, folder: Path) -> dict[str, Any]:
    figure = drawn(document, folder=folder, is_framed=False)
    with canvas.styled():
        png = canvas.as_png(figure)
    return {
        "document": document,
        "figure": html.data_uri(canvas.recoded(png)),
        "size": html.size_of(png),
        "alt": alt(document),
        "pictures": [_picture(one, folder) for one in document.images],
        "counts": verdict.count([document]),
        "rows": [_row(cell) for cell in document.cells],
        "is_folded": len(document.cells) > FOLDED,
        "has_published": any(cell.published is not None for cell in document.cells),
        "commands": _commands(document.cells),
        "machine": _plain(document.machine),
        "versions": _plain(document.versions),
        "files": [f"{document.target}{ending}" for ending in (".json", ".csv", ".svg", ".png")],
    }


def alt(document: TargetResult) -> str:
    curves = ", ".join(one.label for one in document.series[:8])
    values = [f"{cell.row} {cell.column} {rounded(cell.value)} {cell.unit}" for cell in document.cells if cell.value]
    content = curves or "; ".join(values[:6]) or "no measurements"
    return f"{document.paper}, {document.title}. {content}. All numbers are in the table."


def _row(cell: ResultCell) -> dict[str, Any]:
    return {
        "cell": cell,
        "value": "" if cell.value is None else f"{rounded(cell.value, digits=4)}{unit_of(cell)}",
        "interval": "" if cell.low is None or cell.high is None else between((cell.low, cell.high)),
        "published": "" if cell.published is None else f"{cell.published:,.6g}{unit_of(cell)}",
        "ratio": "" if cell.ratio is None else rounded(cell.ratio),
        "look": LOOKS[cell.status],
    }


def _commands(cells: Sequence[ResultCell]) -> list[dict[str, str]]:
    """Return each command once, with the digest of its inputs and its predicted time."""
    first = {cell.command: cell for cell in reversed(cells) if cell.command}
    return [
        {
            "command": command,
            "digest": cell.digest,
            "predicted": "" if cell.predicted_seconds is None else span(cell.predicted_seconds),
        }
        for command, cell in reversed(first.items())
    ]


def _picture(picture: Any, folder: Path) -> dict[str, Any]:
    path = folder / picture.path
    if not path.is_file():
        return {"picture": picture, "data": "", "size": (0, 0)}
    pixels = canvas.read_picture(path)
    size = (pixels.shape[1], pixels.shape[0])
    return {"picture": picture, "data": html.data_uri(canvas.as_webp(pixels)), "size": size}


def _plain(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name.replace("_", " "), str(value)) for name, value in values.items() if value not in (None, "")]
