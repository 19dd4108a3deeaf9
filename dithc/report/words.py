"""How the report writes numbers and durations, in figures and on the page alike."""

from collections.abc import Mapping, Sequence
from typing import Any

ABSENT, GIB = "–", 1 << 30


def short(value: float) -> str:
    """Format a number in at most four significant digits, without an exponent if possible."""
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:.2e}"


def rounded(value: float, *, digits: int) -> str:
    """Format a number in this many significant digits."""
    return short(float(f"{value:.{digits}g}"))


def short_or_absent(value: float | None) -> str:
    """Format a number as `short` does; a dash for None."""
    return ABSENT if value is None else short(value)


def gib(value: float | None) -> str:
    """Format bytes in GiB; a dash for None."""
    return ABSENT if value is None else f"{value / GIB:.2f} GiB"


def with_deviation(numbers: Mapping[str, Any] | None, *, digits: int = 4) -> str:
    """Format a median and its deviation in one digit; a dash for None."""
    if numbers is None:
        return ABSENT
    return f"{rounded(numbers['median'], digits=digits)} ± {float(format(numbers['mad'], '.1g')):g}"


def score(value: float) -> str:
    """Format a score in four significant digits with trailing zeros, for alignment."""
    return short(value) if abs(value) >= 1000 or 0 < abs(value) < 1e-4 else f"{value:#.4g}".rstrip(".")


def between(interval: Sequence[float]) -> str:
    """Format an interval in three significant digits."""
    low, high = (rounded(value, digits=3) for value in interval)
    return f"[{low}, {high}]"


def span(seconds: float) -> str:
    """Format a duration in a suitable unit."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 or seconds == 0 else f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
