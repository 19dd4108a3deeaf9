"""Figure of time to quality: speedup of each variant, scores over time, and samples during training.

The figure has a lane for every variant. Only the baseline and the best and worst variants have a color, a label and
samples.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.data import mosaic
from dithc.report.figures import theme
from dithc.report.figures.canvas import (
    LINE_INCHES,
    TITLE_SIZE,
    WIDTH_INCHES,
    number_log_axis,
    panels_over_images,
    render_png,
)
from dithc.report.figures.samples import title_lines
from dithc.report.formatting import score, span

ROWS_SHOWN, COLUMNS_SHOWN = 2, 4  # samples per point
IMAGES_SHOWN = ROWS_SHOWN * COLUMNS_SHOWN
BEST, WORST = 3, 2  # with the baseline the number of colors of the palette
BOUNDS = {"": "", "at least": "≥ ", "at most": "≤ "}
MARKERS = {"": "o", "at least": ">", "at most": "<"}
NAME_LETTERS, LABEL_LETTERS = 30, 95  # line lengths of names and of axis labels
BETWEEN_LINES = 0.5  # lines between two names
FRAME_INCHES, CURVES_INCHES = 1.0, 3.6  # title and axis of a panel; minimum height of the panel of scores
TICKS_APART = 0.16  # share of the time axis that a duration needs
FARTHEST = 10.0  # ratio of the lowest score to a bound above which the bound is omitted
DASHED, DOTTED = (0, (4, 3)), (0, (1, 2))
Lines = Mapping[str, Sequence[str]]  # names in lines
Samples = Mapping[tuple[str, int], NDArray[np.uint8]]
"""Samples (N, 3, H, W) of the first run of a variant, by name and optimizer step."""


def draw_quality(result: Mapping[str, Any], samples: Samples) -> bytes:
    """Return a PNG of a result of `dithc bench quality`, with samples of the `shown` variants (empty without samples)."""
    return render_png(lambda: quality_figure(result, samples))


def shown(result: Mapping[str, Any]) -> list[str]:
    """Return the baseline and the variants with the best and worst mean ratios, or all if few."""
    baseline = result["settings"]["baseline"]
    variants = [label for label in _ranked(result) if label in result["steps"] and label != baseline]
    return [baseline, *(variants if len(variants) <= BEST + WORST else variants[:BEST] + variants[-WORST:])]


def quality_figure(result: Mapping[str, Any], samples: Samples) -> Any:
    """Return the figure; call it inside `styled`."""
    names = shown(result)
    colors = dict(zip(names, theme.PALETTE, strict=False))
    first: dict[str, Sequence[Mapping[str, Any]]] = {}
    for training in result["runs"]:
        first.setdefault(training["variant"], training["points"])
    lanes = {label: wrap(label if label in first else f"{names[0]} again", NAME_LETTERS) for label in _ranked(result)}
    ends = {name: wrap(f"{name} {score(first[name][-1]['fid'])}", NAME_LETTERS) for name in names}
    columns = max(len(first[name]) for name in names)
    side = WIDTH_INCHES / columns
    titles = {
        name: [title_lines(f"{name}, step {point['step']:,}: FID {score(point['fid'])}", side) for point in first[name]]
        for name in names
    }
    heights = [
        _stack_inches(lanes),
        max(CURVES_INCHES - FRAME_INCHES, len(ends) * max(_stack_inches({"": lines}) for lines in ends.values())),
    ]
    figure, (ratios, curves), image_rows = panels_over_images(
        tops=[FRAME_INCHES + height for height in heights],
        rows=len(names),
        columns=columns,
        height=side / 2 + LINE_INCHES * (1 + max(len(title) for row in titles.values() for title in row)),
    )
    _draw_ratios(ratios, result, lanes, colors)
    _draw_curves(curves, result, colors)
    _name_ends(curves, {name: first[name][-1] for name in names}, ends, colors, inches=heights[1])
    for row, name in zip(image_rows, names, strict=True):
        for panel in row:
            panel.set_axis_off()
        for panel, point, title in zip(row, first[name], titles[name], strict=False):
            panel.set_title("\n".join(title), color=colors[name], fontsize=TITLE_SIZE)
            if (name, point["step"]) in samples:
                images = samples[name, point["step"]][:IMAGES_SHOWN]
                panel.imshow(mosaic(images, columns=COLUMNS_SHOWN), interpolation="nearest")
    return figure


def _ranked(result: Mapping[str, Any]) -> list[str]:
    """Return labels of the ratios, the best mean first."""
    return sorted(result["ratios"], key=lambda label: -result["ratios"][label]["wall"])


def _stack_inches(names: Lines) -> float:
    return LINE_INCHES * sum(len(lines) + BETWEEN_LINES for lines in names.values())


def _draw_ratios(panel: Any, result: Mapping[str, Any], lanes: Lines, colors: Mapping[str, str]) -> None:
    """Draw a lane per variant: a mark per seed, the mean, and both as numbers; shade the baseline."""
    values = [row["wall"] for label in lanes for row in result["ratios"][label]["by_seed"]]
    baseline, repeat = result["settings"]["baseline"], result["ratios"].get("again")
    panel.set_xscale("log")
    panel.set_xlim(min(0.5, *values) / 1.15, max(2.0, *values) * 1.15)
    if repeat:
        spread = math.exp(max(abs(math.log(row["wall"])) for row in repeat["by_seed"]))
        panel.axvspan(1 / spread, spread, color=theme.GRID, alpha=0.7, linewidth=0)
    panel.axvline(1.0, color=theme.INK, linewidth=1, linestyle=DASHED)
    top, positions = 0.0, []
    for label, lines in lanes.items():
        ratio, position = result["ratios"][label], top + _stack_inches({label: lines}) / 2
        positions.append(position)
        top += _stack_inches({label: lines})
        color = colors.get(baseline if label == "again" else label, theme.MUTED)
        for row in ratio["by_seed"]:
            marker, size = MARKERS[row["bound"]], 7 if row["bound"] else 5
            panel.plot([row["wall"]], [position], marker=marker, markersize=size, color=color, alpha=0.8, linewidth=0)
        if len(ratio["by_seed"]) > 1:
            panel.plot([ratio["wall"]], [position], marker="D", markersize=9, markerfacecolor="none", color=color)
        panel.annotate(
            _format_ratio(ratio), (1.01, position), xycoords=("axes fraction", "data"), va="center", fontsize=TITLE_SIZE
        )
    panel.set_yticks(positions, ["\n".join(lines) for lines in lanes.values()], fontsize=TITLE_SIZE)
    panel.tick_params(axis="y", labelcolor=theme.INK)
    panel.set_ylim(top, 0.0)
    panel.grid(visible=False, axis="y")
    number_log_axis(panel.xaxis)
    panel.set_title(f"R: how many times sooner than {baseline}")
    caption = "to the score that both reach, by wall time; one mark per seed (triangle: at least, at most), diamonds are means"
    caption += f"; shaded: {baseline} against itself with other seeds" if repeat else ""
    panel.set_xlabel("\n".join(wrap(caption, LABEL_LETTERS)))


def _format_ratio(ratio: Mapping[str, Any]) -> str:
    """Format the mean with its deviation over seeds, or as a bound."""
    deviation = ratio["wall_deviation"]
    return f"{BOUNDS[ratio['bound']]}{ratio['wall']:.2f}" + (f" ± {deviation:.2f}" if deviation is not None else "")


def _draw_curves(panel: Any, result: Mapping[str, Any], colors: Mapping[str, str]) -> None:
    """Draw a line per run, gray without a color, and limits as horizontal lines."""
    for training in result["runs"]:
        name = training["variant"]
        seconds, scores = ([point[key] for point in training["points"]] for key in ("seconds", "fid"))
        style = {"color": colors[name], "zorder": 3} if name in colors else {"color": theme.MUTED, "alpha": 0.35}
        panel.plot(seconds, scores, marker="o", markersize=4 if name in colors else 2, **style)
    panel.set_xscale("log")
    panel.set_yscale("log")
    limits = result["limits"].values()
    codecs, floors = ({limit[key] for limit in limits if limit[key]} for key in ("codec", "floor"))
    scores = [point["fid"] for training in result["runs"] for point in training["points"]]
    low = max(min(scores) / FARTHEST, min([*scores, *codecs, *floors])) / 1.15
    panel.set_ylim(low, max(scores) * 1.15)
    notes = []
    for levels, line, note in (
        (codecs, DASHED, "dashed: codecs alone"),
        (floors, DOTTED, "dotted: floor of the real set"),
    ):
        for level in levels:
            panel.axhline(level, color=theme.MUTED, linewidth=1, linestyle=line)
        notes += [note] if any(level > low for level in levels) else []
    number_log_axis(panel.yaxis)
    _set_time_axis(panel, result, notes)
    panel.set_ylabel("FID")
    gray = set(result["steps"]) - set(colors)
    panel.set_title("Scores by time" + (f"; gray: the other {len(gray)}" if gray else ""))


def _set_time_axis(panel: Any, result: Mapping[str, Any], notes: Sequence[str]) -> None:
    """Set ticks at the last point and at the scored points of the first run that fit."""
    scored, seconds = (
        sorted(point["seconds"] for training in trainings for point in training["points"])
        for trainings in (result["runs"][:1], result["runs"])
    )
    min_gap = TICKS_APART * math.log(seconds[-1] / seconds[0])
    ticks = [seconds[-1]]
    for tick in reversed(scored):
        ticks += [tick] if math.log(ticks[-1] / tick) >= min_gap else []
    panel.set_xticks(ticks, [span(tick) for tick in ticks])
    panel.minorticks_off()
    panel.set_xlabel("training time" + (f" ({'; '.join(notes)})" if notes else ""))


def _name_ends(
    panel: Any, last: Mapping[str, Mapping[str, Any]], names: Lines, colors: Mapping[str, str], *, inches: float
) -> None:
    """Write names right of the panel, connected with the ends of their lines."""
    low, high = panel.get_ylim()
    heights = [math.log(point["fid"] / low) / math.log(high / low) for point in last.values()]
    gap = max(_stack_inches({"": lines}) for lines in names.values()) / inches
    for (name, point), height in zip(last.items(), spaced(heights, gap=gap), strict=True):
        leader = {"arrowstyle": "-", "color": colors[name], "linewidth": 0.6, "alpha": 0.6, "relpos": (0, 0.5)}
        panel.annotate(
            "\n".join(names[name]), (point["seconds"], point["fid"]), xytext=(1.03, height), textcoords="axes fraction",
            va="center", fontsize=TITLE_SIZE, color=colors[name], annotation_clip=False, arrowprops=leader,
        )  # fmt: skip


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
