"""Tables of the page as data. The template formats them."""

from dataclasses import dataclass, field

from dithc.core import measurements


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell: its text, small lines below, the full number as `title`, and emphasis."""

    text: str
    notes: list[str] = field(default_factory=list)
    title: str = ""
    strong: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table. The first cell of a row is its head, the first `texts` columns are texts, and `best` is the marked row."""

    caption: str
    head: list[str]
    rows: list[list[Cell]]
    texts: int = 1
    best: int | None = None


def table(caption: str, head: list[str], rows: list[list[str]], *, texts: int) -> Table:
    """Build a table of plain texts."""
    return Table(caption=caption, head=head, rows=[[Cell(text=text) for text in row] for row in rows], texts=texts)


def from_summary(summary: measurements.Table) -> Table:
    """Convert a table of a benchmark or of the paper."""
    return table(summary.title, summary.head, summary.rows, texts=summary.texts)
