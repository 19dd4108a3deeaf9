"""How the report writes numbers and durations, in figures and on the page alike."""

from collections.abc import Mapping, Sequence
from typing import Any


def short(value: float) -> str:
    """A number in at most four significant digits, without an exponent where it is readable without."""
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:.2e}"


def rounded(value: float, *, digits: int) -> str:
    """A number in so many significant digits."""
    return short(float(f"{value:.{digits}g}"))


def with_deviation(numbers: Mapping[str, Any]) -> str:
    """A median in four digits and its deviation in one."""
    return f"{rounded(numbers['median'], digits=4)} ± {float(format(numbers['mad'], '.1g')):g}"


def score(value: float) -> str:
    """A score in four significant digits, trailing zeros kept, so that scores line up."""
    return short(value) if abs(value) >= 1000 or 0 < abs(value) < 1e-4 else f"{value:#.4g}".rstrip(".")


def between(interval: Sequence[float]) -> str:
    """An interval in three significant digits."""
    low, high = (rounded(value, digits=3) for value in interval)
    return f"[{low}, {high}]"


def span(seconds: float) -> str:
    """A duration in the unit a person would choose."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 or seconds == 0 else f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
