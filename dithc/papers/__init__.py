"""What a table or figure of the paper is, made again: one document of cells, series and images, each number traceable.

What: a frozen `Document` of `Cell`, `Series` and `Picture`, to and from a sealed JSON file; `published`, a number that the
paper prints; `TARGETS`, the names of all tables and figures in the paper's order.
Why: who measures and who draws know nothing of each other; this is all that passes between them.
Invariants: a value stands only where it was measured or simulated; a cell without one says why; the ratio is value over
published and is never given, always computed; every document that is read was checked like one that is made.
How to change it: a new field goes into the class with its meaning, and nowhere else; a number of the paper goes into
`config/paper/reference.yaml`.
"""

from dithc.papers.document import STATUSES, TARGETS, Cell, Document, Picture, Series
from dithc.papers.reference import published

__all__ = ["STATUSES", "TARGETS", "Cell", "Document", "Picture", "Series", "published"]
