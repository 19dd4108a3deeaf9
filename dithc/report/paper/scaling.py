"""Figures 10 and 11: efficiency by ranks or nodes; measured filled, simulated hollow, published crosses."""

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dithc.papers import Document, Series
from dithc.report.figures import canvas, theme
from dithc.report.paper.frame import Frame, cut, in_order, nothing
from dithc.report.paper.losses import values

PANEL_INCHES, SMALL_INCHES, LEGEND_LINE = 2.9, 2.1, 0.18
MANY = 9  # curves of a panel, from which models have panels of their own
LABEL_LETTERS = 50
BATCH = re.compile(r",? ?batch (\d+(?:,\d{3})*)")
MODEL = re.compile(r" ?\b(XL|L|B|S)/\d\b")
LOCAL = ", exchanged every"
CROSSES = "x+1"
UNBROKEN = "\u00a0"  # a space at which no line ends


def panels_of(document: Document) -> dict[str, list[Series]]:
    """Group curves by axis and global batch, and by model if a panel is too full."""
    found: dict[tuple[str, str], list[Series]] = {}
    for one in document.series:
        if one.x:
            batch = "" if one.kind == "measured" else _batch(one)
            found.setdefault((one.x_label or "nodes", batch), []).append(one)
    panels: dict[str, list[Series]] = {}
    for (_, batch), curves in found.items():
        for part in _by_model(curves):
            models = in_order(_model(one) for one in part if _model(one))
            kinds = " and ".join(in_order(one.kind for one in part)).capitalize()
            size = f", {int(batch.replace(',', '')):,} images a step" if batch else ""
            name = ": ".join(filter(None, (kinds, ", ".join(models)))) + size
            panels[name if name not in panels else f"{name} ({len(panels) + 1})"] = part
    return panels


def _batch(series: Series) -> str:
    found = BATCH.search(series.label)
    return found[1] if found else ""


def _model(series: Series) -> str:
    found = MODEL.search(series.label)
    return found[0].strip() if found else ""


def _by_model(curves: list[Series]) -> list[list[Series]]:
    """Return one part, or the first model's curves and the others."""
    models = in_order(_model(one) for one in curves if _model(one))
    if len(curves) <= MANY or len(models) < 2:
        return [curves]
    first = [one for one in curves if _model(one) in ("", models[0])]
    return [first, [one for one in curves if one not in first]]


def draw_scaling(document: Document, frame: Frame, folder: Path) -> Any:
    """Draw stacked panels with curve names at the right."""
    panels = panels_of(document)
    heights = [
        max(
            SMALL_INCHES if all(one.kind == "measured" for one in curves) else PANEL_INCHES,
            LEGEND_LINE * _lines(curves) + 0.8,
        )
        for curves in panels.values()
    ]
    figure, _, grid = canvas.framed(heights or [1.2], top=frame.top, bottom=frame.bottom)
    if not panels:
        nothing(grid[0][0], "no scaling has been measured or simulated")
    for (axis,), (name, curves) in zip(grid, panels.items(), strict=False):
        _panel(axis, name, curves)
    return figure


def _lines(curves: Sequence[Series]) -> int:
    return sum(len(_named(one, curves).splitlines()) for one in curves)


def _panel(axis: Any, name: str, curves: list[Series]) -> None:
    ends = [float(value) for one in curves for value in one.x]
    known = [value for one in curves for value in one.y if value is not None]
    axis.set_xscale("log", base=2)
    axis.set_xlim(min(ends) / 1.15, max(*ends, 2 * min(ends)) * 1.15)
    axis.axhline(1.0, color=theme.MUTED, linewidth=0.9)
    for one in curves:
        axis.plot(one.x, values(one.y), label=_named(one, curves), **_look(one, curves))
        if one.low and one.high:
            look = {"color": _colour(one, curves), "alpha": 0.15, "linewidth": 0}
            axis.fill_between(one.x, values(one.low), values(one.high), **look)
    lowest, highest = min(known, default=0.0), max(known, default=1.0)
    axis.set_ylim(0 if lowest < 0.6 else 0.1 * int(10 * lowest - 0.5), max(1.04, highest + 0.03))
    axis.yaxis.get_major_locator().set_params(steps=(1, 2, 5, 10))  # whole percents
    axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    ticks = [2**power for power in range(int(max(ends)).bit_length()) if 2**power >= min(ends) / 1.1]
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel(next((one.x_label for one in curves if one.x_label), "nodes"))
    axis.set_ylabel("efficiency")
    axis.set_title(name)
    look = {"labelcolor": theme.INK, "fontsize": 8, "handlelength": 2.6, "labelspacing": 0.45}
    axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), **look)


def _named(one: Series, curves: Sequence[Series]) -> str:
    """Return the label without the panel title, with kind if ambiguous and the last point."""
    label = one.label if one.kind == "measured" else BATCH.sub("", one.label)
    models = {_model(other) for other in curves if _model(other)}
    label = MODEL.sub("", label) if len(models) == 1 else label
    label = " ".join(label.split()).replace(" ,", ",").removeprefix("measured ").strip()
    kinds = {other.kind for other in curves}
    label = label if len(kinds) == 1 or one.kind in label else f"{label}, {one.kind}"
    points = [(x, y) for x, y in zip(one.x, one.y, strict=True) if y is not None]
    told = f"{100 * points[-1][1]:.0f} % at {points[-1][0]:,g}".replace(" ", UNBROKEN) if points else "no point"
    text = f"{cut(label, 2 * LABEL_LETTERS)}: {told}" if label and label != one.kind else told
    return "\n".join(textwrap.wrap(text, LABEL_LETTERS))


def _look(one: Series, curves: Sequence[Series]) -> dict[str, Any]:
    colour = _colour(one, curves)
    if one.kind == "published":
        printed = [other for other in curves if other.kind == "published"]
        mark = CROSSES[printed.index(one) % len(CROSSES)]
        look = {
            "marker": mark,
            "markersize": 8,
            "markeredgewidth": 1.8,
            "linewidth": 1.1,
            "linestyle": (0, (1, 2)),
            "zorder": 6,
        }
        return {"color": colour} | look
    if one.kind == "measured":
        return {"color": colour, "marker": "o", "markersize": 6.5, "linewidth": 2.4, "zorder": 5}
    mark = "s" if LOCAL in one.label else "^" if _turn(one, curves) >= len(theme.PALETTE) else "o"
    look = {"marker": mark, "markersize": 5, "markerfacecolor": theme.FACE, "linewidth": 1.3}
    return {"color": colour, "linestyle": (0, (5, 2))} | look


def _colour(one: Series, curves: Sequence[Series]) -> str:
    return theme.INK if one.kind == "published" else theme.PALETTE[_turn(one, curves) % len(theme.PALETTE)]


def _turn(one: Series, curves: Sequence[Series]) -> int:
    """Return the color index: by model if there are several, else by exchange."""
    others = [other for other in curves if other.kind != "published"]
    is_one = len({_model(other) for other in others}) == 1
    keys = in_order(other.label.partition(LOCAL)[0] if is_one else _model(other) for other in others)
    return keys.index(one.label.partition(LOCAL)[0] if is_one else _model(one))
