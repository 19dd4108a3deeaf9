"""Exact statistics of stored integers per band, from a histogram with one bin per possible value."""

from typing import Any

import numpy as np
import numpy.typing as npt

BINS = 1 << 16
PERCENTILES = {"p1": 1.0, "p99": 99.0}
RANGES = {"min": 0.0, "p1": 1.0, "median": 50.0, "p99": 99.0, "max": 100.0}
Coefficients = float | list[float]  # one, or one for each band


class Histogram:
    """Counts of every value of each band, over valid pixels only. Stored types have at most 16 bits."""

    def __init__(self, bands: int, dtype: npt.DTypeLike) -> None:
        limits = np.iinfo(np.dtype(dtype))
        assert limits.max - limits.min < BINS, f"{dtype} has more values than bins"
        self.lowest = int(limits.min)
        self.counts = np.zeros((bands, BINS), dtype=np.int64)

    def add(self, pixels: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> None:
        """Count the pixels (N, C, H, W) that are valid (N, H, W)."""
        everywhere = bool(valid.all())
        for band, counts in enumerate(self.counts):
            values = pixels[:, band].ravel() if everywhere else pixels[:, band][valid]
            counts += np.bincount(values.astype(np.int64) - self.lowest, minlength=BINS)

    def describe(self, *, scale: Coefficients, offset: Coefficients, clip: float = 0.01) -> list[dict[str, float]]:
        """Return mean, deviation, percentiles and scaling ends per band; physical = stored * scale + offset.

        The scaling ends `low` and `high` have shares `clip` of the values beyond them. If they are equal, `high` is one stored
        unit more.
        """
        values = np.arange(BINS, dtype=np.float64) + self.lowest
        statistics = []
        for counts, step, zero in zip(self.counts, *self._by_band(scale, offset), strict=True):
            total = counts.sum()
            mean = float((counts * values).sum() / total)
            std = float(np.sqrt((counts * (values - mean) ** 2).sum() / total))
            stored = {name: self._percentile(counts, q) for name, q in PERCENTILES.items()}
            low, high = (self._percentile(counts, 100.0 * share) for share in (clip, 1.0 - clip))
            stored |= {"low": low, "high": max(high, low + 1.0)}
            physical = {name: value * step + zero for name, value in stored.items()}
            statistics.append({"mean": mean * step + zero, "std": std * step, **physical})
        return statistics

    def ranges(
        self, described: list[dict[str, float]], *, pixels: int, scale: Coefficients, offset: Coefficients
    ) -> list[dict[str, float]]:
        """Return min, p1, median, p99 and max of each band, physical = stored * scale + offset, and three shares.

        `invalid` is the share of no data in all `pixels`. `below` and `above` are shares of valid pixels outside the
        scaling in `described`, which the codec clips. A band without valid pixels has `invalid` only.
        """
        bands = []
        for counts, band, step, zero in zip(self.counts, described, *self._by_band(scale, offset), strict=True):
            physical = (np.arange(BINS) + self.lowest) * step + zero
            slack = step * 1e-6  # `low` and `high` are stored numbers, or between two stored numbers
            total = int(counts.sum())
            values = {"invalid": 1.0 - total / pixels}
            if total:
                percentiles = {name: self._percentile(counts, q) * step + zero for name, q in RANGES.items()}
                below = float(counts[physical < band["low"] - slack].sum() / total)
                values = {**percentiles, **values, "below": below}
                values["above"] = float(counts[physical > band["high"] + slack].sum() / total)
            bands.append(values)
        return bands

    def _by_band(self, *coefficients: Coefficients) -> list[list[float]]:
        return [np.broadcast_to(np.asarray(values, float), len(self.counts)).tolist() for values in coefficients]

    def _percentile(self, counts: npt.NDArray[np.int64], percent: float) -> float:
        """Return the percentile that numpy.percentile (linear) gets from all values."""
        cumulative = np.cumsum(counts)
        position = percent / 100.0 * (int(cumulative[-1]) - 1)
        below = int(np.searchsorted(cumulative, np.floor(position), side="right"))
        above = int(np.searchsorted(cumulative, np.ceil(position), side="right"))
        return self.lowest + below + (above - below) * float(position - np.floor(position))
