"""The page: facts, verdict, tables and pictures become one HTML file that needs no network and no other file.

What: `render` fills `report.html` (with `macros.html`, `report.css`, `enlarge.js`): first the verdict, then pictures, scores and
losses, how it was made, and the engine; `texts` says what figures show; `fill` makes another room's page of the same parts.
Why: a group leader reads the first screen, a reviewer finds for every number where it comes from, and both do it on a phone, on
paper, by keyboard, or with a screen reader.
Invariants: nothing is loaded (a policy in the head forbids it to the browser); every picture has a text, every table a caption
and heads with a scope; nothing is wider than the screen but tables, which scroll; colours have a contrast of 4.5 at least, in
light and dark; what was not run is named in one line.
How to change it: a table is data (`tables.py`), made in `scores.py`, `how.py` or `engine_parts.py`; templates only loop.
"""

from dithc.report.page import texts
from dithc.report.page.render import Pictures, Shown, embedded, fill, render, size_of

__all__ = ["Pictures", "Shown", "embedded", "fill", "render", "size_of", "texts"]
