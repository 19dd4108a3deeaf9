"""Tables of the page as plain data: a caption, a head, rows of cells; the template knows no more of them."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell.

    Attributes:
        text: what it says.
        notes: lines below, in small type.
        title: the number in full, where `text` is rounded.
        strong: whether it is what the row is about.
    """

    text: str
    notes: list[str] = field(default_factory=list)
    title: str = ""
    strong: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table.

    Attributes:
        caption: what it is a table of.
        head: of the columns; the first names the rows.
        rows: cells by column, the first of which is the head of its row.
        texts: how many columns from the left are texts; the others are numbers.
        note: what explains it; may be empty.
        best: the row that is marked as such, None where none is.
    """

    caption: str
    head: list[str]
    rows: list[list[Cell]]
    texts: int = 1
    note: str = ""
    best: int | None = None


def table(caption: str, head: list[str], rows: list[list[str]], *, texts: int = 1, note: str = "") -> Table:
    """A table of plain texts."""
    return Table(
        caption=caption, head=head, rows=[[Cell(text=text) for text in row] for row in rows], texts=texts, note=note
    )
