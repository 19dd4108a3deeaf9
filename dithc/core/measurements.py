"""Results of benchmarks as texts, the same on a terminal and in the report, and the format of numbers.

`Measurement` holds tables (`Table`), notes and conditions of a benchmark. The other functions format numbers. Standard
library only.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from dithc.core.units import GIB

ABSENT = "–"
# Characters of the tables that a terminal without UTF-8 cannot show.
ASCII = str.maketrans({"±": "+-", "–": "-", "×": "x"})


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of texts; the columns after the first `texts` are aligned to the right."""

    title: str
    head: list[str]
    rows: list[list[str]]
    texts: int = 1

    def lines(self) -> list[str]:
        """Return head and rows as aligned lines for a terminal."""
        rows = [[cell.translate(ASCII) for cell in row] for row in [self.head, *self.rows]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return [
            "  ".join(
                cell.ljust(width) if index < self.texts else cell.rjust(width)
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Summary of a benchmark result."""

    title: str  # subject and settings in one line
    tables: list[Table]
    notes: list[str] = field(default_factory=list)  # on single results, such as the reason of a failure
    conditions: dict[str, str] = field(default_factory=dict)  # circumstances of the measurement by name

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> Self:
        """Read the summary in the JSON of a benchmark; KeyError without one, TypeError if it has another form."""
        summary = result["summary"]
        return cls(**{**summary, "tables": [Table(**table) for table in summary["tables"]]})

    def to_content(self) -> dict[str, Any]:
        return {"summary": asdict(self)}

    def text(self) -> str:
        tables = ["\n".join([table.title, *table.lines()]).strip() for table in self.tables]
        return "\n\n".join(filter(None, [self.title, *tables, "\n".join(self.notes)])).translate(ASCII)


def short(value: float | None) -> str:
    """Format a number in at most four significant digits, without an exponent if possible; a dash for None."""
    if value is None:
        return ABSENT
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:.2e}"


def rounded(value: float | None, *, digits: int = 3) -> str:
    """Format a number in `digits` significant digits; a dash for None."""
    return short(None if value is None else float(f"{value:.{digits}g}"))


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
