"""The one place matplotlib enters: every figure of the report, as PNG bytes in a light or a dark theme."""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.image import imread, imsave
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from dithc.log import problem
from dithc.report.curves import Curve, smooth
from dithc.report.facts import DatasetFacts, Facts, Measure, Score
from dithc.report.theme import Theme
from dithc.report.words import score, span

DPI = 170
WIDTH_INCHES = 10.4
TITLE_SIZE = 8.5  # of a picture
LINE_INCHES, BETWEEN_TITLES = 0.17, 0.15  # of small type, in inches: a line, what stays free beside it
UNITS = (("hours", 3600), ("minutes", 60), ("seconds", 1))
MAX_POINTS = 1500  # of a raw curve: more than the figure has pixels for


@contextmanager
def styled(theme: Theme) -> Iterator[None]:
    """Drawing inside has the colours and type of a theme."""
    settings: Any = theme.settings
    with matplotlib.rc_context(settings):
        yield


def as_png(figure: Figure) -> bytes:
    """The bytes of a finished figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def canvas(count: int, *, columns: int, height: float, width: float = WIDTH_INCHES) -> tuple[Figure, list[Axes]]:
    """A figure of `width` inches with `count` panels in rows of `height` inches."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(width, height * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels[count:]:
        panel.set_visible(False)
    return figure, list(panels[:count])


def drawing(heights: Sequence[float], *, width: float) -> tuple[Figure, list[Axes]]:
    """A figure of panels below each other, of these heights in inches, that share their axis of x."""
    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    return figure, list(figure.subplots(len(heights), 1, sharex=True, height_ratios=heights))


def over_pictures(
    *, tops: Sequence[float], rows: int, columns: int, height: float, width: float = WIDTH_INCHES
) -> tuple[Figure, list[Axes], list[list[Axes]]]:
    """A figure of panels of these heights in inches, over rows of places for pictures, `height` inches each."""
    figure = Figure(figsize=(width, sum(tops) + rows * height), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=[sum(tops), rows * height], squeeze=False)[:, 0]
    panels = above.subplots(len(tops), 1, height_ratios=tops, squeeze=False)[:, 0]
    return figure, list(panels), [list(row) for row in below.subplots(rows, columns, squeeze=False)]


def nothing(theme: Theme, text: str) -> bytes:
    """A figure that says what was not run."""
    with styled(theme):
        figure = Figure(figsize=(WIDTH_INCHES, 1.2))
        figure.text(0.5, 0.5, text, ha="center", va="center", color=theme.muted, style="italic")
        return as_png(figure)


def draw_loss(facts: Facts, theme: Theme) -> bytes:
    """Loss by step of every run, in the colour of its data set."""
    names = [dataset.name for dataset in facts.datasets]
    curves = [
        (run.curve, theme.palette[names.index(run.dataset) % len(theme.palette)])
        for run in facts.runs
        if run.curve is not None
    ]
    return draw_curves(curves, theme)


