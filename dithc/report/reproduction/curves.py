"""Figures 7, 10 and 11 as curves: measured solid, simulated dashed and hollow, published dotted with crosses."""

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dithc.core.reproduction import Series, TargetResult
from dithc.core.summaries import rounded, short
from dithc.report.figures import canvas, theme
from dithc.report.reproduction.frame import Frame, cut, in_order, nothing

PANEL_INCHES, AROUND_INCHES, LEGEND_LINE = 2.9, 0.8, 0.18
LABEL_LETTERS = 50
FEW_POINTS = 20  # points of a curve up to which each has a mark
BATCH = re.compile(r",? ?batch (\d+(?:,\d{3})*)")
SEED = re.compile(r", seed \d+")
CROSSES = "x+1"


def draw_curves(document: TargetResult, frame: Frame, folder: Path) -> Any:
    """Draw a panel per unit of x and batch, with the names of the curves to its right."""
    panels: dict[str, list[Series]] = {}
    for one in document.series:
        if one.x:
            batch = BATCH.search(one.label)
            title = f"{one.y_label.capitalize()} by {one.x_label}" + (f", batch {batch[1]}" if batch else "")
            panels.setdefault(title, []).append(one)
    lines = [sum(len(name.splitlines()) for name in _names(curves)) for curves in panels.values()]
    heights = [max(PANEL_INCHES, LEGEND_LINE * count + AROUND_INCHES) for count in lines]
    figure, _, axes = canvas.framed(heights or [1.2], top=frame.top, bottom=frame.bottom)
    if not panels:
        nothing(axes[0], "no curves are measured or simulated")
    for axis, (title, curves) in zip(axes, panels.items(), strict=False):
        _panel(axis, title, curves)
    return figure


def _key(one: Series) -> str:
    """Return the name of a curve; curves of several seeds share it."""
    return " ".join(SEED.sub("", BATCH.sub("", one.label)).removeprefix("measured ").split()).replace(" ,", ",")


def _names(curves: Sequence[Series]) -> list[str]:
    """Return the legend of a panel: names in lines, with the kind and the last value."""
    last = {_key(one): (one.kind, (one.smoothed or one.y)[-1]) for one in curves}
    texts = [f"{cut(key, 2 * LABEL_LETTERS)}, {kind}: {rounded(value)}" for key, (kind, value) in last.items()]
    return ["\n".join(textwrap.wrap(text, LABEL_LETTERS)) for text in texts]


def _panel(axis: Any, title: str, curves: Sequence[Series]) -> None:
    keys = in_order(map(_key, curves))
    names = dict(zip(keys, _names(curves), strict=True))
    for one in curves:
        look = _look(one, keys.index(_key(one)))
        if one.smoothed:
            axis.plot(one.x, np.array(one.y, float), color=look["color"], alpha=0.2, linewidth=0.7)
        axis.plot(one.x, np.array(one.smoothed or one.y, float), label=names.pop(_key(one), None), **look)
    ends = [value for one in curves for value in one.x]
    known = [value for one in curves for value in one.y if value is not None]
    if curves[0].y_label == "efficiency":
        axis.axhline(1.0, color=theme.MUTED, linewidth=0.9, zorder=1)
        axis.set_xscale("log", base=2)
        low = min(known, default=0.0)
        axis.set_ylim(0.0 if low < 0.6 else 0.1 * int(10 * low), max([1.04, *known]) + 0.03)
        axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
        ticks = [2**power for power in range(int(max(ends)).bit_length()) if 2**power >= min(ends)]
        axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axis.minorticks_off()
    elif known and min(known) > 0:
        axis.set_yscale("log")
        axis.yaxis.get_major_locator().set_params(subs=(1, 2, 5))
        axis.yaxis.set_major_formatter(lambda value, _: short(value))
        axis.minorticks_off()
    axis.set_xlabel(curves[0].x_label)
    axis.set_title(title)
    axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), labelcolor=theme.INK, fontsize=8, handlelength=2.6)


def _look(one: Series, place: int) -> dict[str, Any]:
    colour = theme.PALETTE[place % len(theme.PALETTE)]
    if one.kind == "published":
        mark = CROSSES[place % len(CROSSES)]
        return {"color": theme.INK, "marker": mark, "markersize": 8, "markeredgewidth": 1.8, "linestyle": (0, (1, 2))}
    if one.kind == "simulated":
        hollow = {"marker": "o", "markersize": 5, "markerfacecolor": theme.FACE}
        return {"color": colour, "linestyle": (0, (5, 2)), "linewidth": 1.3, **hollow}
    return {"color": colour, "linewidth": 1.8, "marker": "o" if len(one.x) <= FEW_POINTS else "", "zorder": 5}
