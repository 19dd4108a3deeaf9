"""The paper beside what was made again: documents of targets become figures, tables of numbers, and one page.

What: `draw` makes the figure of a document as SVG and PNG, `write_csv` its cells as a table, `write_page` one self-contained
page of all documents, which begins with a verdict in plain words.
Why: a reviewer sees in one look what was reproduced, how far off and on what machine, and follows any number to its file.
Invariants: what was not measured is never drawn like what was: simulated is hollow, published is a mark or hatched, and what
has no value is a word; nothing is fetched; what comes from outside is escaped; a number leads to the file it was read from.
How to change it: how a target is drawn is a line of `figure.DRAWN`; which claims of the paper are judged is one of
`verdict.CLAIMS`; the page is `paper.html` with `paper.css` over the parts of `dithc.report.page`.
"""

from dithc.report.paper.figure import draw
from dithc.report.paper.table import write_csv
from dithc.report.paper.write import write_page

__all__ = ["draw", "write_csv", "write_page"]