def draw_curves(curves: Sequence[tuple[Curve, str]], theme: Theme) -> bytes:
    """Loss by step, a panel a curve, one logarithmic scale: raw pale, smoothed strong, held-out dashed, interruptions marked."""
    if not curves:
        return nothing(theme, "no training has written metrics")
    with styled(theme):
        figure, panels = canvas(len(curves), columns=3, height=2.9)
        everything = np.concatenate([values for curve, _ in curves for values in (curve.loss, curve.val_loss)])
        known = everything[np.isfinite(everything) & (everything > 0)]
        for panel, (curve, colour) in zip(panels, curves, strict=True):
            every = max(1, len(curve.steps) // MAX_POINTS)
            panel.plot(curve.steps[::every], curve.loss[::every], color=colour, alpha=0.3, linewidth=0.8)
            panel.plot(curve.steps, smooth(curve.loss), color=colour, linewidth=2)
            is_measured = np.isfinite(curve.val_loss)
            if is_measured.any():
                panel.plot(
                    curve.steps[is_measured], curve.val_loss[is_measured], color=theme.ink, linewidth=1.2,
                    linestyle=(0, (4, 2)), marker=".", markersize=4, label="held-out tiles",
                )  # fmt: skip
                panel.legend(loc="upper right", fontsize=7.5, labelcolor=theme.ink)
            for step in curve.segments:
                panel.axvline(step, color=theme.muted, linewidth=0.9, linestyle=(0, (1, 2.5)))
            for step in curve.resumes:
                panel.axvline(step, color=theme.ink, linewidth=1, linestyle=(0, (4, 3)))
                panel.annotate(
                    "resumed", (step, 1), xycoords=("data", "axes fraction"), fontsize=7.5, rotation=90,
                    xytext=(-3, -4), textcoords="offset points", ha="right", va="top", color=theme.muted,
                )  # fmt: skip
            panel.set_title(curve.run)
            panel.set_xlabel("step")
            if len(known):
                _log_axis(panel, float(np.quantile(known, 0.001)), float(known.max()))
        for panel in panels[::3]:
            panel.set_ylabel("training loss")
        return as_png(figure)


def _log_axis(panel: Axes, low: float, high: float) -> None:
    panel.set_yscale("log")
    panel.set_ylim(low * 0.9, high * 1.1)
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def draw_throughput(facts: Facts, theme: Theme) -> bytes:
    """Images a second by step, all runs in one panel, smoothed."""
    curves = [run.curve for run in facts.runs if run.curve is not None]
    curves = [curve for curve in curves if np.isfinite(curve.images_per_second).any()]
    if not curves:
        return nothing(theme, "no training has written its throughput")
    with styled(theme):
        figure, (panel,) = canvas(1, columns=1, height=2.4)
        for number, curve in enumerate(curves):
            colour = theme.palette[number % len(theme.palette)]
            panel.plot(curve.steps, smooth(curve.images_per_second), color=colour, linewidth=1.8, label=curve.run)
        panel.set_ylim(bottom=0)
        panel.set_xlabel("step")
        panel.set_ylabel("images a second")
        panel.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), labelcolor=theme.ink)
        return as_png(figure)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One score as a bar; `role` (untrained, start, step, final, codec) decides its colour.

    Attributes:
        value: its length.
        interval: of 95 %, None where it is not known.
        beside: what is said beside the value.
        floor: drawn as a line, None where there is none.
    """

    label: str
    role: str
    value: float
    interval: Sequence[float] | None
    beside: str
    floor: float | None
    comparable: bool


def role_of(at: str | int) -> str:
    """The role of an evaluation's score, by what was evaluated."""
    return "step" if isinstance(at, int) else at


def draw_fid(facts: Facts, theme: Theme) -> bytes:
    """The score that is told first, of each evaluation by data set."""
    groups: dict[str, list[Bar]] = {}
    for dataset in facts.datasets:
        for item in facts.evaluations_of(dataset.name):
            if item.score:
                bar = bar_of(asdict(item.score), label=item.label, role=role_of(item.at), measure=facts.measure)
                groups.setdefault(dataset.title, []).append(bar)
    return draw_bars(groups, theme, measure=facts.measure)


def bar_of(given: Mapping[str, Any], *, label: str, role: str, measure: Measure) -> Bar:
    """The bar of a score, given its record as the report's JSON has it."""
    same: dict[str, Any] = {"label": label, "role": role, "comparable": given["comparable"]}
    if measure == "FID":
        return Bar(value=given["fid"], interval=None, beside="", floor=given["floor"], **same)
    beside = f"FID {score(given['fid'])}, n = {min(given['n_real'], given['n_generated']):,}"
    return Bar(value=given["kid"], interval=given.get("kid_interval"), beside=beside, floor=None, **same)


def draw_bars(groups: Mapping[str, Sequence[Bar]], theme: Theme, *, measure: Measure) -> bytes:
    """A panel a group with its own scale, intervals as whiskers, and the floor as a dashed line."""
    if not groups:
        return nothing(theme, "no evaluation has been scored")
    most = max(map(len, groups.values()))
    with styled(theme):
        figure, panels = canvas(len(groups), columns=2, height=0.85 + 0.42 * most)
        for panel, (title, bars) in zip(panels, groups.items(), strict=True):
            _bars(panel, title, bars, theme, measure=measure)
        return as_png(figure)


