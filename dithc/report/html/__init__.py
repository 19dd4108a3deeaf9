"""The HTML page of records, assessment, tables and figures. It requires no network and no other file.

Contents: `render` fills `report.html` (with `macros.html`, `report.css`, `enlarge.js`). `alt_text` has the text
alternatives of figures. `render_template` renders a page of another package with the same parts.

Invariants: nothing is loaded (a content policy forbids it). Every image has a text, every table a caption and heads
with a scope. Only tables are wider than the screen, and scroll. Colors have a contrast of at least 4.5 on light and
dark backgrounds.

Extending: a table is data (`tables.py`), built in `scores.py`, `provenance.py` or `engine_parts.py`. Templates only loop.
"""

from dithc.report.html import alt_text
from dithc.report.html.render import DatasetFigure, PageImages, data_uri, render, render_template, size_of

__all__ = ["DatasetFigure", "PageImages", "alt_text", "data_uri", "render", "render_template", "size_of"]
