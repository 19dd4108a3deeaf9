"""Format of scores, intervals and durations in figures and on the page."""

from collections.abc import Sequence

from dithc.core.summaries import rounded, short


def score(value: float) -> str:
    """Format a score in four significant digits with trailing zeros, for alignment."""
    return short(value) if abs(value) >= 1000 or 0 < abs(value) < 1e-4 else f"{value:#.4g}".rstrip(".")


def between(interval: Sequence[float]) -> str:
    """Format an interval in three significant digits."""
    low, high = map(rounded, interval)
    return f"[{low}, {high}]"


def span(seconds: float) -> str:
    """Format a duration in a suitable unit."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 or seconds == 0 else f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
