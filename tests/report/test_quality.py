"""The figure of `dithc bench quality` fits any number of variants: no text is cut or covers another."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dithc.report.figures import theme
from dithc.report.figures.benchmarks.time_to_quality import IMAGES_SHOWN, quality_figure, shown, spaced
from dithc.report.figures.canvas import styled
from tests.report.texts import assert_legible, text_boxes

LONGEST = "x" * 20 + "-a-name-as-long-as-a-configuration-allows-it"


def training(name: str, seed: int, speed: float, *, delay: float) -> dict[str, Any]:
    points = [
        {"step": 800 // part, "seconds": delay + 600 / part, "fid": 90 * (speed / part) ** -0.5}
        for part in (8, 4, 2, 1)
    ]
    return {"variant": name, "seed": seed, "seconds_per_step": 1.0, "points": points}


def ratio(values: list[float], bound: str) -> dict[str, Any]:
    rows = [{"seeds": [seed, seed], "wall": wall, "flop": wall, "bound": bound} for seed, wall in enumerate(values)]
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"by_seed": rows, "bound": bound, "wall": float(np.mean(values)), "wall_deviation": deviation}


def result(variants: int, *, seeds: int, equal: bool = False, repeat: bool = True) -> dict[str, Any]:
    """Return variants from much slower to much faster than the baseline, or all equal; some with names of maximum length."""
    others = [f"{number}-{LONGEST}"[: 64 if number % 3 == 2 else 9] for number in range(variants - 1)]
    speeds = {name: 1.0 if equal else 0.1 * 1.4**number for number, name in enumerate(others)}
    bounds = {name: "at least" if speed > 8 else "at most" if speed < 0.125 else "" for name, speed in speeds.items()}
    ratios = {
        name: ratio([speed * (1 + 0.05 * seed) for seed in range(seeds)], bounds[name])
        for name, speed in speeds.items()
    }
    if repeat:
        ratios["again"] = ratio([0.8, 1.1, 1.05][:seeds], "")
    names = {"baseline": 1.0, **speeds}
    return {
        "settings": {"baseline": "baseline"},
        "steps": dict.fromkeys(names, 800),
        "limits": {name: {"codec": 1.5, "floor": 0.9, "untrained": 200.0, "n": 64} for name in names},
        "runs": [
            training(name, seed, speed * (1 + 0.05 * seed), delay=900.0 * (number % 4 == 3))
            for number, (name, speed) in enumerate(names.items())
            for seed in range(seeds)
        ],
        "ratios": ratios,
    }


@pytest.mark.parametrize(("variants", "seeds", "equal"), [(2, 1, False), (19, 1, True), (24, 3, False)])
@pytest.mark.slow
def test_figure_texts_are_neither_cut_nor_overlapping(variants, seeds, equal, monkeypatch):
    given = result(variants, seeds=seeds, equal=equal)
    page, boxes = text_boxes(lambda: quality_figure(given, {}), monkeypatch)
    assert len(boxes) > 2 * variants
    assert_legible(page, boxes)


def panels(given: dict[str, Any]) -> Iterator[Any]:
    with styled():
        yield from quality_figure(given, {}).axes


@pytest.mark.slow
def test_lanes_are_ordered_by_mean_with_marks_for_seeds_and_bounds():
    given = result(24, seeds=3)
    panel = next(panels(given))
    lanes = [label.get_text().replace("\n", "") for label in panel.get_yticklabels()]
    ranked = sorted(given["ratios"], key=lambda name: -given["ratios"][name]["wall"])
    assert lanes == ["baseline again" if name == "again" else name for name in ranked]
    assert list(panel.get_yticks()) == sorted(panel.get_yticks())
    assert panel.yaxis_inverted()
    marks = [
        (line.get_marker(), line.get_xdata()[0], line.get_ydata()[0])
        for line in panel.lines
        if len(line.get_xdata()) == 1
    ]
    for name, lane in zip(ranked, panel.get_yticks(), strict=True):
        entry = given["ratios"][name]
        shape = {"": "o", "at least": ">", "at most": "<"}[entry["bound"]]
        seeds = [(shape, pytest.approx(row["wall"])) for row in entry["by_seed"]]
        assert [(mark, value) for mark, value, position in marks if position == lane] == [
            *seeds,
            ("D", pytest.approx(entry["wall"])),
        ]
    (band,) = panel.patches
    assert (band.get_x(), band.get_x() + band.get_width()) == pytest.approx((0.8, 1.25)), (
        "the spread of the baseline over seeds"
    )
    assert not next(panels(result(6, seeds=1, repeat=False))).patches


def test_baseline_best_and_worst_variants_are_shown():
    many, few = result(19, seeds=1), result(6, seeds=1)
    others = list(many["ratios"])[:-1]
    assert shown(many) == ["baseline", *others[:-4:-1], others[1], others[0]]
    assert set(shown(few)) == set(few["steps"])
    lines = list(panels(many))[1].lines
    coloured = {line.get_color() for line in lines if len(line.get_xdata()) == 4} - {theme.MUTED}
    assert coloured == set(theme.PALETTE)


@pytest.mark.slow
def test_figure_grows_with_variants_and_shows_existing_samples():
    def height(variants: int) -> float:
        with styled():
            return float(quality_figure(result(variants, seeds=1), {}).get_figheight())

    assert height(2) < height(6) < height(24)
    given = result(2, seeds=1)
    images = np.zeros((IMAGES_SHOWN, 3, 8, 8), np.uint8)
    with styled():
        figure = quality_figure(given, {("baseline", 800): images})
    assert [len(panel.images) for panel in figure.axes[2:]] == [0, 0, 0, 1, 0, 0, 0, 0]


def test_distant_bounds_do_not_flatten_the_scores():
    given = result(2, seeds=1)
    for limits in given["limits"].values():
        limits |= {"codec": 1e-6, "floor": None}
    panel = list(panels(given))[1]
    scores = [point["fid"] for one in given["runs"] for point in one["points"]]
    assert panel.get_ylim()[0] > min(scores) / 12
    assert "dashed" not in panel.get_xlabel()


@pytest.mark.parametrize(("low", "high"), [(5.8, 10.7), (2.1, 4.9), (0.3, 1.1), (3.0, 400.0)])
def test_close_scores_have_ticks(low, high):
    given = result(2, seeds=1)
    for training in given["runs"]:
        for point, fid in zip(training["points"], np.geomspace(high, low, 4), strict=True):
            point["fid"] = float(fid)
    for limits in given["limits"].values():
        limits |= {"codec": low, "floor": None}
    panel = list(panels(given))[1]
    bottom, top = panel.get_ylim()
    assert 3 <= sum(bottom <= tick <= top for tick in panel.get_yticks()) <= 10


def test_curve_labels_do_not_overlap() -> None:
    assert spaced([0.2, 0.8], gap=0.1) == [0.2, 0.8]
    placed = spaced([0.5, 0.5, 0.98, 0.97, 0.99], gap=0.1)
    assert max(placed) <= 1.0
    order = sorted(placed)
    assert all(high - low >= 0.1 - 1e-9 for low, high in pairwise(order))
    assert placed[3] < placed[2] < placed[4]
