"""The report: manifests, metrics and pictures of an experiment become one HTML page that opens without network.

What: `write_report` reads the manifests of every stage, checks that they belong together, and writes the page, its numbers as
JSON and its figures as PNG files. `draw_loss`, `draw_fid`, `draw_plan` and `draw_tiles` draw one figure of what a person points
at.
Why: a group leader must see in one look what was trained on what, how it went and how good it is; a reviewer must find for
every number the manifest, the code and the machine behind it.
Flow: gather (manifests, checked) -> collect (records: facts) -> figures (PNG) and page (HTML) -> write.

Invariants:
- Everything is inlined: the page loads no script, font, style or picture. Every text that comes from outside is escaped.
- A number of the page stands in a manifest or in metrics.jsonl: the report computes means of curves and sums of times, no more.
- What was not run is said to be not run; a manifest that is named and unreadable is an error; results of other settings, or
  made from inputs that have been replaced since, are an error; results of several code versions are a warning on the page.
- A score that is not comparable with published FID is marked so wherever it stands.

How to change it: a new fact is a field in `facts.py`, filled in `collect.py` (data in `collect_data.py`) and shown in
`report.html`; a new figure is a function of (facts, theme) in `figures.py`, or in a file that draws on its canvas as
`scaling_figure.py` does, and one line in `write.py`. The paper's numbers are in config/paper/reference.yaml.
"""

from dithc.report.figures.single import draw_fid, draw_loss, draw_plan
from dithc.report.figures.tiles import draw_tiles
from dithc.report.write import FIGURES, write_report

__all__ = ["FIGURES", "draw_fid", "draw_loss", "draw_plan", "draw_tiles", "quality_figure", "write_report"]
