"""Figures of `dithc bench scaling` and `stepwise`: bars of speedups, and curves by number of ranks."""

from collections.abc import Iterator, Mapping
from typing import Any

from dithc.core.reproduction import ResultCell, Series, published_value
from dithc.report import scaling_curves
from dithc.report.figures.benchmarks.bars import draw_bars
from dithc.report.figures.benchmarks.series import draw_series
from dithc.report.figures.canvas import Figure, placeholder
from dithc.report.records import ReportRecords

CURVES = {"efficiency": "efficiency", "seconds": "seconds per step"}


def draw_stepwise(records: ReportRecords) -> Figure:
    """Draw the speedup of each stage over the baseline, with the numbers of the paper (figure 9)."""
    result = records.benches.get("stepwise")
    return draw_bars(list(stage_cells(result))) if result else placeholder("training by stages: not run")


def stage_cells(result: Mapping[str, Any]) -> Iterator[ResultCell]:
    for row in result["stages"]:
        printed = 1.0 if row["name"] == "baseline" else published_value("fig9", row["name"], "Speed-up")
        fields = {"published": printed, "reason": row.get("reason") or "the baseline has no time"}
        yield _cell(row["label"], "measured here", "speedup over the baseline", row.get("speedup"), **fields)


def _cell(row: str, column: str, quantity: str, speedup: Mapping[str, Any] | None, **fields: Any) -> ResultCell:
    """Return the cell of a speedup with its deviation, or a skipped cell."""
    common: dict[str, Any] = {"id": f"{row} {column}", "row": row, "column": column, "quantity": quantity, "unit": "x"}
    if speedup is None:
        return ResultCell(status="skipped", **common, **fields)
    value, deviation = speedup["median"], speedup["mad"]
    measured = {"value": value, "low": value - deviation, "high": value + deviation, "file": "bench"}
    return ResultCell(status="measured", **common, **measured, **fields)


def draw_scaling(records: ReportRecords, *, mode: scaling_curves.Mode) -> Figure:
    """Draw efficiency and seconds per step by number of ranks: weak scaling (figure 10) or strong scaling (figure 11)."""
    curves = [curve for curve in records.scaling if curve.mode == mode]
    if all(curve.kind == "published" for curve in curves):
        return placeholder(f"{mode} scaling: not run")
    return draw_series([series for name in CURVES for curve in curves if (series := scaling_series(curve, name)).x])


def scaling_series(curve: scaling_curves.ScalingCurve, name: str) -> Series:
    """Return the efficiency or the seconds of a curve by ranks, without missing values and oversubscribed points."""
    points = [(point.ranks, value) for point in curve.drawn if (value := getattr(point, name)) is not None]
    return Series(
        label=curve.title.removesuffix(f" ({curve.kind})"),
        kind=curve.kind,
        x=tuple(float(ranks) for ranks, _ in points),
        y=tuple(value for _, value in points),
        x_label="ranks",
        y_label=CURVES[name],
    )
