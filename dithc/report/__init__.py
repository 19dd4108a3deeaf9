"""The report: manifests, metrics and pictures of an experiment become one HTML page that opens without network.

What: `write_report` reads the manifests of every stage, checks that they belong together, and writes the page, its numbers as
JSON and its figures as PNG files. `draw_loss`, `draw_fid`, `draw_plan` and `draw_tiles` draw one figure of what a person points
at.
Why: a group leader must see in one look what was trained on what, how it went and how good it is; a reviewer must find for
every number the manifest, the code and the machine behind it.
Flow: collect (manifests, checked, become records: facts) -> figures, pictures, verdict -> page -> write.

Invariants:
- Everything is inlined: the page loads no script, font, style or picture. Every text that comes from outside is escaped.
- A number of the page stands in a manifest or in metrics.jsonl, or is measured on the very images that are shown.
- What was not run is said to be not run; a manifest that is named and unreadable is an error; results of other settings, or
  made from inputs that have been replaced since, are an error; results of several code versions are a warning on the page.
- A score that is not comparable with published FID is marked so wherever it stands, and never set beside one.

How to change it: each room inside says it: `collect` (facts), `engine` (benches), `figures`, `pictures`, `verdict`, `page`. The
paper's numbers are in config/paper/reference.yaml.
"""

from dithc.report.figures import FIGURES, single
from dithc.report.figures import quality as quality_figure
from dithc.report.write import write_report

draw_fid, draw_loss, draw_plan, draw_tiles = single.draw_fid, single.draw_loss, single.draw_plan, single.draw_tiles

__all__ = ["FIGURES", "draw_fid", "draw_loss", "draw_plan", "draw_tiles", "quality_figure", "write_report"]
