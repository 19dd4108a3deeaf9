"""Figures 10 and 11: efficiency and seconds per step by number of ranks; color by model, line style by kind."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.colors import to_hex, to_rgb

from dithc.core.measurements import short
from dithc.report import scaling_curves
from dithc.report.figures import theme
from dithc.report.figures.canvas import Figure, canvas, placeholder
from dithc.report.records import ReportRecords

STYLES: dict[scaling_curves.Kind, dict[str, Any]] = {
    "measured": {"linestyle": "-", "marker": "o", "markersize": 6, "linewidth": 2.2, "zorder": 4},
    "published": {"linestyle": (0, (1, 1.6)), "marker": "D", "markersize": 5.5, "linewidth": 1.4, "zorder": 3},
    "simulated": {"linestyle": (0, (5, 2.4)), "marker": "", "linewidth": 1.7, "zorder": 2},
}
MIN_GAP = 0.066  # distance of two names of curves relative to the height of a panel
# Position of names right of a panel, and end of measured curves from which their names are placed there.
BESIDE, NEAR_RIGHT = 1.025, 0.6
MAX_TICKS = 13
Colors = dict[scaling_curves.ScalingCurve, str]
Line = tuple[scaling_curves.ScalingCurve, list[scaling_curves.ScalingPoint], str]


def draw_scaling(records: ReportRecords, *, mode: scaling_curves.Mode) -> Figure:
    """Draw weak scaling (figure 10) or strong scaling (figure 11)."""
    curves = [
        curve
        for curve in records.scaling
        if curve.mode == mode and any(point.seconds or point.efficiency for point in curve.drawn)
    ]
    if all(curve.kind == "published" for curve in curves):
        return placeholder(f"{mode} scaling: not run")
    models = list(dict.fromkeys(curve.model for curve in records.scaling))
    hues = {model: theme.PALETTE[number % len(theme.PALETTE)] for number, model in enumerate(models)}
    colors = _shades(curves, hues)
    figure, (efficiency, seconds) = canvas(2, columns=1, height=3.1)
    _draw_efficiency(efficiency, curves, colors)
    _draw_seconds(seconds, curves, colors)
    kinds = {curve.kind for curve in curves}
    handles = [
        efficiency.plot([], [], color=theme.INK, label=kind, **_style(kind))[0]
        for kind in scaling_curves.KINDS
        if kind in kinds
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), labelcolor=theme.INK, fontsize=9)
    return figure


def _draw_efficiency(panel: Any, curves: Sequence[scaling_curves.ScalingCurve], colors: Colors) -> None:
    lines = [
        (curve, [point for point in curve.drawn if point.efficiency is not None], "efficiency") for curve in curves
    ]
    values = [point.efficiency or 0.0 for _, points, _ in lines for point in points]
    low = min(0.8, max(0.0, min(values, default=1.0) - 0.05))
    panel.set_ylim(low // 0.1 * 0.1, max(1.04, *values) + 0.02)
    panel.axhline(1.0, color=theme.MUTED, linewidth=0.9)
    panel.set_title("Parallel efficiency, relative to the fewest ranks")
    panel.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
    _draw_curves(panel, lines, colors)


def _draw_seconds(panel: Any, curves: Sequence[scaling_curves.ScalingCurve], colors: Colors) -> None:
    lines = [(curve, [point for point in curve.drawn if point.seconds is not None], "seconds") for curve in curves]
    panel.set_yscale("log")
    panel.set_title("Seconds per step")
    values = [point.seconds or 1.0 for _, points, _ in lines for point in points]
    panel.set_ylim(min(values) / 1.6, max(values) * 1.6)
    _draw_curves(panel, lines, colors)
    panel.yaxis.get_major_locator().set_params(subs=(1, 2, 5) if max(values) < 300 * min(values) else (1,))
    panel.yaxis.set_major_formatter(lambda value, _: short(value))


def _draw_curves(panel: Any, lines: Sequence[Line], colors: Colors) -> None:
    """Draw the curves, the rank axis, and names at the right ends."""
    max_ranks = max((point.ranks for _, points, _ in lines for point in points), default=1)
    panel.set_xscale("log", base=2)
    panel.set_xlim(1 / 1.15, max_ranks * 1.15)
    columns: dict[float, list[tuple[scaling_curves.ScalingCurve, Any]]] = {}
    for curve, points, name in lines:
        if points:
            ranks, values = [point.ranks for point in points], [getattr(point, name) for point in points]
            panel.plot(ranks, values, color=colors[curve], **_style(curve.kind))
            end = panel.transLimits.transform(panel.transScale.transform((ranks[-1], values[-1])))
            is_short = curve.kind == "measured" and end[0] < NEAR_RIGHT
            columns.setdefault(float(end[0]) + 0.022 if is_short else BESIDE, []).append((curve, end))
    for x, ends in columns.items():
        heights = spaced([float(end[1]) for _, end in ends], gap=MIN_GAP)
        for (curve, end), height in zip(ends, heights, strict=True):
            leader = {"arrowstyle": "-", "color": colors[curve], "linewidth": 0.6, "alpha": 0.6, "relpos": (0, 0.5)}
            panel.annotate(
                curve.title, tuple(end), xycoords="axes fraction", xytext=(x, height), textcoords="axes fraction",
                fontsize=8.5, color=colors[curve], va="center", annotation_clip=False, arrowprops=leader,
            )  # fmt: skip
    ticks = [2**power for power in range(max_ranks.bit_length())]
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


def _shades(curves: Sequence[scaling_curves.ScalingCurve], hues: Mapping[str, str]) -> Colors:
    """Return colors: a hue per model, from dark to light over its curves of one kind."""
    shades = {}
    for curve in curves:
        group = [member for member in curves if (member.model, member.kind) == (curve.model, curve.kind)]
        position = group.index(curve) / (len(group) - 1) if len(group) > 1 else 0.4
        toward, share = (theme.INK, 0.4 - position) if position < 0.4 else (theme.FACE, 0.75 * (position - 0.4))
        base, target = np.array(to_rgb(hues[curve.model])), np.array(to_rgb(toward))
        shades[curve] = to_hex(base + share * (target - base))
    return shades


def _style(kind: scaling_curves.Kind) -> dict[str, Any]:
    return STYLES[kind] | ({"markerfacecolor": theme.FACE} if kind == "published" else {})
