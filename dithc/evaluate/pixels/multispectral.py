"""Distances of the pixels of generated and real images by band, in the units of the dataset.

Pure functions of `PixelStatistics`. Legend: C bands, V stored values, I indices, R rings.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.core.logging import user_error
from dithc.evaluate.pixels.band_roles import INDICES, ROLES_NM
from dithc.evaluate.pixels.pixel_file import BINS, PixelStatistics
from dithc.evaluate.pixels.spectra import log_spectral_distance
from dithc.evaluate.statistics import FloatArray

QUANTILES = (0.05, 0.5, 0.95)
BARS = 100  # bars of a drawn histogram


def wasserstein(a: NDArray[np.int64], b: NDArray[np.int64], *, step: float) -> float:
    """Return the 1-Wasserstein distance of counts a and b (V,), not all 0, on a grid of spacing `step`."""
    between = np.cumsum(a) / a.sum() - np.cumsum(b) / b.sum()  # (V,)
    return float(np.abs(between).sum() * step)


def spectral_angle(a: FloatArray, b: FloatArray) -> float | None:
    """Return the angle of two spectra (C,) in degrees (Kruse et al. 1993), independent of brightness; None for black."""
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    if not lengths:
        return None
    cosine = float(a @ b) / lengths
    return float(np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0))))


def correlation(pixels: PixelStatistics) -> FloatArray:
    """Return the correlation of bands over all pixels (C, C); NaN for a constant band."""
    total, mean = pixels.class_pixels.sum(), pixels.class_sums.sum(axis=0) / pixels.class_pixels.sum()  # (C,)
    covariance = pixels.products / total - np.outer(mean, mean)
    spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(covariance / np.outer(spread, spread))


def of_bands(real: PixelStatistics, generated: PixelStatistics) -> dict[str, Any]:
    """Return distances of band distributions and of band correlations, and angles of mean spectra in total and by class."""
    _require_same(real, generated)
    a, b = _together(real, generated)
    distances = {
        band: wasserstein(a[place], b[place], step=abs(float(real.scale[place])))
        for place, band in enumerate(real.bands)
    }
    numbers: dict[str, Any] = {"units": real.units, "wasserstein": distances}
    if len(real.bands) < 2:
        return numbers | {"absent": ["spectral angle and correlation: only one band"]}
    correlations = [correlation(one) for one in (real, generated)]
    apart = np.abs(correlations[0] - correlations[1])[np.triu_indices(len(real.bands), 1)]
    both = sorted(set(real.classes.tolist()) & set(generated.classes.tolist()))
    angles = {str(label): spectral_angle(_mean(real, label), _mean(generated, label)) for label in both}
    numbers |= {"spectral_angle_deg": spectral_angle(_mean(real), _mean(generated))}
    if len(real.classes) > 1 and angles:
        numbers |= {"spectral_angle_deg_by_class": angles}
    named = zip(("real", "generated"), correlations, strict=True)
    return numbers | {
        "correlation_difference": _finite(apart.mean()),
        "correlation": {name: [[_finite(value) for value in row] for row in one] for name, one in named},
    }


def of_indices(real: PixelStatistics, generated: PixelStatistics) -> dict[str, Any]:
    """Return the distance of each index distribution and quantiles of both sets; reasons for indices without bands."""
    _require_same(real, generated)
    numbers: dict[str, Any] = {}
    for place, name in enumerate(real.index_names):
        a, b = real.indices[place], generated.indices[place]
        sides = {"real": (a, real), "generated": (b, generated)}
        numbers[name] = {
            "wasserstein": wasserstein(a, b, step=2 / BINS) if a.any() and b.any() else None,
            "quantiles": {side: _quantiles(counts) for side, (counts, _) in sides.items()},
            "undefined": {side: float(of.undefined[place] / of.class_pixels.sum()) for side, (_, of) in sides.items()},
            "histogram": {side: counts.reshape(BARS, -1).sum(axis=1).tolist() for side, (counts, _) in sides.items()},
        }
    absent = [
        f"{name}: no band is {' and none '.join(_wanted(role) for role in roles)}, or wavelengths are unknown"
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


def _together(*sets: PixelStatistics) -> list[NDArray[np.int64]]:
    """Return the counts of each set (C, V) on a common grid."""
    first = min(one.first for one in sets)
    last = max(one.first + one.counts.shape[1] for one in sets)
    wide = []
    for one in sets:
        counts = np.zeros((len(one.bands), last - first), np.int64)
        counts[:, one.first - first : one.first - first + one.counts.shape[1]] = one.counts
        wide.append(counts)
    return wide


def _mean(pixels: PixelStatistics, label: int | None = None) -> FloatArray:
    """Return the mean spectrum (C,) of all pixels or of a class, in the units of the dataset."""
    chosen = slice(None) if label is None else pixels.classes == label
    stored = pixels.class_sums[chosen].sum(axis=0) / pixels.class_pixels[chosen].sum()  # (C,)
    return np.asarray(stored * pixels.scale + pixels.offset)


def _quantiles(counts: NDArray[np.int64]) -> list[float] | None:
    """Return the center of the bin of [-1, 1] that contains each of QUANTILES."""
    if not counts.any():
        return None
    places = np.searchsorted(np.cumsum(counts), np.array(QUANTILES) * counts.sum())
    return [float((place + 0.5) * 2 / BINS - 1) for place in places]


def _wanted(role: str) -> str:
    middle, most = ROLES_NM[role]
    return f"{role} ({middle - most:g} to {middle + most:g} nm)"


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _require_same(real: PixelStatistics, generated: PixelStatistics) -> None:
    """Reject sets of different bands, units or conversions."""
    sides = [
        (one.bands, one.units, one.scale.tolist(), one.offset.tolist(), one.index_names) for one in (real, generated)
    ]
    if sides[0] != sides[1] or real.power.shape != generated.power.shape:
        raise user_error(
            "pixels of different datasets cannot be compared",
            got=f"bands {', '.join(real.bands)} ({real.units}) and {', '.join(generated.bands)} ({generated.units})",
            expected="images with the same bands, units and size",
            fix="compare generated images with the training dataset of their network",
        )
