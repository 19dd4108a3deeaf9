"""Spectra and indices of generated and real images, one panel per band and index."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dithc.report.figures import theme
from dithc.report.figures.canvas import Figure, canvas, placeholder
from dithc.report.figures.scores import role_of
from dithc.report.records import EvaluationRecord, ReportRecords

COLUMNS = 4
Sides = list[tuple[EvaluationRecord, dict[str, Any]]]


def draw_pixels(records: ReportRecords) -> Figure:
    """Draw the radial power of each band, then the distribution of each index."""
    panels = [panel for dataset in records.datasets for panel in _panels(records, dataset.name)]
    if not panels:
        return placeholder("no evaluation has spectra or indices")
    figure, axes = canvas(len(panels), columns=COLUMNS, height=2.2)
    for index, (panel, (title, kind, lines)) in enumerate(zip(axes, panels, strict=True)):
        panel.set_title(title)
        (_draw_spectra if kind == "spectra" else _draw_histograms)(panel, lines)
        if index == 0:
            panel.legend(fontsize=7, labelcolor=theme.INK)
    return figure


def _panels(records: ReportRecords, dataset: str) -> Iterator[tuple[str, str, list[tuple[str, str, Any, Any]]]]:
    """Return title, kind, and label, role, real and generated values of each evaluation."""
    sides: Sides = [(item, item.curves) for item in records.evaluations_of(dataset) if item.curves]
    for index, band in enumerate(next((curves["band_names"] for _, curves in sides), [])):
        lines = [
            (
                item.label,
                role_of(item.checkpoint),
                *(curves["spectra"]["power"][side][index] for side in ("real", "generated")),
            )
            for item, curves in sides
            if "spectra" in curves
        ]
        if lines:
            yield f"{records.dataset(dataset).title}: {band}", "spectra", lines
    indices = dict.fromkeys(name for _, curves in sides for name in curves.get("indices", {}) if name != "absent")
    for name in indices:
        lines = [
            (item.label, role_of(item.checkpoint), *(stats[name]["histogram"][side] for side in ("real", "generated")))
            for item, stats in ((item, curves.get("indices", {})) for item, curves in sides)
            if name in stats
        ]
        yield f"{records.dataset(dataset).title}: {name}", "indices", lines


def _draw_spectra(panel: Any, lines: list[tuple[str, str, Any, Any]]) -> None:
    rings = np.arange(1, len(lines[0][2]) + 1)
    for label, role, _, generated in lines:
        panel.plot(rings, np.array(generated), color=theme.ROLES[role], linewidth=1.4, label=label)
    panel.plot(rings, np.array(lines[0][2]), color=theme.INK, linewidth=1.1, linestyle=(0, (4, 2)), label="real")
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.tick_params(axis="both", which="minor", labelbottom=False, labelleft=False)
    panel.set_xlabel("cycles per tile")
    panel.set_ylabel("power")


def _draw_histograms(panel: Any, lines: list[tuple[str, str, Any, Any]]) -> None:
    edges = np.linspace(-1, 1, len(lines[0][2]) + 1)
    for label, role, _, generated in lines:
        panel.stairs(_share(generated), edges, color=theme.ROLES[role], linewidth=1.4, label=label)
    panel.stairs(_share(lines[0][2]), edges, color=theme.INK, linewidth=1.1, linestyle=(0, (4, 2)), label="real")
    bins = np.flatnonzero(np.sum([np.add(real, generated) for _, _, real, generated in lines], axis=0))
    if len(bins):
        panel.set_xlim(edges[max(bins[0] - 2, 0)], edges[min(bins[-1] + 3, len(edges) - 1)])
    panel.set_xlabel("index")
    panel.set_ylabel("% of pixels")


def _share(counts: list[int]) -> Any:
    return 100 * np.array(counts) / max(sum(counts), 1)
