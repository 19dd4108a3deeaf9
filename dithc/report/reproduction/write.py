"""The page of all paper targets with everything inlined, and the CSV of a target."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from dithc.core.artifacts import outputs
from dithc.core.measurements import rounded
from dithc.core.reproduction import STATUSES, TARGETS, ResultCell, TargetResult
from dithc.report import html
from dithc.report.figures import canvas, marks
from dithc.report.formatting import between, span
from dithc.report.reproduction import claims
from dithc.report.reproduction.figure import build_figure, machine_line

TEMPLATES = "dithc.report.reproduction"
FOLDED = 28  # rows above which a table is collapsed
STYLES = {"measured": "good", "simulated": "simulated", "out of memory": "fair"}  # CSS class by status; else unknown


def write_csv(document: TargetResult, path: Path) -> None:
    """Write all fields and the ratio of every cell, one line per cell."""
    text = io.StringIO()
    names = ["target", *(field.name for field in fields(ResultCell)), "ratio"]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for cell in document.cells:
        writer.writerow({"target": document.target, **asdict(cell), "ratio": cell.ratio})
    outputs.write(path, text.getvalue())


def write_page(documents: Iterable[TargetResult], path: Path) -> None:
    """Write one page of all documents in the order of the paper; their files are relative to its folder."""
    ordered = sorted(documents, key=lambda document: TARGETS.index(document.target))
    found = claims.check_claims(ordered)
    outputs.write(
        path,
        html.render_template(
            "paper.html",
            package=TEMPLATES,
            scripts=("copy.js",),
            sections=[_section(document, path.parent) for document in ordered],
            counts=claims.count(ordered),
            order=[name for name in STATUSES if name != "published"],
            holding=[claim for claim in found if claim.holds],
            failing=[claim for claim in found if not claim.holds],
            undecided=[
                document.paper for document in ordered if document.target not in {claim.target for claim in found}
            ],
            machines=list(dict.fromkeys(machine_line(document.machine) for document in ordered)),
            scales=list(dict.fromkeys(document.scale for document in ordered)),
        ),
    )


def _section(document: TargetResult, folder: Path) -> dict[str, Any]:
    figure = build_figure(document, folder=folder, is_framed=False)
    with canvas.styled():
        png = canvas.as_png(figure)
    return {
        "document": document,
        "figure": html.data_uri(canvas.recode_png(png)),
        "size": html.size_of(png),
        "alt": alt(document),
        "pictures": [_image_values(image, folder) for image in document.images],
        "counts": claims.count([document]),
        "rows": [_row(cell) for cell in document.cells],
        "is_folded": len(document.cells) > FOLDED,
        "has_published": any(cell.published is not None for cell in document.cells),
        "commands": _commands(document.cells),
        "machine": _pairs(document.machine),
        "versions": _pairs(document.versions),
        "files": [f"{document.target}{ending}" for ending in (".json", ".csv", ".svg", ".png")],
    }


def alt(document: TargetResult) -> str:
    curves = ", ".join(series.label for series in document.series[:8])
    values = [f"{cell.row} {cell.column} {rounded(cell.value)} {cell.unit}" for cell in document.cells if cell.value]
    content = curves or "; ".join(values[:6]) or "no measurements"
    return f"{document.paper}, {document.title}. {content}. All numbers are in the table."


def _row(cell: ResultCell) -> dict[str, Any]:
    return {
        "cell": cell,
        "value": "" if cell.value is None else f"{rounded(cell.value, digits=4)}{marks.unit_of(cell)}",
        "interval": "" if cell.low is None or cell.high is None else between((cell.low, cell.high)),
        "published": "" if cell.published is None else f"{cell.published:,.6g}{marks.unit_of(cell)}",
        "ratio": "" if cell.ratio is None else rounded(cell.ratio),
        "style": STYLES.get(cell.status, "unknown"),
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


def _image_values(image: Any, folder: Path) -> dict[str, Any]:
    path = folder / image.path
    if not path.is_file():
        return {"picture": image, "data": "", "size": (0, 0)}
    pixels = canvas.read_image(path)
    size = (pixels.shape[1], pixels.shape[0])
    return {"picture": image, "data": html.data_uri(canvas.as_webp(pixels)), "size": size}


def _pairs(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name.replace("_", " "), str(value)) for name, value in values.items() if value not in (None, "")]
