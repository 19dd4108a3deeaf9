"""Summary of a benchmark: tables of texts, notes and conditions, the same on a terminal and in a report."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

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
                cell.ljust(width) if place < self.texts else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
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
        return cls(**{**summary, "tables": [Table(**one) for one in summary["tables"]]})

    def to_content(self) -> dict[str, Any]:
        return {"summary": asdict(self)}

    def text(self) -> str:
        tables = ["\n".join([table.title, *table.lines()]).strip() for table in self.tables]
        return "\n\n".join(filter(None, [self.title, *tables, "\n".join(self.notes)])).translate(ASCII)
