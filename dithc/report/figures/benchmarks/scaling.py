"""Figures 10 and 11: efficiency and seconds per step by number of ranks; color by model, line style by kind."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.colors import to_hex, to_rgb

from dithc.core.summaries import short
from dithc.report.benchmarks import scaling_curves
from dithc.report.figures import theme
from dithc.report.figures.canvas import as_png, canvas, nothing, styled
from dithc.report.records import ReportRecords

LOOKS: dict[scaling_curves.Kind, dict[str, Any]] = {
    "measured": {"linestyle": "-", "marker": "o", "markersize": 6, "linewidth": 2.2, "zorder": 4},
    "published": {"linestyle": (0, (1, 1.6)), "marker": "D", "markersize": 5.5, "linewidth": 1.4, "zorder": 3},
    "simulated": {"linestyle": (0, (5, 2.4)), "marker": "", "linewidth": 1.7, "zorder": 2},
}
LEAST_GAP = 0.066  # distance of two names of curves relative to the height of a panel
# Position of names right of a panel, and end of measured curves from which their names are placed there.
BESIDE, NEAR_RIGHT = 1.025, 0.6
MAX_TICKS = 13
Colours = dict[scaling_curves.ScalingCurve, str]
Line = tuple[scaling_curves.ScalingCurve, list[scaling_curves.ScalingPoint], str]


def draw_scaling(facts: ReportRecords, *, mode: scaling_curves.Mode) -> bytes:
    """Draw weak scaling (figure 10) or strong scaling (figure 11)."""
    curves = [
        curve
        for curve in facts.scaling
        if curve.mode == mode and any(point.seconds or point.efficiency for point in curve.drawn)
    ]
    if all(curve.kind == "published" for curve in curves):
        return nothing(f"{mode} scaling: not run")
    models = list(dict.fromkeys(curve.model for curve in facts.scaling))
    hues = {model: theme.PALETTE[number % len(theme.PALETTE)] for number, model in enumerate(models)}
    colours = _colours(curves, hues)
    with styled():
        figure, (efficiency, seconds) = canvas(2, columns=1, height=3.1)
        _efficiency(efficiency, curves, colours)
        _seconds(seconds, curves, colours)
        used = {curve.kind for curve in curves}
        handles = [
            efficiency.plot([], [], color=theme.INK, label=kind, **_look(kind))[0]
            for kind in scaling_curves.KINDS
            if kind in used
        ]
        figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), labelcolor=theme.INK, fontsize=9)
        return as_png(figure)


def _efficiency(panel: Any, curves: Sequence[scaling_curves.ScalingCurve], colours: Colours) -> None:
    lines = [
        (curve, [point for point in curve.drawn if point.efficiency is not None], "efficiency") for curve in curves
    ]
    values = [point.efficiency or 0.0 for _, points, _ in lines for point in points]
    low = min(0.8, max(0.0, min(values, default=1.0) - 0.05))
    panel.set_ylim(low // 0.1 * 0.1, max(1.04, *values) + 0.02)
    panel.axhline(1.0, color=theme.MUTED, linewidth=0.9)
    panel.set_title("Parallel efficiency, relative to the fewest ranks")
    panel.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
    _draw(panel, lines, colours)


def _seconds(panel: Any, curves: Sequence[scaling_curves.ScalingCurve], colours: Colours) -> None:
    lines = [(curve, [point for point in curve.drawn if point.seconds is not None], "seconds") for curve in curves]
    panel.set_yscale("log")
    panel.set_title("Seconds per step")
    values = [point.seconds or 1.0 for _, points, _ in lines for point in points]
    panel.set_ylim(min(values) / 1.6, max(values) * 1.6)
    _draw(panel, lines, colours)
    panel.yaxis.get_major_locator().set_params(subs=(1, 2, 5) if max(values) < 300 * min(values) else (1,))
    panel.yaxis.set_major_formatter(lambda value, _: short(value))


def _draw(panel: Any, lines: Sequence[Line], colours: Colours) -> None:
    """Draw the curves, the rank axis, and names at the right ends."""
    most = max((point.ranks for _, points, _ in lines for point in points), default=1)
    panel.set_xscale("log", base=2)
    panel.set_xlim(1 / 1.15, most * 1.15)
    columns: dict[float, list[tuple[scaling_curves.ScalingCurve, Any]]] = {}
    for curve, points, name in lines:
        if points:
            ranks, values = [point.ranks for point in points], [getattr(point, name) for point in points]
            panel.plot(ranks, values, color=colours[curve], **_look(curve.kind))
            end = panel.transLimits.transform(panel.transScale.transform((ranks[-1], values[-1])))
            is_short = curve.kind == "measured" and end[0] < NEAR_RIGHT
            columns.setdefault(float(end[0]) + 0.022 if is_short else BESIDE, []).append((curve, end))
    for left, ends in columns.items():
        heights = spaced([float(end[1]) for _, end in ends], gap=LEAST_GAP)
        for (curve, end), height in zip(ends, heights, strict=True):
            leader = {"arrowstyle": "-", "color": colours[curve], "linewidth": 0.6, "alpha": 0.6, "relpos": (0, 0.5)}
            panel.annotate(
                curve.title, tuple(end), xycoords="axes fraction", xytext=(left, height), textcoords="axes fraction",
                fontsize=8.5, color=colours[curve], va="center", annotation_clip=False, arrowprops=leader,
            )  # fmt: skip
    ticks = [2**power for power in range(most.bit_length())]
    ticks = ticks[:: -(-len(ticks) // MAX_TICKS)]
    panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    panel.minorticks_off()
    panel.set_xlabel("ranks")


def spaced(heights: Sequence[float], *, gap: float) -> list[float]:
    """Move heights apart by at least `gap`, up to 1, in the same order."""
    order = sorted(range(len(heights)), key=lambda number: heights[number])
    placed = list(heights)
    for before, number in pairwise(order):
        placed[number] = max(placed[number], placed[before] + gap)
    highest = 1.0
    for number in reversed(order):
        placed[number] = min(placed[number], highest)
        highest = placed[number] - gap
    return placed


def _colours(curves: Sequence[scaling_curves.ScalingCurve], hues: Mapping[str, str]) -> Colours:
    """Return colors: a hue per model, from dark to light over its curves of one kind."""
    found = {}
    for curve in curves:
        alike = [one for one in curves if (one.model, one.kind) == (curve.model, curve.kind)]
        place = alike.index(curve) / (len(alike) - 1) if len(alike) > 1 else 0.4
        toward, share = (theme.INK, 0.4 - place) if place < 0.4 else (theme.FACE, 0.75 * (place - 0.4))
        own, aim = np.array(to_rgb(hues[curve.model])), np.array(to_rgb(toward))
        found[curve] = to_hex(own + share * (aim - own))
    return found


def _look(kind: scaling_curves.Kind) -> dict[str, Any]:
    return LOOKS[kind] | ({"markerfacecolor": theme.FACE} if kind == "published" else {})
