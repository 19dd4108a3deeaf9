"""The stages of a training that gets one part after the other (figure 9): ours, and the paper's beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dithc.report.documents import read_bench
from dithc.report.engine.published import Table
from dithc.report.words import ABSENT, rounded, short, with_deviation

BASELINE = "baseline"
# The paper's name of each stage.
PAPER = {
    "gemm": "GEMM",
    "mpi": "+ asynchronous MPI",
    "operators": "+ AI operators",
    "automem": "+ AutoMem",
    "tuned": "+ tuning",
}
# Why a stage has no speed-up, by its status.
NOTES = {"ok": "no baseline", "same": "nothing to exchange"}
HEAD = (
    "Stage",
    "s a step",
    "Speed-up",
    "Over the stage before",
    "Paper, speed-up",
    "Paper, over the stage before",
    "What it adds",
)


@dataclass(frozen=True, kw_only=True)
class StageBar:
    """A stage in the picture: measured and published speed-up, deviation, and why it is missing."""

    label: str
    measured: float | None
    deviation: float
    published: float | None
    note: str = ""


def read_stepwise(path: Path) -> dict[str, Any]:
    """Read a result of `dithc bench stepwise`; UserError if the file is no such result."""
    return read_bench(path, "stepwise", part="stages", what="training by stages")


def stage_bars(result: Mapping[str, Any], paper: Table | None) -> list[StageBar]:
    """Return the requested stages with the paper's numbers."""
    published = _published(paper)
    return [
        StageBar(
            label=row["label"],
            measured=speedup["median"] if speedup else None,
            deviation=speedup["mad"] if speedup else 0.0,
            published=published.get(row["name"]),
            note="" if speedup else NOTES.get(row["status"], row["status"]),
        )
        for row in result["stages"]
        for speedup in (row.get("speedup"),)
    ]


def stepwise_parts(result: Mapping[str, Any] | None, paper: Table | None) -> dict[str, Any]:
    """Return a table and the conditions; empty without a result."""
    if not result:
        return {"head": list(HEAD), "rows": [], "conditions": {}}
    settings, ranks = result["settings"], result["ranks"]
    published = _published(paper)
    return {
        "head": list(HEAD),
        "rows": [
            [*_measured(row), *_beside(row["name"], published, result["stages"]), row["what"]]
            for row in result["stages"]
        ],
        "conditions": {
            "model": f"{settings['model']}, batch {settings['batch']}, {settings['dtype']}",
            "ranks": f"{ranks['ranks']} of {ranks['cpus']} thread(s)",
            "runs": f"{settings['rounds']} of each, in turns; {settings['steps']} steps on the clock in each",
            "paper": "its baseline has CFTP too; its machine, models and sizes are others",
        },
    }


def _measured(row: Mapping[str, Any]) -> list[str]:
    if row["status"] != "ok":
        return [row["label"], f"{ABSENT} ({row['reason']})", ABSENT, ABSENT]
    told = (row[name] for name in ("seconds", "speedup", "speedup_over_previous"))
    return [row["label"], *map(with_deviation, told)]


def _beside(name: str, published: Mapping[str, float], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the paper's speed-up of a stage, and over the previous stage here."""
    names = [row["name"] for row in rows]
    own, place = published.get(name), names.index(name)
    before = published.get(names[place - 1]) if place else None
    return [
        ABSENT if own is None else short(own),
        ABSENT if own is None or before is None else rounded(own / before, digits=3),
    ]


def _published(paper: Table | None) -> dict[str, float]:
    """Return the paper's speed-ups by stage; the baseline has 1."""
    if paper is None:
        return {}
    printed = {str(row[0]): row[1] for row in paper.rows}
    found = {name: printed.get(label) for name, label in PAPER.items()}
    return {BASELINE: 1.0} | {name: float(value) for name, value in found.items() if value is not None}
