"""Train statistics of the bands of data sets."""

from collections.abc import Sequence

from dithc.report.facts import DatasetFacts
from dithc.report.figures import theme
from dithc.report.figures.canvas import as_png, canvas, nothing, styled


def draw_bands(datasets: Sequence[DatasetFacts]) -> bytes:
    """Train statistics of each band: the range mapped to [-1, 1], one standard deviation, the mean."""
    shown = [dataset for dataset in datasets if dataset.bands]
    if not shown:
        return nothing("no band statistics")
    with styled():
        figure, panels = canvas(len(shown), columns=2, height=2.5)
        for panel, dataset in zip(panels, shown, strict=True):
            for place, band in enumerate(dataset.bands):
                panel.plot([place, place], [band.low, band.high], color=theme.GRID, linewidth=9, solid_capstyle="butt")
                ends = [max(band.low, band.mean - band.std), min(band.high, band.mean + band.std)]
                panel.plot([place, place], ends, color=theme.PALETTE[0], linewidth=4.5, solid_capstyle="butt")
                panel.plot([place], [band.mean], marker="o", markersize=4.5, color=theme.INK, zorder=3)
            panel.set_xticks(range(len(dataset.bands)), [band.name for band in dataset.bands], fontsize=8)
            panel.set_xlim(-0.7, len(dataset.bands) - 0.3)
            panel.set_ylabel(dataset.units)
            panel.grid(visible=False, axis="x")
            panel.set_title(dataset.title)
        return as_png(figure)