def _bars(panel: Axes, title: str, bars: Sequence[Bar], theme: Theme, *, measure: Measure) -> None:
    panel.barh(
        range(len(bars)), [bar.value for bar in bars], color=[theme.roles[bar.role] for bar in bars], height=0.62
    )
    ends = [bar.interval or (bar.value, bar.value) for bar in bars]
    for place, (bar, (low, high)) in enumerate(zip(bars, ends, strict=True)):
        if bar.interval:
            panel.plot([low, high], [place, place], color=theme.ink, linewidth=1.3, marker="|", markersize=7)
        panel.annotate(
            score(bar.value), (high, place), xytext=(6, 0), textcoords="offset points", va="center", fontweight="bold"
        )
    floors = sorted({bar.floor for bar in bars if bar.floor is not None})
    for floor in floors:
        panel.axvline(floor, color=theme.ink, linewidth=1.2, linestyle=(0, (4, 3)))
    if floors:
        panel.annotate(
            f"floor {score(floors[0])}", (floors[0], 1), xycoords=("data", "axes fraction"), fontsize=8,
            xytext=(4, -1), textcoords="offset points", color=theme.ink, va="bottom",
        )  # fmt: skip
    panel.set_title(title, pad=16)
    interval = " with 95 % intervals" if any(bar.interval for bar in bars) else ""
    incomparable = "" if all(bar.comparable for bar in bars) else " (NOT comparable)"
    panel.set_xlabel(f"{measure}{interval}, lower is better{incomparable}")
    panel.set_yticks(range(len(bars)), ["\n".join(filter(None, [bar.label, bar.beside])) for bar in bars])
    panel.tick_params(axis="y", labelcolor=theme.ink)
    panel.xaxis.set_major_locator(MaxNLocator(6))
    panel.set_ylim(len(bars) - 0.4, -0.6)
    highest, lowest = max([high for _, high in ends] + floors), min(0.0, *(low for low, _ in ends))
    panel.set_xlim(lowest - 0.03 * (highest - lowest) if lowest else 0.0, highest + 0.18 * (highest - lowest) or 1.0)
    panel.grid(visible=False, axis="y")


def draw_stages(facts: Facts, theme: Theme) -> bytes:
    """Wall time of each stage, divided by data set."""
    stages = list(dict.fromkeys(timing.stage for timing in facts.timings))
    if not stages:
        return nothing(theme, "no stage has been run")
    titles = {dataset.name: dataset.title for dataset in facts.datasets}
    titles |= {timing.dataset: "other" for timing in facts.timings if timing.dataset not in titles}
    seconds = np.zeros((len(titles), len(stages)))
    for timing in facts.timings:
        seconds[list(titles).index(timing.dataset), stages.index(timing.stage)] += timing.seconds
    totals = seconds.sum(axis=0)
    unit, factor = next(pair for pair in UNITS if totals.max() >= 3 * pair[1] or pair[1] == 1)
    with styled(theme):
        figure, (panel,) = canvas(1, columns=1, height=0.8 + 0.3 * len(stages))
        left = np.zeros(len(stages))
        for number, (title, own) in enumerate(zip(titles.values(), seconds, strict=True)):
            colour = theme.muted if title == "other" else theme.palette[number % len(theme.palette)]
            panel.barh(range(len(stages)), own / factor, left=left / factor, color=colour, height=0.64, label=title)
            left += own
        for place, total in enumerate(totals):
            panel.annotate(span(total), (total / factor, place), xytext=(5, 0), textcoords="offset points", va="center")
        panel.set_yticks(range(len(stages)), stages)
        panel.tick_params(axis="y", labelcolor=theme.ink)
        panel.set_ylim(len(stages) - 0.4, -0.6)
        panel.set_xlim(0, totals.max() / factor * 1.14 or 1.0)
        panel.set_xlabel(unit)
        panel.grid(visible=False, axis="y")
        panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), labelcolor=theme.ink)
        return as_png(figure)


