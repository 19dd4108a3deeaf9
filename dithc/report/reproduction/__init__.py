"""Figures, CSV tables and the page of the paper targets, from their documents.

Contents: `draw_target` writes the figure of a document as SVG and PNG, `write_csv` its cells, `write_page` one page of all
documents. `check_claims` returns the claims of the paper that documents confirm or contradict.

Invariants: simulated values are hollow or dashed, published values are diamonds or crosses, a missing value is a word.
External texts are escaped. Every number on the page links to its file.

Extending: `figure.CURVES` lists the targets drawn as curves, `claims.CLAIMS` its claims.
"""

from dithc.report.reproduction.claims import check_claims
from dithc.report.reproduction.figure import draw_target
from dithc.report.reproduction.write import write_csv, write_page

__all__ = ["check_claims", "draw_target", "write_csv", "write_page"]
