"""How far the pixels of generated images are from those of real ones, band by band, in the units of the data set.

Pure functions of `Pixels`. Legend: C bands, V stored values, I indices, R rings.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.evaluate.pixels.file import BINS, Pixels
from dithc.evaluate.pixels.roles import INDICES, ROLES_NM
from dithc.evaluate.pixels.spectra import log_spectral_distance
from dithc.evaluate.statistics import FloatArray
from dithc.log import problem

QUANTILES = (0.05, 0.5, 0.95)
BARS = 100  # of a histogram that is drawn


def wasserstein(a: NDArray[np.int64], b: NDArray[np.int64], *, step: float) -> float:
    """Return the 1-Wasserstein distance of counts a and b (V,), not all 0, on a grid of spacing `step`."""
    between = np.cumsum(a) / a.sum() - np.cumsum(b) / b.sum()  # (V,)
    return float(np.abs(between).sum() * step)


def spectral_angle(a: FloatArray, b: FloatArray) -> float | None:
    """Angle between two spectra (C,) in degrees (Kruse et al. 1993); 0 of the same colour, however bright; None of black."""
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    if not lengths:
        return None
    cosine = float(a @ b) / lengths
    return float(np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0))))


def correlation(pixels: Pixels) -> FloatArray:
    """Correlation of bands over all pixels (C, C); NaN where a band does not vary."""
    total, mean = pixels.class_pixels.sum(), pixels.class_sums.sum(axis=0) / pixels.class_pixels.sum()  # (C,)
    covariance = pixels.products / total - np.outer(mean, mean)
    spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(covariance / np.outer(spread, spread))


def of_bands(real: Pixels, generated: Pixels) -> dict[str, Any]:
    """Distance of each band's distribution, of the correlations of bands, and the angle of mean spectra, of all and by class."""
    _require_same(real, generated)
    a, b = _together(real, generated)
    distances = {
        band: wasserstein(a[place], b[place], step=abs(float(real.scale[place])))
        for place, band in enumerate(real.bands)
    }
    numbers: dict[str, Any] = {"units": real.units, "wasserstein": distances}
    if len(real.bands) < 2:
        return numbers | {"absent": ["spectral angle and correlation: there is one band"]}
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


def of_indices(real: Pixels, generated: Pixels) -> dict[str, Any]:
    """Distance of the distribution of each index, with quantiles of both; of one whose bands are missing, why it is absent."""
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
        f"{name}: no band is {' and none '.join(_wanted(role) for role in roles)}, or it is not known which"
        for name, roles in INDICES.items()
        if name not in numbers
    ]
    return numbers | ({"absent": absent} if absent else {})


def of_spectra(real: Pixels, generated: Pixels) -> dict[str, Any]:
    """Log-spectral distance of each band in decibels, and both spectra."""
    _require_same(real, generated)
    distances = log_spectral_distance(real.power, generated.power)
    return {
        "log_spectral_distance_db": {band: _finite(value) for band, value in zip(real.bands, distances, strict=True)},
        "images": [real.spectra, generated.spectra],
        "power": {"real": real.power.tolist(), "generated": generated.power.tolist()},
    }


def _together(*sets: Pixels) -> list[NDArray[np.int64]]:
    """Counts of each set (C, V) on one grid."""
    first = min(one.first for one in sets)
    last = max(one.first + one.counts.shape[1] for one in sets)
    wide = []
    for one in sets:
        counts = np.zeros((len(one.bands), last - first), np.int64)
        counts[:, one.first - first : one.first - first + one.counts.shape[1]] = one.counts
        wide.append(counts)
    return wide


def _mean(pixels: Pixels, label: int | None = None) -> FloatArray:
    """Mean spectrum (C,) of all pixels, or of those of a class, in the units of the data set."""
    chosen = slice(None) if label is None else pixels.classes == label
    stored = pixels.class_sums[chosen].sum(axis=0) / pixels.class_pixels[chosen].sum()  # (C,)
    return np.asarray(stored * pixels.scale + pixels.offset)


def _quantiles(counts: NDArray[np.int64]) -> list[float] | None:
    """The middle of the part of [-1, 1] in which each of QUANTILES lies."""
    if not counts.any():
        return None
    places = np.searchsorted(np.cumsum(counts), np.array(QUANTILES) * counts.sum())
    return [float((place + 0.5) * 2 / BINS - 1) for place in places]


def _wanted(role: str) -> str:
    middle, most = ROLES_NM[role]
    return f"{role} ({middle - most:g} to {middle + most:g} nm)"


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _require_same(real: Pixels, generated: Pixels) -> None:
    """Refuses to compare sets of other bands, units or numbers."""
    sides = [
        (one.bands, one.units, one.scale.tolist(), one.offset.tolist(), one.index_names) for one in (real, generated)
    ]
    if sides[0] != sides[1] or real.power.shape != generated.power.shape:
        raise problem(
            "pixels of different data sets cannot be compared",
            got=f"bands {', '.join(real.bands)} ({real.units}) and {', '.join(generated.bands)} ({generated.units})",
            expected="images of the same bands, units and size",
            fix="compare generated images with the data set that their network was trained on",
        )
