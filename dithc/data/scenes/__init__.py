"""Stage `scenes`: read, check and stack every file of a source.

Contents: `ingest.ingest_scenes` writes stacks and a table with one row per file. `Scenes` reads them back, memory-mapped.
The package does not import `ingest`, because later stages need no readers of sources.

Invariants: results of earlier runs are reused if their files are unchanged. Every file has a row, accepted or rejected
with its reason.

Extending: a new property of scenes is a column in `scene_cache.py`.
"""

from dithc.data.scenes.reading import Scenes

__all__ = ["Scenes"]
