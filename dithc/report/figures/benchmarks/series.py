"""Curves of losses and of scaling: measured solid, simulated dashed and hollow, published dotted with crosses."""

import re
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from dithc.core.measurements import rounded, short
from dithc.core.reproduction import Series
from dithc.report.figures import canvas, theme
from dithc.report.figures.benchmarks.marks import placeholder, shorten

PANEL_INCHES, AROUND_INCHES, LEGEND_LINE = 2.9, 0.8, 0.18
LABEL_LETTERS = 50
FEW_POINTS = 20  # points of a curve up to which each has a mark
BATCH = re.compile(r",? ?batch (\d+(?:,\d{3})*)")
SEED = re.compile(r", seed \d+")
CROSSES = "x+1"


def draw_series(curves: Sequence[Series], margins: canvas.Margins = (0.0, 0.0)) -> canvas.Figure:
    """Draw a panel per unit of x and batch, with the names of the curves to its right."""
    panels: dict[str, list[Series]] = {}
    for series in curves:
        if series.x:
            batch = BATCH.search(series.label)
            title = f"{series.y_label.capitalize()} by {series.x_label}" + (f", batch {batch[1]}" if batch else "")
            panels.setdefault(title, []).append(series)
    lines = [sum(len(name.splitlines()) for name in _names(group)) for group in panels.values()]
    heights = [max(PANEL_INCHES, LEGEND_LINE * count + AROUND_INCHES) for count in lines]
    figure, _, axes = canvas.framed(heights, margins)
    if not panels:
        placeholder(axes[0], "no curves are measured or simulated")
    for axis, (title, group) in zip(axes, panels.items(), strict=False):
        _draw_panel(axis, title, group)
    return figure


def _key(series: Series) -> str:
    """Return the name of a curve; curves of several seeds share it."""
    return " ".join(SEED.sub("", BATCH.sub("", series.label)).removeprefix("measured ").split()).replace(" ,", ",")


def _names(curves: Sequence[Series]) -> list[str]:
    """Return the legend of a panel: names in lines, with the kind and the last value."""
    last = {_key(series): (series.kind, (series.smoothed or series.y)[-1]) for series in curves}
    texts = [f"{shorten(key, 2 * LABEL_LETTERS)}, {kind}: {rounded(value)}" for key, (kind, value) in last.items()]
    return ["\n".join(textwrap.wrap(text, LABEL_LETTERS)) for text in texts]


def _draw_panel(axis: Any, title: str, curves: Sequence[Series]) -> None:
    keys = list(dict.fromkeys(map(_key, curves)))
    names = dict(zip(keys, _names(curves), strict=True))
    for series in curves:
        style = _style(series, keys.index(_key(series)))
        if series.smoothed:
            axis.plot(series.x, np.array(series.y, float), color=style["color"], alpha=0.2, linewidth=0.7)
        axis.plot(series.x, np.array(series.smoothed or series.y, float), label=names.pop(_key(series), None), **style)
    ends = [value for series in curves for value in series.x]
    y_values = [value for series in curves for value in series.y if value is not None]
    if curves[0].x_label in ("ranks", "nodes"):
        axis.set_xscale("log", base=2)
        ticks = [2**power for power in range(int(max(ends)).bit_length()) if 2**power >= min(ends)]
        axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    if curves[0].y_label == "efficiency":
        axis.axhline(1.0, color=theme.MUTED, linewidth=0.9, zorder=1)
        low = min(y_values, default=0.0)
        axis.set_ylim(0.0 if low < 0.6 else 0.1 * int(10 * low - 0.1), max([1.04, *y_values]) + 0.03)
        axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
    elif y_values and min(y_values) > 0:
        axis.set_yscale("log")
        axis.yaxis.get_major_locator().set_params(subs=(1, 2, 5))
        axis.yaxis.set_major_formatter(lambda value, _: short(value))
    axis.minorticks_off()
    axis.set_xlabel(curves[0].x_label)
    axis.set_title(title)
    axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), labelcolor=theme.INK, fontsize=8, handlelength=2.6)


def _style(series: Series, index: int) -> dict[str, Any]:
    color = theme.PALETTE[index % len(theme.PALETTE)]
    if series.kind == "published":
        mark = CROSSES[index % len(CROSSES)]
        return {"color": theme.INK, "marker": mark, "markersize": 8, "markeredgewidth": 1.8, "linestyle": (0, (1, 2))}
    if series.kind == "simulated":
        hollow = {"marker": "o", "markersize": 5, "markerfacecolor": theme.FACE}
        return {"color": color, "linestyle": (0, (5, 2)), "linewidth": 1.3, **hollow}
    return {"color": color, "linewidth": 1.8, "marker": "o" if len(series.x) <= FEW_POINTS else "", "zorder": 5}
