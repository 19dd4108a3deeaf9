"""Formatting of numbers in tables, figures and texts."""

from collections.abc import Mapping
from typing import Any

ABSENT, GIB = "–", 1 << 30


def short(value: float) -> str:
    """Format a number in at most four significant digits, without an exponent if possible."""
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:.2e}"


def rounded(value: float | None, *, digits: int = 3) -> str:
    """Format a number in `digits` significant digits; a dash for None."""
    return ABSENT if value is None else short(float(f"{value:.{digits}g}"))


def short_or_absent(value: float | None) -> str:
    """Format a number as `short` does; a dash for None."""
    return ABSENT if value is None else short(value)


def gib(value: float | None) -> str:
    """Format bytes in GiB; a dash for None."""
    return ABSENT if value is None else f"{value / GIB:.2f} GiB"


def percent(value: float | None, *, decimals: int = 1) -> str:
    """Format a fraction as a percentage; a dash for None."""
    return ABSENT if value is None else f"{value:.{decimals}%}"


def with_deviation(numbers: Mapping[str, Any] | None, *, digits: int = 4) -> str:
    """Format a median and its deviation in one digit; a dash for None."""
    if numbers is None:
        return ABSENT
    return f"{rounded(numbers['median'], digits=digits)} ± {float(format(numbers['mad'], '.1g')):g}"
