"""Content of figure 9: speedup by stage, measured by `dithc bench stepwise` and printed in the paper."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dithc.papers import Printed

# Name of each stage in the paper.
PAPER = {
    "gemm": "GEMM",
    "mpi": "+ asynchronous MPI",
    "operators": "+ AI operators",
    "automem": "+ AutoMem",
    "tuned": "+ tuning",
}
# Reason of a missing speedup by status of the stage.
NOTES = {"ok": "no baseline", "same": "nothing to exchange"}


@dataclass(frozen=True, kw_only=True)
class StageBar:
    """A stage of the figure: measured and published speedup, deviation, and the reason if it was not measured."""

    label: str
    measured: float | None
    deviation: float
    published: float | None
    note: str = ""


def stage_bars(result: Mapping[str, Any], paper: Printed | None) -> list[StageBar]:
    """Return the stages with the numbers of the paper; its baseline has the speedup 1."""
    bars = []
    for row in result["stages"]:
        speedup = row.get("speedup")
        printed = paper.number(PAPER.get(row["name"], ""), "Speed-up") if paper else None
        bars.append(
            StageBar(
                label=row["label"],
                measured=speedup["median"] if speedup else None,
                deviation=speedup["mad"] if speedup else 0.0,
                published=1.0 if paper and row["name"] == "baseline" else printed,
                note="" if speedup else NOTES.get(row["status"], row["status"]),
            )
        )
    return bars
