"""Calibration of restorations: coverage of central intervals and rank histograms, one panel per group of bands."""

import numpy as np

from dithc.report.figures import theme
from dithc.report.figures.canvas import Figure, canvas, placeholder
from dithc.report.records import ReportRecords

COLUMNS = 4


def draw_calibration(records: ReportRecords) -> Figure:
    """Draw the share of the truth inside central intervals of the members over their nominal share."""
    panels = [
        (f"{item.name}: {group}", methods["ensemble"]["rank_histogram"])
        for item in records.restorations
        for group, methods in item.scores.items()
        if "ensemble" in methods
    ]
    if not panels:
        return placeholder("no restoration was compared with withheld pixels")
    figure, axes = canvas(len(panels), columns=COLUMNS, height=2.4)
    for panel, (title, histogram) in zip(axes, panels, strict=True):
        nominal, observed = coverage_curve(histogram)
        panel.set_title(title)
        panel.plot([0, 1], [0, 1], color=theme.MUTED, linewidth=1.0, linestyle=(0, (4, 2)), label="calibrated")
        panel.plot(
            nominal, observed, color=theme.ROLES["final"], linewidth=1.6, marker="o", markersize=3, label="members"
        )
        panel.set_xlabel("nominal coverage")
        panel.set_ylabel("observed coverage")
    axes[0].legend(fontsize=7, labelcolor=theme.INK)
    return figure


def coverage_curve(histogram: list[float]) -> tuple[list[float], list[float]]:
    """Return nominal and observed coverage of the intervals between the k-th smallest and largest of K members.

    `histogram` (K + 1) has the shares of the truth by the number of smaller members.
    """
    count = len(histogram)
    ends = range(1, (count + 1) // 2)
    nominal = [(count - 2 * end) / count for end in ends]
    observed = [float(np.sum(histogram[end : count - end])) for end in ends]
    return nominal, observed