def draw_bands(datasets: Sequence[DatasetFacts], theme: Theme, *, columns: int = 2) -> bytes:
    """Train statistics of each band: the range mapped to [-1, 1], one standard deviation, the mean."""
    shown = [dataset for dataset in datasets if dataset.bands]
    if not shown:
        return nothing(theme, "no band statistics")
    with styled(theme):
        figure, panels = canvas(
            len(shown), columns=columns, height=2.5, width=WIDTH_INCHES if columns > 1 else WIDTH_INCHES / 2
        )
        for panel, dataset in zip(panels, shown, strict=True):
            for place, band in enumerate(dataset.bands):
                panel.plot([place, place], [band.low, band.high], color=theme.grid, linewidth=9, solid_capstyle="butt")
                ends = [max(band.low, band.mean - band.std), min(band.high, band.mean + band.std)]
                panel.plot([place, place], ends, color=theme.palette[0], linewidth=4.5, solid_capstyle="butt")
                panel.plot([place], [band.mean], marker="o", markersize=4.5, color=theme.ink, zorder=3)
            panel.set_xticks(range(len(dataset.bands)), [band.name for band in dataset.bands], fontsize=8)
            panel.set_xlim(-0.7, len(dataset.bands) - 0.3)
            panel.set_ylabel(dataset.units)
            panel.grid(visible=False, axis="x")
            panel.set_title(dataset.title)
        return as_png(figure)


def draw_samples(facts: Facts, theme: Theme) -> bytes:
    """Real tiles beside generated ones: a row a data set, a column an evaluation, its score above."""
    rows = [(dataset, facts.evaluations_of(dataset.name)) for dataset in facts.datasets]
    rows = [(dataset, items) for dataset, items in rows if dataset.grid and any(item.grid for item in items)]
    if not rows:
        return nothing(theme, "no samples have been generated")
    pictures = [
        [(dataset.grid, dataset.title, "real")]
        + [(item.grid, item.label, _said(item.score, facts.measure)) for item in items]
        for dataset, items in rows
    ]
    with styled(theme):
        return as_png(samples_figure(pictures))


def _said(score_of: Score | None, measure: Measure) -> str:
    if score_of is None:
        return f"{measure} not run"
    return f"{measure} {score(score_of.value(measure))}" + ("" if score_of.comparable else ", not comparable")


def samples_figure(rows: Sequence[Sequence[tuple[Path | None, str, str]]]) -> Figure:
    """Rows of pictures, each below both lines of its title, which are broken where they are wider; to be made inside `styled`."""
    columns = max(len(row) for row in rows)
    side = WIDTH_INCHES / columns
    titles = [[title_lines(name, side) + title_lines(said, side) for _, name, said in row] for row in rows]
    height = side + LINE_INCHES * (1 + max(len(lines) for row in titles for lines in row))
    figure = Figure(figsize=(WIDTH_INCHES, height * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for panel in grid.ravel():
        panel.set_axis_off()
    for panels, row, row_titles in zip(grid, rows, titles, strict=True):
        for panel, (path, _, _), lines in zip(panels, row, row_titles, strict=False):
            panel.set_title("\n".join(lines), fontsize=TITLE_SIZE)
            panel.set_anchor("N")  # below its title: the layout leaves room for what is above the place
            if path is not None:
                panel.imshow(imread(path), interpolation="antialiased")
    return figure


def title_lines(text: str, inches: float) -> list[str]:
    """Lines of a title that leave something free beside them over a picture of that width."""
    font = FontProperties(size=TITLE_SIZE, weight="bold")  # the type of titles in all themes
    renderer: Any = RendererAgg(1, 1, DPI)  # type: ignore[no-untyped-call]
    for letters in range(len(text), 1, -1):
        lines = wrap(text, letters)
        widths = [renderer.get_text_width_height_descent(line, font, ismath=False)[0] for line in lines]  # dots
        if max(widths) <= (inches - BETWEEN_TITLES) * DPI:
            return lines
    return list(text)


def thumbnail(path: Path, *, max_side: int) -> bytes:
    """A picture as PNG bytes, averaged over whole pixels where it is larger than `max_side`.

    Raises:
        UserError: the file is no picture.
    """
    try:
        pixels = imread(path)
    except (OSError, SyntaxError, ValueError) as error:
        raise problem(
            f"picture {path} cannot be read", got=error, expected="PNG", remedy="remove it and rerun its stage"
        ) from error
    factor = -(-max(pixels.shape[:2]) // max_side)
    if factor == 1:
        return path.read_bytes()
    height, width = (side // factor * factor for side in pixels.shape[:2])
    blocks = pixels[:height, :width, ...].reshape(height // factor, factor, width // factor, factor, -1)
    buffer = io.BytesIO()
    imsave(buffer, np.squeeze(blocks.mean(axis=(1, 3)), axis=-1) if pixels.ndim == 2 else blocks.mean(axis=(1, 3)))
    return buffer.getvalue()
