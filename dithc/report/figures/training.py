"""Curves of runs: loss of train and held-out tiles above the learning rate, and images per second."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dithc.core.measurements import short
from dithc.report.collect import smooth
from dithc.report.figures import theme
from dithc.report.figures.canvas import Figure, canvas, grid, number_log_axis, placeholder
from dithc.report.records import Curve, ReportRecords

COLUMNS, LOSS_INCHES, RATE_INCHES = 3, 2.7, 1.0
MAX_POINTS = 1500  # of a raw curve, more than the pixels of a panel
LEGEND_INCHES = 0.21  # height of a line of the legend


RANKS_INCHES, RANK_INCHES, MAX_NAMED_RANKS = 1.3, 0.2, 16


def draw_loss(records: ReportRecords) -> Figure:
    """Draw loss and learning rate of every run, colored by dataset."""
    names = [dataset.name for dataset in records.datasets]
    curves = [
        (run.curve, theme.PALETTE[names.index(run.dataset) % len(theme.PALETTE)])
        for run in records.runs
        if run.curve is not None
    ]
    return draw_curves(curves)


def draw_curves(curves: Sequence[tuple[Curve, str]]) -> Figure:
    """Draw loss above learning rate, a pair of panels per curve: raw pale, smoothed strong, held-out dashed."""
    if not curves:
        return placeholder("metrics: not run")
    columns = min(COLUMNS, len(curves))
    rows = -(-len(curves) // columns)
    figure, panels = grid([LOSS_INCHES, RATE_INCHES] * rows, columns=columns)
    losses = np.concatenate([values for curve, _ in curves for values in (curve.loss, curve.val_loss)])
    positive_losses = losses[np.isfinite(losses) & (losses > 0)]
    pairs = [pair for row in range(rows) for pair in zip(*panels[2 * row : 2 * row + 2], strict=True)]
    for panel in (panel for pair in pairs[len(curves) :] for panel in pair):
        panel.set_visible(False)
    for row in range(rows):
        panels[2 * row][0].set_ylabel("loss")
        panels[2 * row + 1][0].set_ylabel("learning\nrate")
    for (loss, rate), (curve, color) in zip(pairs, curves, strict=False):
        _draw_loss(loss, curve, color)
        if len(positive_losses):
            loss.set_yscale("log")
            loss.set_ylim(0.9 * float(np.quantile(positive_losses, 0.001)), 1.1 * float(positive_losses.max()))
            number_log_axis(loss.yaxis)
        _draw_rate(rate, curve)
        rate.set_xlim(loss.get_xlim())
    return figure


def _draw_loss(panel: Axes, curve: Curve, color: str) -> None:
    every = max(1, len(curve.steps) // MAX_POINTS)
    panel.plot(curve.steps[::every], curve.loss[::every], color=color, alpha=0.3, linewidth=0.8)
    panel.plot(curve.steps, smooth(curve.loss), color=color, linewidth=2, label="train tiles")
    is_measured = np.isfinite(curve.val_loss)
    if is_measured.any():
        panel.plot(
            curve.steps[is_measured], curve.val_loss[is_measured], color=theme.INK, linewidth=1.4,
            linestyle=(0, (4, 2)), marker="o", markersize=3.5, label="held-out tiles",
        )  # fmt: skip
    panel.legend(loc="upper right", fontsize=8, labelcolor=theme.INK)
    for step in curve.segments:
        panel.axvline(step, color=theme.MUTED, linewidth=0.9, linestyle=(0, (1, 2.5)))
    for step in curve.resumes:
        panel.axvline(step, color=theme.INK, linewidth=1, linestyle=(0, (4, 3)))
        panel.annotate(
            "resumed", (step, 1), xycoords=("data", "axes fraction"), fontsize=7.5, rotation=90,
            xytext=(-3, -4), textcoords="offset points", ha="right", va="top", color=theme.MUTED,
        )  # fmt: skip
    panel.set_title(curve.run)
    panel.tick_params(axis="x", labelbottom=False)
    panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def _draw_rate(panel: Axes, curve: Curve) -> None:
    """Draw the learning rate from 0."""
    panel.plot(curve.steps, curve.lr, color=theme.INK, linewidth=1.2)
    rates = curve.lr[np.isfinite(curve.lr)]
    highest = float(rates.max()) if len(rates) else 1.0
    panel.set_ylim(0, 1.3 * highest or 1.0)
    panel.set_yticks([0, highest], ["0", short(highest)])
    panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    panel.set_xlabel("step")


def draw_throughput(records: ReportRecords) -> Figure:
    """Draw smoothed images per second of all runs in one panel."""
    curves = [run.curve for run in records.runs if run.curve is not None]
    curves = [curve for curve in curves if np.isfinite(curve.images_per_second).any()]
    if not curves:
        return placeholder("throughput: not run")
    figure, (panel,) = canvas(1, columns=1, height=max(2.4, LEGEND_INCHES * (len(curves) + 2)))
    for number, curve in enumerate(curves):
        color = theme.PALETTE[number % len(theme.PALETTE)]
        panel.plot(curve.steps, smooth(curve.images_per_second), color=color, linewidth=1.8, label=curve.run)
    panel.set_ylim(bottom=0)
    panel.set_xlabel("step")
    panel.set_ylabel("images per second")
    panel.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), labelcolor=theme.INK)
    return figure


def draw_ranks(records: ReportRecords) -> Figure:
    """Draw the time of each rank, relative to the median of the other ranks, against the step; one panel per run."""
    curves = [run.curve for run in records.runs if run.curve is not None and run.curve.ranks.get("ratios")]
    if not curves:
        return placeholder("times of ranks: not measured")
    heights = [min(4.0, RANKS_INCHES + RANK_INCHES * len(curve.ranks["nodes"])) for curve in curves]
    figure, panels = grid(heights)
    for (panel,), curve in zip(panels, curves, strict=True):
        nodes, ends = curve.ranks["nodes"], curve.ranks["last_steps"]
        first = 2 * ends[0] - ends[1] if len(ends) > 1 else 0
        image = panel.imshow(
            np.array(curve.ranks["ratios"]).T, aspect="auto", interpolation="nearest", cmap="RdBu_r", vmin=0.5, vmax=1.5,
            extent=(first, ends[-1], len(nodes) - 0.5, -0.5),
        )  # fmt: skip
        panel.yaxis.set_major_locator(MaxNLocator(8, integer=True))
        if len(nodes) <= MAX_NAMED_RANKS:
            panel.set_yticks(range(len(nodes)), [f"{rank}, {node}" for rank, node in enumerate(nodes)])
        panel.set(title=f"{curve.run}: time of each rank / median of the others", xlabel="step", ylabel="rank, node")
        panel.grid(visible=False)
        figure.colorbar(image, ax=panel)
    return figure
