"""The report: one HTML page of an experiment that opens without network.

Contents: `write_report` reads the manifests of all stages, checks their consistency, and writes the page, its numbers
as JSON and its figures as PNG files. `draw_loss`, `draw_plan`, `draw_tiles` and `draw_restoration` draw a single figure of a
given file. Data flow: collect (manifests to records) -> figures, galleries, assessment -> page -> write.

Invariants:
- Everything is inlined: the page loads no script, font, style or image. Every external text is escaped.
- A number of the page is in a manifest or in metrics.jsonl, or is measured on the displayed images.
- Missing results are listed. Unreadable manifests, results of other settings, and results of replaced inputs are
  errors. Results of several code versions are a warning on the page.
- Every score that is not comparable with published FID is marked, and never shown next to a published score.

Extending: see the packages `collect` (records), `figures`, `galleries`, `assessment` and `html`. The
numbers of the paper are in `dithc.core.reproduction`.
"""

from dithc.report.figures import FIGURES, standalone
from dithc.report.figures import time_to_quality as quality_figure
from dithc.report.galleries import draw_restoration
from dithc.report.write import write_report

draw_loss, draw_plan, draw_tiles = standalone.draw_loss, standalone.draw_plan, standalone.draw_tiles

__all__ = [
    "FIGURES",
    "draw_loss",
    "draw_plan",
    "draw_restoration",
    "draw_tiles",
    "quality_figure",
    "write_report",
]
