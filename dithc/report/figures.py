"""The one place matplotlib enters: every figure of the report, as PNG bytes in a light or a dark theme."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread, imsave
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from dithc.log import problem
from dithc.report.curves import smooth
from dithc.report.facts import DatasetFacts, EvaluationFacts, Facts

DPI = 170
WIDTH_INCHES = 10.4
MAX_POINTS = 1500  # of a raw curve: more than the figure has pixels for


@dataclass(frozen=True, kw_only=True)
class Theme:
    """Colours of a figure; the palettes are those of Okabe and Ito, which colour-blind readers can tell apart."""

    face: str
    ink: str
    muted: str
    grid: str
    palette: tuple[str, ...]
    roles: dict[str, str]


LIGHT = Theme(
    face="#ffffff",
    ink="#1d2733",
    muted="#697586",
    grid="#e4e8ee",
    palette=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    roles={"untrained": "#9aa4b2", "start": "#e69f00", "final": "#0072b2"},
)
DARK = Theme(
    face="#161c24",
    ink="#e3e8ef",
    muted="#9aa5b4",
    grid="#2a333f",
    palette=("#56b4e9", "#e8823a", "#2fc79b", "#d99cbf", "#f0b73c", "#8fa8c8"),
    roles={"untrained": "#6d7887", "start": "#f0b73c", "final": "#56b4e9"},
)
Draw = Callable[[Theme], bytes]


@contextmanager
def _style(theme: Theme) -> Iterator[None]:
    settings = {
        "font.size": 9.5,
        "axes.titlesize": 10.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlepad": 9,
        "axes.edgecolor": theme.grid,
        "axes.labelcolor": theme.muted,
        "axes.titlecolor": theme.ink,
        "axes.facecolor": theme.face,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": theme.grid,
        "grid.linewidth": 0.8,
        "figure.facecolor": theme.face,
        "text.color": theme.ink,
        "xtick.color": theme.muted,
        "ytick.color": theme.muted,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "xtick.minor.size": 0,
        "ytick.minor.size": 0,
        "legend.frameon": False,
    }
    with matplotlib.rc_context(settings):
        yield


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def _panels(count: int, *, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels in rows; `height` inches a row."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(WIDTH_INCHES, height * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels[count:]:
        panel.set_visible(False)
    return figure, list(panels[:count])


def _nothing(theme: Theme, text: str) -> bytes:
    """A figure that says what was not run."""
    with _style(theme):
        figure = Figure(figsize=(WIDTH_INCHES, 1.2))
        figure.text(0.5, 0.5, text, ha="center", va="center", color=theme.muted, style="italic")
        return _png(figure)


def short(value: float) -> str:
    """A number in at most four significant digits, without an exponent where it is readable without."""
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:.2e}"


def draw_loss(facts: Facts, theme: Theme) -> bytes:
    """Loss by step, a panel a run on one logarithmic scale: raw pale, smoothed strong, interruptions marked."""
    curves = [(run, run.curve) for run in facts.runs if run.curve is not None]
    if not curves:
        return _nothing(theme, "no training has written metrics")
    with _style(theme):
        figure, panels = _panels(len(curves), columns=3, height=2.9)
        everything = np.concatenate([curve.loss for _, curve in curves])
        known = everything[np.isfinite(everything) & (everything > 0)]
        names = [dataset.name for dataset in facts.datasets]
        for panel, (run, curve) in zip(panels, curves, strict=True):
            colour = theme.palette[names.index(run.dataset) % len(theme.palette)]
            every = max(1, len(curve.steps) // MAX_POINTS)
            panel.plot(curve.steps[::every], curve.loss[::every], color=colour, alpha=0.28, linewidth=0.8)
            panel.plot(curve.steps, smooth(curve.loss), color=colour, linewidth=2)
            for step in curve.segments:
                panel.axvline(step, color=theme.muted, linewidth=0.8, linestyle=(0, (1, 3)))
            for step in curve.resumes:
                panel.axvline(step, color=theme.ink, linewidth=1, linestyle=(0, (4, 3)))
                panel.annotate(
                    "resumed", (step, 1), xycoords=("data", "axes fraction"), fontsize=7.5, rotation=90,
                    xytext=(-3, -4), textcoords="offset points", ha="right", va="top", color=theme.muted,
                )  # fmt: skip
            panel.set_title(f"{run.name}")
            panel.set_xlabel("step")
            _log_axis(panel, float(np.quantile(known, 0.001)), float(known.max()))
        for panel in panels[:: min(3, len(panels))]:
            panel.set_ylabel("training loss")
        return _png(figure)


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
        return _nothing(theme, "no training has written its throughput")
    with _style(theme):
        figure, (panel,) = _panels(1, columns=1, height=2.4)
        for number, curve in enumerate(curves):
            colour = theme.palette[number % len(theme.palette)]
            panel.plot(curve.steps, smooth(curve.images_per_second), color=colour, linewidth=1.8, label=curve.run)
        panel.set_ylim(bottom=0)
        panel.set_xlabel("step")
        panel.set_ylabel("images a second")
        panel.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), labelcolor=theme.ink)
        return _png(figure)


def draw_fid(facts: Facts, theme: Theme) -> bytes:
    """FID of each evaluation, a panel a data set with its own scale, and the floor as a dashed line."""
    groups = [(dataset, [item for item in facts.evaluations_of(dataset.name) if item.score]) for dataset in facts.datasets]
    groups = [(dataset, items) for dataset, items in groups if items]
    if not groups:
        return _nothing(theme, "no evaluation has been scored")
    most = max(len(items) for _, items in groups)
    with _style(theme):
        figure, panels = _panels(len(groups), columns=2, height=0.85 + 0.42 * most)
        for panel, (dataset, items) in zip(panels, groups, strict=True):
            _fid_panel(panel, dataset, items, theme)
        return _png(figure)


def _fid_panel(panel: Axes, dataset: DatasetFacts, items: Sequence[EvaluationFacts], theme: Theme) -> None:
    scores = [item.score for item in items if item.score]
    values = [score.fid for score in scores]
    colours = [theme.roles[item.at] for item in items]
    panel.barh(range(len(items)), values, color=colours, height=0.62)
    for place, value in enumerate(values):
        panel.annotate(
            short(value), (value, place), xytext=(5, 0), textcoords="offset points", va="center", fontweight="bold"
        )
    floors = sorted({score.floor for score in scores if score.floor is not None})
    for floor in floors:
        panel.axvline(floor, color=theme.ink, linewidth=1.2, linestyle=(0, (4, 3)))
    if floors:
        panel.annotate(
            f"floor {short(floors[0])}", (floors[0], 0), xycoords=("data", "axes fraction"), fontsize=8,
            xytext=(4, 3), textcoords="offset points", color=theme.ink, va="bottom",
        )  # fmt: skip
    comparable = all(score.comparable for score in scores)
    panel.set_title(dataset.title + ("" if comparable else "  (not comparable with published FID)"))
    panel.set_yticks(range(len(items)), [item.label for item in items])
    panel.tick_params(axis="y", labelcolor=theme.ink)
    panel.set_ylim(len(items) - 0.4, -0.6)
    panel.set_xlim(0, max([*values, *floors]) * 1.18)
    panel.set_xlabel("FID, lower is better")
    panel.grid(visible=False, axis="y")


def draw_stages(facts: Facts, theme: Theme) -> bytes:
    """Wall time of each stage, divided by data set."""
    stages = list(dict.fromkeys(timing.stage for timing in facts.timings))
    if not stages:
        return _nothing(theme, "no stage has been run")
    names = [dataset.name for dataset in facts.datasets]
    with _style(theme):
        figure, (panel,) = _panels(1, columns=1, height=0.8 + 0.3 * len(stages))
        for name in [*names, *sorted({timing.dataset for timing in facts.timings} - set(names))]:
            colour = theme.palette[names.index(name) % len(theme.palette)] if name in names else theme.muted
            for stage in stages:
                own = [item.seconds for item in facts.timings if item.stage == stage and item.dataset == name]
                before = [
                    item.seconds
                    for item in facts.timings
                    if item.stage == stage and item.dataset in names[: names.index(name) if name in names else None]
                ]
                panel.barh(stages.index(stage), sum(own), left=sum(before), color=colour, height=0.64)
            panel.barh([0], [0], color=colour, label=facts.dataset(name).title if name in names else "other")
        totals = [sum(item.seconds for item in facts.timings if item.stage == stage) for stage in stages]
        for place, total in enumerate(totals):
            panel.annotate(span(total), (total, place), xytext=(5, 0), textcoords="offset points", va="center")
        panel.set_yticks(range(len(stages)), stages)
        panel.tick_params(axis="y", labelcolor=theme.ink)
        panel.set_ylim(len(stages) - 0.4, -0.6)
        panel.set_xlim(0, max(totals) * 1.12 or 1.0)
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: span(value)))
        panel.grid(visible=False, axis="y")
        panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), labelcolor=theme.ink)
        return _png(figure)


def span(seconds: float) -> str:
    """A duration in the unit a person would choose."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 or seconds == 0 else f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def draw_bands(datasets: Sequence[DatasetFacts], theme: Theme) -> bytes:
    """Train statistics of each band: the range mapped to [-1, 1], one standard deviation, the mean."""
    shown = [dataset for dataset in datasets if dataset.bands]
    if not shown:
        return _nothing(theme, "no band statistics")
    with _style(theme):
        figure, panels = _panels(len(shown), columns=2, height=2.5)
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
        return _png(figure)


