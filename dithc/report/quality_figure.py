"""Time to quality as a picture: scores by time of each contender, and what its samples look like on the way."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.report.figures import as_png, over_pictures, styled
from dithc.report.theme import LIGHT, Theme
from dithc.report.words import span

ROWS_SHOWN, COLUMNS_SHOWN, GAP = 2, 4, 2  # samples of each point, pixels between them
BOUNDS = {"": "", "at least": "≥ ", "at most": "≤ "}
Pictures = Mapping[tuple[str, int], NDArray[np.uint8]]
"""Samples (N, 3, H, W) of a contender's first training, by its name and optimizer step."""


def draw_quality(result: Mapping[str, Any], pictures: Pictures, *, theme: Theme = LIGHT) -> bytes:
    """PNG of a result of `dithc bench quality`.

    Args:
        result: as `judge` gives it.
        pictures: samples to show; a point without any leaves its place empty.
        theme: colours.
    """
    first: dict[str, Sequence[Mapping[str, Any]]] = {}
    for training in result["trainings"]:
        first.setdefault(training["contender"], training["points"])
    columns = max(map(len, first.values()))
    with styled(theme):
        figure, panel, places = over_pictures(top=3.6, rows=len(first), columns=columns)
        colours = {name: theme.palette[number % len(theme.palette)] for number, name in enumerate(first)}
        _curves(panel, result, colours, theme)
        for row, (name, points) in zip(places, first.items(), strict=True):
            for place in row:
                place.set_axis_off()
            for place, point in zip(row, points, strict=False):
                place.set_title(
                    f"{name}, step {point['step']:,}: FID {point['fid']:.4g}", color=colours[name], fontsize=8.5
                )
                if (name, point["step"]) in pictures:
                    place.imshow(_mosaic(pictures[name, point["step"]]), interpolation="nearest")
        return as_png(figure)


def _curves(panel: Any, result: Mapping[str, Any], colours: Mapping[str, str], theme: Theme) -> None:
    """A line a training, of its contender's colour; what bounds them as level lines; the ratios in the title."""
    named: set[str] = set()
    for training in result["trainings"]:
        name, points = training["contender"], training["points"]
        label = None if name in named else name
        named.add(name)
        seconds, scores = [point["seconds"] for point in points], [point["fid"] for point in points]
        panel.plot(seconds, scores, marker="o", markersize=4, color=colours[name], label=label)
    for name, limits in result["limits"].items():
        panel.axhline(limits["codec"], color=colours[name], linewidth=1, linestyle=(0, (4, 3)))
    floors = [limits["floor"] for limits in result["limits"].values() if limits["floor"]]
    if floors:
        panel.axhline(min(floors), color=theme.muted, linewidth=1, linestyle=(0, (1, 2)))
    panel.set_xscale("log")
    panel.set_yscale("log")
    ticks = sorted({round(point["seconds"]) for training in result["trainings"][:1] for point in training["points"]})
    panel.set_xticks(ticks, [span(tick) for tick in ticks])
    panel.minorticks_off()
    panel.set_xlabel("training time (dashed: the codec alone; dotted: floor of the real set)")
    panel.set_ylabel("FID")
    ratios = [f"{label} {BOUNDS[ratio['bound']]}{ratio['wall']:.2f} ×" for label, ratio in result["ratios"].items()]
    baseline = result["settings"]["baseline"]
    panel.set_title(f"Sooner to the score of {baseline}: {', '.join(ratios)}")
    panel.legend(labelcolor=theme.ink, fontsize=9)


def _mosaic(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The first few images, side by side on white."""
    shown = images[: ROWS_SHOWN * COLUMNS_SHOWN]
    height, width = images.shape[2] + GAP, images.shape[3] + GAP
    picture = np.full((ROWS_SHOWN * height - GAP, COLUMNS_SHOWN * width - GAP, 3), 255, np.uint8)
    for place, image in enumerate(shown):
        top, left = place // COLUMNS_SHOWN * height, place % COLUMNS_SHOWN * width
        picture[top : top + height - GAP, left : left + width - GAP] = image.transpose(1, 2, 0)
    return picture
