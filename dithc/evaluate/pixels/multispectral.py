"""Distances of the pixels of generated and real images by band, in the units of the dataset.

Pure functions of `PixelStatistics`. Legend: C bands, V stored values, I indices, R rings.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.core.image_quality import spectral_angles
from dithc.core.logging import user_error
from dithc.evaluate.pixels.band_roles import INDICES, ROLES_NM
from dithc.evaluate.pixels.pixel_file import BINS, PixelStatistics
from dithc.evaluate.pixels.spectra import log_spectral_distance
from dithc.evaluate.statistics import FloatArray

QUANTILES = (0.05, 0.5, 0.95)
BARS = 100  # bars of a drawn histogram


def wasserstein(a: NDArray[np.int64], b: NDArray[np.int64], *, step: float) -> float:
    """Return the 1-Wasserstein distance of counts a and b (V,), not all 0, on a grid of spacing `step`."""
    difference = np.cumsum(a) / a.sum() - np.cumsum(b) / b.sum()  # (V,)
    return float(np.abs(difference).sum() * step)


def spectral_angle(a: FloatArray, b: FloatArray) -> float | None:
    """Return the angle of two spectra (C,) in degrees, independent of brightness; None for black."""
    return _finite(float(spectral_angles(a, b, axis=0)))


def correlation(pixels: PixelStatistics) -> FloatArray:
    """Return the correlation of bands over all pixels (C, C); NaN for a constant band."""
    total, mean = pixels.class_pixels.sum(), pixels.class_sums.sum(axis=0) / pixels.class_pixels.sum()  # (C,)
    covariance = pixels.products / total - np.outer(mean, mean)
    deviations = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(covariance / np.outer(deviations, deviations))


def of_bands(real: PixelStatistics, generated: PixelStatistics) -> dict[str, Any]:
    """Return distances of band distributions and of band correlations, and angles of mean spectra in total and by class."""
    _require_same(real, generated)
    a, b = _align(real, generated)
    distances = {
        band: wasserstein(a[index], b[index], step=abs(float(real.scale[index])))
        for index, band in enumerate(real.bands)
    }
    numbers: dict[str, Any] = {"units": real.units, "wasserstein": distances}
    if len(real.bands) < 2:
        return numbers | {"absent": ["spectral angle and correlation: only one band"]}
    correlations = [correlation(matrix) for matrix in (real, generated)]
    differences = np.abs(correlations[0] - correlations[1])[np.triu_indices(len(real.bands), 1)]
    labels = sorted(set(real.classes.tolist()) & set(generated.classes.tolist()))
    angles = {str(label): spectral_angle(_mean(real, label), _mean(generated, label)) for label in labels}
    numbers |= {"spectral_angle_deg": spectral_angle(_mean(real), _mean(generated))}
    if len(real.classes) > 1 and angles:
        numbers |= {"spectral_angle_deg_by_class": angles}
    matrices = zip(("real", "generated"), correlations, strict=True)
    return numbers | {
        "correlation_difference": _finite(differences.mean()),
        "correlation": {name: [[_finite(value) for value in row] for row in matrix] for name, matrix in matrices},
    }


def of_indices(real: PixelStatistics, generated: PixelStatistics) -> dict[str, Any]:
    """Return the distance of each index distribution and quantiles of both sets; reasons for indices without bands."""
    _require_same(real, generated)
    numbers: dict[str, Any] = {}
    sides = {"real": real, "generated": generated}
    for index, name in enumerate(real.index_names):
        a, b = real.indices[index], generated.indices[index]
        numbers[name] = {
            "wasserstein": wasserstein(a, b, step=2 / BINS) if a.any() and b.any() else None,
            "quantiles": {side: _quantiles(set_.indices[index]) for side, set_ in sides.items()},
            "undefined": {side: float(set_.undefined[index] / set_.class_pixels.sum()) for side, set_ in sides.items()},
            "histogram": {
                side: set_.indices[index].reshape(BARS, -1).sum(axis=1).tolist() for side, set_ in sides.items()
            },
        }
    absent = [
        f"{name}: no band is {' and none '.join(_role_range(role) for role in roles)}, or wavelengths are unknown"
        for name, roles in INDICES.items()
        if name not in numbers
    ]
    return numbers | ({"absent": absent} if absent else {})


def of_spectra(real: PixelStatistics, generated: PixelStatistics) -> dict[str, Any]:
    """Return the log-spectral distance of each band in decibels, and both spectra."""
    _require_same(real, generated)
    distances = log_spectral_distance(real.power, generated.power)
    return {
        "log_spectral_distance_db": {band: _finite(value) for band, value in zip(real.bands, distances, strict=True)},
        "images": [real.spectra, generated.spectra],
        "power": {"real": real.power.tolist(), "generated": generated.power.tolist()},
    }


def _align(*sets: PixelStatistics) -> list[NDArray[np.int64]]:
    """Return the counts of each set (C, V) on a common grid."""
    ranges = [(pixels.first, pixels.first + pixels.counts.shape[1]) for pixels in sets]
    first, last = min(start for start, _ in ranges), max(stop for _, stop in ranges)
    margins = [((0, 0), (start - first, last - stop)) for start, stop in ranges]
    return [np.pad(pixels.counts, margin) for pixels, margin in zip(sets, margins, strict=True)]


def _mean(pixels: PixelStatistics, label: int | None = None) -> FloatArray:
    """Return the mean spectrum (C,) of all pixels or of a class, in the units of the dataset."""
    rows = slice(None) if label is None else pixels.classes == label
    stored = pixels.class_sums[rows].sum(axis=0) / pixels.class_pixels[rows].sum()  # (C,)
    return np.asarray(stored * pixels.scale + pixels.offset)


def _quantiles(counts: NDArray[np.int64]) -> list[float] | None:
    """Return the center of the bin of [-1, 1] that contains each of QUANTILES."""
    if not counts.any():
        return None
    bins = np.searchsorted(np.cumsum(counts), np.array(QUANTILES) * counts.sum())
    return [float((index + 0.5) * 2 / BINS - 1) for index in bins]


def _role_range(role: str) -> str:
    center, limit = ROLES_NM[role]
    return f"{role} ({center - limit:g} to {center + limit:g} nm)"


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _require_same(real: PixelStatistics, generated: PixelStatistics) -> None:
    """Reject sets of different bands, units or conversions."""
    names = ("bands", "units", "scale", "offset", "index_names")
    is_same = all(np.array_equal(getattr(real, name), getattr(generated, name)) for name in names)
    if not is_same or real.power.shape != generated.power.shape:
        raise user_error(
            "pixels of different datasets cannot be compared",
            got=f"bands {', '.join(real.bands)} ({real.units}) and {', '.join(generated.bands)} ({generated.units})",
            expected="images with the same bands, units and size",
            fix="compare generated images with the training dataset of their network",
        )
