"""Figures 10 and 11: efficiency by ranks or nodes; measured filled, simulated hollow, published crosses."""

import re
from pathlib import Path
from typing import Any

from dithc.papers import Document, Series
from dithc.report.figures import Theme, canvas
from dithc.report.paper.frame import Frame, cut, in_order, nothing
from dithc.report.paper.losses import values

PANEL_INCHES, LEGEND_LINE = 2.7, 0.2
MANY = 9  # curves of a panel, from which models have panels of their own
MARKS = "osD^vP<>"
BATCH = re.compile(r",? ?batch ([\d,]+)")
MODEL = re.compile(r" ?\b(XL|L|B|S)/(\d)\b")


def panels_of(document: Document) -> dict[str, list[Series]]:
    """Curves by what their axis counts, and by global batch; by model where a panel would have too many."""
    found: dict[str, list[Series]] = {}
    for one in document.series:
        if one.x:
            batch = BATCH.search(one.label)
            name = f"Batch {batch[1]} of all ranks" if batch and one.kind != "measured" else ""
            name = name or ("Measured here" if one.kind == "measured" else "Published and simulated")
            found.setdefault(f"{name}, by {one.x_label or 'nodes'}", []).append(one)
    parted: dict[str, list[Series]] = {}
    for name, curves in found.items():
        models = in_order(model[0].strip() for one in curves if (model := MODEL.search(one.label)))
        if len(curves) <= MANY or len(models) < 2:
            parted[name] = curves
            continue
        first = [one for one in curves if not (model := MODEL.search(one.label)) or model[0].strip() == models[0]]
        parted[f"{name}: {models[0]}"] = first
        parted[f"{name}: {', '.join(models[1:])}"] = [one for one in curves if one not in first]
    return parted


def draw_scaling(document: Document, theme: Theme, frame: Frame, folder: Path) -> Any:
    """A panel below the other, its curves named at its right."""
    panels = panels_of(document)
    heights = [max(PANEL_INCHES, LEGEND_LINE * len(curves) + 0.8) for curves in panels.values()] or [1.2]
    figure, _, grid = canvas.framed(heights, top=frame.top, bottom=frame.bottom)
    if not panels:
        nothing(grid[0][0], "no scaling has been measured or simulated", theme)
    for (axis,), (name, curves) in zip(grid, panels.items(), strict=False):
        _panel(axis, name, curves, theme)
    return figure


def _panel(axis: Any, name: str, curves: list[Series], theme: Theme) -> None:
    ends = [float(value) for one in curves for value in one.x]
    axis.set_xscale("log", base=2)
    axis.set_xlim(min(ends) / 1.15, max(max(ends), 2 * min(ends)) * 1.15)
    axis.axhline(1.0, color=theme.muted, linewidth=0.9)
    is_one_model = len({model[0] for one in curves if (model := MODEL.search(one.label))}) == 1
    hues = 0
    for one in curves:
        label = BATCH.sub("", one.label) if "Batch" in name else one.label
        label = MODEL.sub("", label) if is_one_model and one.kind != "measured" else label
        is_published = one.kind == "published"
        colour = theme.ink if is_published else theme.palette[hues % len(theme.palette)]
        mark = MARKS[hues // len(theme.palette) % len(MARKS)]
        look: dict[str, Any] = {"marker": mark, "markersize": 5, "linewidth": 2.2, "zorder": 5}
        if one.kind == "simulated":
            look = {
                "marker": mark,
                "markersize": 5,
                "markerfacecolor": theme.face,
                "linewidth": 1.3,
                "linestyle": (0, (5, 2)),
            }
        if is_published:
            look = {
                "marker": "x+*"[[other for other in curves if other.kind == "published"].index(one) % 3],
                "markersize": 7,
                "markeredgewidth": 1.6,
                "linewidth": 1,
                "linestyle": (0, (1, 2)),
                "zorder": 6,
            }
        hues += not is_published
        known = [value for value in one.y if value is not None]
        told = f": {100 * known[-1]:.0f} %" if known else ""
        axis.plot(one.x, values(one.y), color=colour, label=f"{cut(_plain(label, one), 62)}{told}", **look)
        if one.low and one.high:
            axis.fill_between(one.x, values(one.low), values(one.high), color=colour, alpha=0.15, linewidth=0)
    highest = max((value for one in curves for value in one.y if value is not None), default=1.0)
    lowest = min((value for one in curves for value in one.y if value is not None), default=0.0)
    axis.set_ylim(0 if lowest < 0.6 else 0.1 * int(10 * lowest - 0.5), max(1.04, highest + 0.03))
    axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    ticks = [2**power for power in range(int(max(ends)).bit_length()) if 2**power >= min(ends) / 1.1]
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel(next((one.x_label for one in curves if one.x_label), "nodes"))
    axis.set_ylabel("efficiency")
    axis.set_title(name)
    axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), labelcolor=theme.ink, fontsize=8, handlelength=2.6)


def _plain(label: str, series: Series) -> str:
    """A label that says its kind once."""
    label = " ".join(label.split()).replace(" ,", ",")
    return label if series.kind in label else f"{label} ({series.kind})"
