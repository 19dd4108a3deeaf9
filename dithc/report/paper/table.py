"""Cells of a document as rows: of a CSV file, and of the page."""

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from dithc.papers import Cell, Document
from dithc.runs import outputs


def write_csv(document: Document, path: Path) -> None:
    """Write all fields and the ratio of every cell, a line per cell."""
    names = [one.name for one in fields(Cell)]
    place = names.index("published") + 1
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["target", *names[:place], "ratio", *names[place:]])
    for cell in document.cells:
        told = asdict(cell)
        row = [told[name] for name in names[:place]] + [cell.ratio] + [told[name] for name in names[place:]]
        writer.writerow([document.target, *("" if value is None else value for value in row)])
    outputs.write(path, text.getvalue())


def machine_line(machine: Mapping[str, Any]) -> str:
    """Describe a machine in one line."""
    parts = [str(machine.get("name") or "machine not recorded")]
    if cores := machine.get("cores"):
        parts.append(f"{cores} cores")
    if memory := machine.get("memory_gib"):
        parts.append(f"{memory:g} GiB" if isinstance(memory, int | float) else f"{memory} GiB")
    if isa := machine.get("isa") or machine.get("architecture"):
        parts.append(str(isa))
    if described := machine.get("described_by"):
        parts.append(f"as described by {described}")
    return ", ".join(parts)
