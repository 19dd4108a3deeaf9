"""Stage `scenes`: read, check and stack every file of a source.

Contents: `ingest_scenes` writes stacks and a table with one row per file. `Scenes` reads them back, memory-mapped.

Invariants: results of earlier runs are reused if their files are unchanged. Every file has a row, accepted or rejected
with its reason.

Extending: a new property of scenes is a column in `scene_cache.py`.
"""

from dithc.data.scenes.ingest import ingest_scenes
from dithc.data.scenes.reading import Scenes

__all__ = ["Scenes", "ingest_scenes"]
