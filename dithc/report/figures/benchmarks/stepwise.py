"""Figure 9: speedup over the baseline by stage, measured by `dithc bench stepwise` and printed in the paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dithc.core.measurements import rounded, short
from dithc.core.reproduction import published_value
from dithc.report.figures import theme
from dithc.report.figures.canvas import Figure, canvas, lanes, placeholder
from dithc.report.records import ReportRecords

HALF = 0.36  # height of a bar relative to the space between two stages
FIRST_LINE = 1.0  # the baseline
# Reason of a missing speedup by status of the stage.
NOTES = {"ok": "no baseline", "same": "nothing to exchange"}


@dataclass(frozen=True, kw_only=True)
class StageBar:
    """A stage of the figure: measured and published speedup, deviation, and the reason if it was not measured."""

    label: str
    measured: float | None
    deviation: float
    published: float | None
    note: str


def stage_bars(result: Mapping[str, Any]) -> list[StageBar]:
    """Return the stages with the numbers of the paper; its baseline has the speedup 1."""
    return [
        StageBar(
            label=row["label"],
            measured=speedup["median"] if (speedup := row.get("speedup")) else None,
            deviation=speedup["mad"] if speedup else 0.0,
            published=1.0 if row["name"] == "baseline" else published_value("fig9", row["name"], "Speed-up"),
            note="" if speedup else NOTES.get(row["status"], row["status"]),
        )
        for row in result["stages"]
    ]


def draw_stepwise(records: ReportRecords) -> Figure:
    result = records.benches.get("stepwise")
    if not result:
        return placeholder("training by stages: not run")
    settings = result["settings"]
    title = f"{settings['model'].removeprefix('DiT-')}, batch {settings['batch']}, {settings['dtype']}"
    return draw_stages(stage_bars(result), title=title)


def draw_stages(bars: Sequence[StageBar], *, title: str) -> Figure:
    """Draw a pair of numbered bars per stage, measured above published."""
    figure, (panel,) = canvas(1, columns=1, height=0.95 + 0.5 * len(bars))
    largest = max([bar.measured or 0.0 for bar in bars] + [bar.published or 0.0 for bar in bars] + [FIRST_LINE])
    _draw_measured(panel, bars)
    _draw_published(panel, bars)
    panel.axvline(FIRST_LINE, color=theme.INK, linewidth=1, linestyle=(0, (4, 3)))
    lanes(panel, [bar.label for bar in bars])
    panel.set_xlim(0, largest * 1.14)
    panel.set_xlabel("speedup over the baseline")
    panel.set_title(f"Gain by stage: {title}")
    figure.legend(loc="outside upper right", ncols=2, labelcolor=theme.INK, fontsize=9)
    return figure


def _draw_measured(panel: Any, bars: Sequence[StageBar]) -> None:
    """Draw measured bars with deviation and number, or the reason of a missing bar."""
    measured_bars = [(index - HALF / 2, bar) for index, bar in enumerate(bars) if bar.measured is not None]
    heights, widths = [height for height, _ in measured_bars], [bar.measured for _, bar in measured_bars]
    deviations = [bar.deviation for _, bar in measured_bars]
    panel.barh(
        heights, widths, height=HALF, color=theme.PALETTE[0], xerr=deviations, ecolor=theme.INK, label="measured here"
    )
    for index, bar in enumerate(bars):
        is_measured = bar.measured is not None
        text = f"{rounded(bar.measured, digits=3)} ×" if bar.measured is not None else bar.note or "not measured"
        panel.annotate(
            text, ((bar.measured or FIRST_LINE) + bar.deviation, index - HALF / 2), xytext=(5, 0),
            textcoords="offset points", va="center", fontsize=8.5, fontweight="bold" if is_measured else "normal",
            color=theme.INK if is_measured else theme.MUTED,
        )  # fmt: skip


def _draw_published(panel: Any, bars: Sequence[StageBar]) -> None:
    published_bars = [(index + HALF / 2, bar.published) for index, bar in enumerate(bars) if bar.published is not None]
    style = {"color": theme.FACE, "edgecolor": theme.MUTED, "hatch": "////", "linewidth": 0.9}
    panel.barh(*zip(*published_bars, strict=True), height=HALF, label="published, machine of the paper", **style)
    for height, width in published_bars:
        panel.annotate(
            f"{short(width)} ×", (width, height), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8.5,
            color=theme.MUTED,
        )  # fmt: skip
