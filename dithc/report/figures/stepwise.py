"""Figure 9: speedup over the baseline by stage, measured here and published."""

from collections.abc import Sequence
from typing import Any

from dithc.report.engine import stepwise_stages
from dithc.report.facts import Facts
from dithc.report.figures import theme
from dithc.report.figures.canvas import as_png, canvas, nothing, styled
from dithc.summaries import rounded, short

HALF = 0.36  # height of a bar relative to the space between two stages
FIRST_LINE = 1.0  # the baseline


def draw_stepwise(facts: Facts) -> bytes:
    """Draw the stages of the report."""
    found = facts.benches.get("stepwise")
    if not found:
        return nothing("training by stages: not run")
    settings = found["settings"]
    title = f"{settings['model'].removeprefix('DiT-')}, batch {settings['batch']}, {settings['dtype']}"
    return draw_stages(stepwise_stages.stage_bars(found, facts.stepwise_paper), title=title)


def draw_stages(bars: Sequence[stepwise_stages.StageBar], *, title: str) -> bytes:
    """Draw a pair of numbered bars per stage, measured above published."""
    with styled():
        figure, (panel,) = canvas(1, columns=1, height=0.95 + 0.5 * len(bars))
        most = max([bar.measured or 0.0 for bar in bars] + [bar.published or 0.0 for bar in bars] + [FIRST_LINE])
        _ours(panel, bars)
        _theirs(panel, bars)
        panel.axvline(FIRST_LINE, color=theme.INK, linewidth=1, linestyle=(0, (4, 3)))
        panel.set_yticks(range(len(bars)), [bar.label for bar in bars])
        panel.tick_params(axis="y", labelcolor=theme.INK)
        panel.set_ylim(len(bars) - 0.4, -0.6)
        panel.set_xlim(0, most * 1.14)
        panel.set_xlabel("speedup over the baseline")
        panel.grid(visible=False, axis="y")
        panel.set_title(f"Gain by stage: {title}")
        figure.legend(loc="outside upper right", ncols=2, labelcolor=theme.INK, fontsize=9)
        return as_png(figure)


def _ours(panel: Any, bars: Sequence[stepwise_stages.StageBar]) -> None:
    """Draw measured bars with deviation and number, or the reason of a missing bar."""
    shown = [(place - HALF / 2, bar) for place, bar in enumerate(bars) if bar.measured is not None]
    heights, widths = [height for height, _ in shown], [bar.measured for _, bar in shown]
    deviations = [bar.deviation for _, bar in shown]
    panel.barh(
        heights, widths, height=HALF, color=theme.PALETTE[0], xerr=deviations, ecolor=theme.INK, label="measured here"
    )
    for place, bar in enumerate(bars):
        is_measured = bar.measured is not None
        text = f"{rounded(bar.measured, digits=3)} ×" if bar.measured is not None else bar.note or "not measured"
        panel.annotate(
            text, ((bar.measured or FIRST_LINE) + bar.deviation, place - HALF / 2), xytext=(5, 0),
            textcoords="offset points", va="center", fontsize=8.5, fontweight="bold" if is_measured else "normal",
            color=theme.INK if is_measured else theme.MUTED,
        )  # fmt: skip


def _theirs(panel: Any, bars: Sequence[stepwise_stages.StageBar]) -> None:
    """Draw published bars, hatched."""
    shown = [(place + HALF / 2, bar.published) for place, bar in enumerate(bars) if bar.published is not None]
    if not shown:
        return
    heights, widths = zip(*shown, strict=True)
    look = {"color": theme.FACE, "edgecolor": theme.MUTED, "hatch": "////", "linewidth": 0.9}
    panel.barh(heights, widths, height=HALF, label="published, machine of the paper", **look)
    for height, width in shown:
        panel.annotate(
            f"{short(width)} ×", (width, height), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8.5,
            color=theme.MUTED,
        )  # fmt: skip
