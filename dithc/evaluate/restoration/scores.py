"""Scores of a restored mean and of its ensemble, against the truth, over a mask of pixels.

Legend: ... optional images, C bands, H, W image; K members; n evaluated values.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from dithc.core.image_quality import ensemble_quantile, ensemble_variance, ergas, spectral_angles, structural_similarity
from dithc.evaluate.pixels import log_spectral_distance, radial_power
from dithc.evaluate.restoration.baselines import Observed
from dithc.evaluate.restoration.sharpening import OPENSR, opensr_scores
from dithc.evaluate.statistics import FloatArray

Array = NDArray[np.floating]
Mask = NDArray[np.bool_]
Scores = dict[str, Any]

SMALLEST = 16  # side of images for spectra and shifts
COVERED = 0.9  # share of the central interval
FEW = 8  # parts of images for an interval
CHUNK = 1 << 18  # values evaluated together: 32 MiB for 16 members in float64


def pixel_scores(mean: Array, truth: Array, where: Mask | None = None, *, data_range: float | Array = 1.0) -> Scores:
    """Compare restored images with the truth (..., C, H, W) over a mask (..., H, W) or (..., C, H, W), or everywhere.

    Score a large scene by blocks, and join them by `pooled`: memory holds several copies of a band.

    Args:
        mean: Restored images in physical units.
        truth: True images in the same units.
        where: Evaluated values.
        data_range: Width of the range of values for PSNR and SSIM, total or by band (C,). 1 suits reflectance.

    Returns:
        `pixels` (number of evaluated values), `rmse`, `mae`, `bias` (mean minus truth), `psnr_db`, `ssim` (mean over
        complete windows centered on evaluated values; None without any), `sam_degrees` (mean over pixels with an evaluated
        band; None for one band). All scores except `pixels` are None for an empty mask.
    """
    mask = _mask(where, truth.shape)
    ranges = np.broadcast_to(np.asarray(data_range, np.float64), truth.shape[-3])  # (C,)
    sums, relative, similarity, windows = np.zeros(3), 0.0, 0.0, 0
    for band, width in enumerate(ranges):
        x, y, inside = (np.asarray(image[..., band, :, :]) for image in (mean, truth, mask))  # (..., H, W)
        error = x[inside].astype(np.float64) - y[inside]  # (n,)
        squares = float(error @ error)
        sums += squares, np.abs(error).sum(), error.sum()
        relative += squares / width**2
        places = structural_similarity(x, y, data_range=float(width))  # (..., H - 6, W - 6)
        top, left = ((image - inner) // 2 for image, inner in zip(x.shape[-2:], places.shape[-2:], strict=True))
        centers = inside[..., top : top + places.shape[-2], left : left + places.shape[-1]] & np.isfinite(places)
        similarity, windows = similarity + float(places[centers].sum()), windows + int(centers.sum())
    count = int(mask.sum())
    if not count:
        return {"pixels": 0} | dict.fromkeys(("rmse", "mae", "bias", "psnr_db", "ssim", "sam_degrees"))
    spectra = (np.moveaxis(image, -3, -1)[mask.any(axis=-3)] for image in (mean, truth))  # (pixels, C)
    return {
        "pixels": count,
        "rmse": float(np.sqrt(sums[0] / count)),
        "mae": float(sums[1] / count),
        "bias": float(sums[2] / count),
        "psnr_db": float(-10 * np.log10(max(relative / count, 1e-12))),
        "ssim": similarity / windows if windows else None,
        "sam_degrees": float(np.nanmean(spectral_angles(*spectra, axis=1))) if len(ranges) > 1 else None,
    }


def ensemble_scores(members: Array, truth: Array, where: Mask | None = None) -> Scores:
    """Compare members (K, ..., C, H, W) with the truth over a mask as in `pixel_scores`; K is even and at least 4.

    Members 2 k and 2 k + 1 may depend on each other. CRPS and ranks are therefore means of the two halves of M = K / 2
    independent members.

    Returns:
        `pixels`; `crps`: fair, mean |x_k - y| - sum_jk |x_j - x_k| / (2 M (M - 1)) (Ferro 2014), in physical units;
        `coverage`: share of the truth between the 5 and 95% quantiles of all members; `calibrated_coverage`: its expectation
        for truth and members from one distribution, with opposite deviations in a pair;
        `rank_histogram` (M + 1): shares of the truth by the number of smaller members, with ties divided evenly; `spread`:
        root of the mean variance of the members plus the variance of their mean; `rmse` of the members' mean;
        `spread_over_error`: their ratio, 1 for a calibrated ensemble (Fortin et al. 2014). An empty mask has no scores.
    """
    size, half = len(members), len(members) // 2
    weights = (2 * np.arange(half) - half + 1) / (half * (half - 1))  # (M,) of sorted members, for sums of differences
    sums, ranks = np.zeros(4), np.zeros(half + 2)
    for x, y in _chunks(members, truth, _mask(where, truth.shape)):
        low, high = ensemble_quantile(x, [(1 - COVERED) / 2, (1 + COVERED) / 2])
        covered, mean = (low <= y) & (y <= high), x.mean(axis=0)
        variance = ensemble_variance(x) + ((x[0::2] + x[1::2]) / 2).var(axis=0, ddof=1) / half
        sums += 0, covered.sum(), variance.sum(), np.square(mean - y).sum()
        for part in (np.sort(x[0::2], axis=0), np.sort(x[1::2], axis=0)):
            sums[0] += (np.abs(part - y).mean(axis=0) - weights @ part).sum()
            below, until = (part < y).sum(axis=0), (part <= y).sum(axis=0) + 1  # ranks below..until - 1 are tied
            share = 1.0 / (until - below)
            ranks += np.bincount(below, share, minlength=half + 2) - np.bincount(until, share, minlength=half + 2)
    count = int(_mask(where, truth.shape).sum())
    if not count:
        return {"pixels": 0}
    spread, error = np.sqrt(sums[2] / count), np.sqrt(sums[3] / count)
    return {
        "pixels": count,
        "crps": sums[0] / (2 * count),
        "coverage": sums[1] / count,
        "calibrated_coverage": min(COVERED, size / (size + 2)),
        "rank_histogram": (np.cumsum(ranks)[:-1] / (2 * count)).tolist(),
        "spread": float(spread),
        "rmse": float(error),
        "spread_over_error": float(spread / error) if error else None,
    }


def coarse_scores(seen: Observed, factor: int, image: Array, *, deviation: Array, inner: tuple[slice, slice]) -> Scores:
    """Compare bands of a coarse grid with their observed coarse pixels and with the truth.

    Args:
        seen: Observed values and truth in physical units, with a context around the evaluated part.
        factor: Factor of the evaluated bands.
        image: (C, H, W), restored image.
        deviation: (n,), standard deviation of the noise of the coarse pixels, for each evaluated band.
        inner: Evaluated rows and columns, which start at a multiple of the factor.

    Returns:
        `ergas`; `consistency`: root mean square of the observed coarse pixels minus the coarse pixels of the image, over the
        deviation of the noise; the six scores of `opensr_scores`, None for small parts. All are None without coarse pixels.
    """
    bands, opensr = seen.bands(factor), dict.fromkeys(OPENSR)
    grid = tuple(slice(part.start // factor, part.stop // factor) for part in inner)
    fine = tuple(slice(part.start * factor, part.stop * factor) for part in grid)
    clear = seen.clear(factor)[grid]
    if not clear.any():
        return {"ergas": None, "consistency": None, **opensr}
    low, again = (seen.low(part[bands], factor)[:, *grid] for part in (seen.x, image))  # (n, h, w)
    residual = ((again - low) / deviation[:, None, None])[:, clear]
    restored, truth = (part[bands][:, *fine] for part in (image, seen.x))
    if min(clear.shape) >= SMALLEST:
        found = opensr_scores(low, restored, truth, clear)
        opensr |= {key: value if math.isfinite(value) else None for key, value in found.items()}
    covered = clear.repeat(factor, axis=0).repeat(factor, axis=1)
    return {
        "ergas": ergas(restored, truth, ratio=factor, valid=covered),
        "consistency": float(np.sqrt((residual**2).mean())),
        **opensr,
    }


def spectral_distance(image: Array, truth: Array) -> float | None:
    """Return the mean distance of the radial spectra of the bands of (C, H, W) in decibels; None for small images."""
    if min(image.shape[1:]) < SMALLEST:
        return None
    found = log_spectral_distance(radial_power(image), radial_power(truth))
    return float(np.nanmean(found)) if np.isfinite(found).any() else None


def pooled(scores: Sequence[Scores], *, restored: Sequence[Scores] | None = None) -> Scores:
    """Join the scores of several images or blocks, weighted by their evaluated pixels.

    RMSE, spread, ERGAS and consistency are root mean squares, PSNR belongs to the mean square error. Empty masks have no weight.
    With the scores of the restored images on the same parts, the result has the `ratio` of the RMSE of `restored` to this
    RMSE over all pixels, its 95% interval by resampled parts (`ratio_interval`), and its median over parts (`ratio_median`).
    """
    ratios = {} if restored is None else _relative_error(restored, scores)
    scores = [score for score in scores if score["pixels"]]
    if not scores:
        return {"pixels": 0}
    result: Scores = {}
    for key in scores[0]:
        found = [(score[key], score["pixels"]) for score in scores if score[key] is not None]
        values, weights = np.array([value for value, _ in found]), np.array([weight for _, weight in found], float)
        if key == "pixels":
            result[key] = int(values.sum())
        elif not len(values):
            result[key] = None
        elif key in {"rmse", "spread", "ergas", "consistency"}:
            result[key] = float(np.sqrt(np.average(values**2, weights=weights)))
        elif key == "psnr_db":
            result[key] = float(-10 * np.log10(np.average(10 ** (-values / 10), weights=weights)))
        else:
            mean = np.average(values, axis=0, weights=weights)
            result[key] = mean.tolist() if mean.ndim else float(mean)
    if result.get("spread_over_error") is not None:
        result["spread_over_error"] = result["spread"] / result["rmse"]
    return result | ratios


def _relative_error(scores: Sequence[Scores], others: Sequence[Scores]) -> Scores:
    """Return the ratios of `pooled`, with an interval from `FEW` parts; none without an error of the other method."""
    pairs = [(one, other) for one, other in zip(scores, others, strict=True) if one["pixels"]]
    squares = np.array([[score["rmse"] ** 2 * score["pixels"] for score in pair] for pair in pairs]).reshape(-1, 2).T
    if not squares[1].any():
        return {}

    def ratio(x: FloatArray, y: FloatArray, axis: int = -1) -> FloatArray:
        root: FloatArray = np.sqrt(x.sum(axis=axis) / y.sum(axis=axis))
        return root

    has_error = squares[1] > 0
    found = {
        "ratio": float(ratio(*squares)),
        "ratio_median": float(np.median(np.sqrt(squares[0, has_error] / squares[1, has_error]))),
    }
    if has_error.sum() < FEW:
        return found
    drawn = scipy.stats.bootstrap(squares, ratio, paired=True, n_resamples=999, method="percentile", random_state=0)
    return found | {"ratio_interval": [float(end) for end in drawn.confidence_interval]}


def _mask(where: Mask | None, shape: tuple[int, ...]) -> Mask:
    """Return a mask of the shape of the images."""
    mask = np.ones(1, bool) if where is None else where if where.ndim == len(shape) else where[..., None, :, :]
    return np.broadcast_to(mask, shape)


def _chunks(members: Array, truth: Array, mask: Mask) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Yield members (K, n) and truth (n,) of at most `CHUNK` evaluated values."""
    flat, places = members.reshape(len(members), -1), np.flatnonzero(mask)
    for first in range(0, len(places), CHUNK):
        part = places[first : first + CHUNK]
        yield flat[:, part].astype(np.float64), truth.reshape(-1)[part].astype(np.float64)
