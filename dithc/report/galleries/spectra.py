"""Values by band and power by frequency of real tiles and generated images.

Legend: n images, C bands, S side of an image, R rings of frequencies.
"""

import numpy as np
from numpy.typing import NDArray

from dithc.report.figures import spectra
from dithc.report.galleries.image_sets import RealTiles, Scaled, first_scaled
from dithc.report.records import ReportRecords

IMAGES = 64  # per side
AT = ("start", "final", "codec")  # drawn evaluations, without those during training


def measure_spectra(records: ReportRecords, dataset: str) -> spectra.Spectra | None:
    """Measure a dataset and its evaluations; None without tiles or comparable evaluations."""
    record = records.dataset(dataset)
    items = [item for item in records.evaluations_of(dataset) if item.checkpoint in AT and item.files]
    if record.tiles_folder is None or not items:
        return None
    real = RealTiles(record.tiles_folder, seed=records.seed, max_tiles=IMAGES)
    stretch = real.tiles.stretch
    sides = [_side("real tiles", "real", real.scaled)]
    for item in items:
        scaled = first_scaled(item.files.samples, IMAGES, bands=len(real.bands)) if item.files else None
        if scaled is not None:
            sides.append(_side(item.label, str(item.checkpoint), scaled))
    if len(sides) == 1:
        return None
    low, high = stretch.ends(list(range(len(real.bands))))
    return spectra.Spectra(bands=real.bands, units=record.units, low=low, high=high, sides=sides)


def _side(label: str, role: str, scaled: Scaled) -> spectra.SpectraSet:
    by_band = np.moveaxis(scaled, 1, 0).reshape(scaled.shape[1], -1)  # (C, n S S)
    low, median, high = np.percentile(by_band, (5, 50, 95), axis=1)
    return spectra.SpectraSet(
        label=label, role=role, count=len(scaled), low=low, median=median, high=high, power=radial_power(scaled)
    )


def radial_power(images: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the mean power (R,) of images (n, C, S, S) without their means, in rings of one cycle per tile."""
    values = images - images.mean(axis=(2, 3), keepdims=True)
    power = (np.abs(np.fft.fft2(values)) ** 2).mean(axis=(0, 1)) / images.shape[-1] ** 4  # (S, S)
    cycles = np.fft.fftfreq(images.shape[-1], 1 / images.shape[-1])
    ring = np.hypot(*np.meshgrid(cycles, cycles, indexing="ij")).round().astype(int).ravel()
    rings = images.shape[-1] // 2
    sums, counts = np.bincount(ring, power.ravel()), np.bincount(ring)
    ring_power: NDArray[np.float64] = sums[1 : rings + 1] / counts[1 : rings + 1]
    return ring_power