def draw_samples(facts: Facts, theme: Theme) -> bytes:
    """Real tiles beside generated ones: a row a data set, a column an evaluation, its FID above."""
    rows = [(dataset, facts.evaluations_of(dataset.name)) for dataset in facts.datasets]
    rows = [(dataset, items) for dataset, items in rows if dataset.grid and any(item.grid for item in items)]
    if not rows:
        return _nothing(theme, "no samples have been generated")
    columns = 1 + max(len(items) for _, items in rows)
    with _style(theme):
        figure = Figure(figsize=(WIDTH_INCHES, (WIDTH_INCHES / columns + 0.35) * len(rows)), layout="constrained")
        grid = figure.subplots(len(rows), columns, squeeze=False)
        for panel in grid.ravel():
            panel.set_axis_off()
        for line, (dataset, items) in zip(grid, rows, strict=True):
            _picture(line[0], dataset.grid, f"{dataset.title}: real")
            for panel, item in zip(line[1:], items, strict=False):
                score = f", FID {short(item.score.fid)}" if item.score else ""
                _picture(panel, item.grid, f"{item.label}{score}")
        return _png(figure)


def _picture(panel: Axes, path: Path | None, title: str) -> None:
    panel.set_title(title, fontsize=8.5)
    if path is not None:
        panel.imshow(imread(path), interpolation="antialiased")


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
