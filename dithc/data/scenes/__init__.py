"""The stage `scenes`: every file of a source read once, checked, and stacked with scenes of its shape.

What: `stage_scenes` writes stacks and a table of rows; `Scenes` reads them back, memory-mapped.
Invariants: what an earlier run read of the same files is taken, not read again; every file has a row, used or
not, with its reason.
How to change it: a fact of a scene is a column of `rows.py`.
"""

from dithc.data.scenes.reading import Scenes
from dithc.data.scenes.stage import stage_scenes

__all__ = ["Scenes", "stage_scenes"]
