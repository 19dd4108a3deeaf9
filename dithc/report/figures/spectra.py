"""Values by band and power by frequency of real tiles and generated images.

Legend: C bands, R rings of frequencies.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.report.figures import theme
from dithc.report.figures.canvas import Figure, canvas

REAL = "real"
DASHED = (0, (4, 2))


@dataclass(frozen=True, kw_only=True, eq=False)
class SpectraSet:
    """One set of images.

    Attributes:
        low, median, high: percentiles 5, 50 and 95 of each band (C,), from -1 to 1.
    """

    label: str
    role: str  # `real`, or the role of the evaluation, which selects the color
    count: int
    low: NDArray[np.float64]
    median: NDArray[np.float64]
    high: NDArray[np.float64]
    power: NDArray[np.float64]  # power by ring (R,), from one cycle per tile


@dataclass(frozen=True, kw_only=True, eq=False)
class Spectra:
    """All sides of a dataset, real tiles first; `low` and `high` are -1 and 1 in `units`, by band."""

    bands: list[str]
    units: str
    low: list[float]
    high: list[float]
    sides: list[SpectraSet]

    def physical(self, scaled: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert values by band (C,) to `units`."""
        low, high = np.array(self.low), np.array(self.high)
        band_values: NDArray[np.float64] = low + (scaled + 1) / 2 * (high - low)
        return band_values


def draw_spectra(spectra: Spectra) -> Figure:
    """Draw values by band, and power relative to real tiles by frequency."""
    figure, (bands, rings) = canvas(2, columns=2, height=3.2)
    _draw_bands(bands, spectra)
    _draw_rings(rings, spectra)
    return figure


def _style(side: SpectraSet) -> dict[str, Any]:
    return {"color": theme.INK, "linestyle": DASHED} if side.role == REAL else {"color": theme.ROLES[side.role]}


def _draw_bands(panel: Any, spectra: Spectra) -> None:
    positions = np.arange(len(spectra.bands))
    for number, side in enumerate(spectra.sides):
        shift = (number - (len(spectra.sides) - 1) / 2) * 0.16
        low, median, high = (spectra.physical(values) for values in (side.low, side.median, side.high))
        color = _style(side)["color"]
        panel.vlines(positions + shift, low, high, color=color, linewidth=2.2, alpha=0.45)
        panel.plot(positions + shift, median, marker="o", markersize=4, linewidth=0, color=color, label=side.label)
    panel.set_xticks(positions, spectra.bands, fontsize=8)
    panel.set_ylabel(spectra.units)
    panel.grid(visible=False, axis="x")
    panel.set_title("Values: median, percentiles 5 to 95; colors as at the right")


def _draw_rings(panel: Any, spectra: Spectra) -> None:
    real, *generated_sides = spectra.sides
    rings = np.arange(1, len(real.power) + 1)
    panel.axhline(0.0, color=theme.INK, linewidth=1.2, linestyle=DASHED, label=real.label)
    for side in generated_sides:
        if side.power.shape == real.power.shape:
            ratio = 10 * np.log10(np.maximum(side.power, 1e-30) / np.maximum(real.power, 1e-30))
            panel.plot(rings, ratio, linewidth=1.8, label=side.label, **_style(side))
    panel.set_xscale("log", base=2)
    panel.set_xticks([2**power for power in range(len(rings).bit_length())])
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.minorticks_off()
    panel.set_xlabel("cycles per tile")
    panel.set_ylabel("dB over real tiles")
    panel.set_title("Power by frequency, all bands; below 0: too smooth")
    panel.legend(fontsize=8, labelcolor=theme.INK)
