"""Format of scores, intervals, durations and ranges of bands in figures and on the page."""

from collections.abc import Mapping, Sequence
from typing import Any

from dithc.core.measurements import ABSENT, percent, rounded, short

STATISTICS = ("min", "p1", "median", "p99", "max")
SHARES = {"below": "clipped low", "above": "clipped high", "invalid": "no data"}
RANGES = ["Band", "Split", *STATISTICS, *SHARES.values()]


def score(value: float) -> str:
    """Format a score in four significant digits with trailing zeros, for alignment."""
    return short(value) if abs(value) >= 1000 or 0 < abs(value) < 1e-4 else f"{value:#.4g}".rstrip(".")


def between(interval: Sequence[float]) -> str:
    """Format an interval in three significant digits."""
    low, high = map(rounded, interval)
    return f"[{low}, {high}]"


def range_rows(ranges: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[list[str]]:
    """Return the columns RANGES of each band and split, from the ranges in `dataset.json`."""
    return [
        [band["band"], split]
        + [ABSENT if band.get(name) is None else f"{band[name]:.4g}" for name in STATISTICS]
        + [percent(band.get(name), decimals=2) for name in SHARES]
        for records in zip(*ranges.values(), strict=True)
        for split, band in zip(ranges, records, strict=True)
    ]


def span(seconds: float) -> str:
    """Format a duration in a suitable unit."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 or seconds == 0 else f"{seconds:.2g} s"
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {remainder:02d} s"
