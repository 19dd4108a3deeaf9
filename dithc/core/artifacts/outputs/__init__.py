"""Ownership of output folders: the files that a stage may replace or delete.

A marker in the folder lists these files. It is a checksummed document, written before the first file. A size is null until
the stage ends. All other files belong to the user: dithc neither replaces nor deletes them.
Extending: a stage that writes in place calls `claim`, `plan`, `prune` and `finish`. A stage that builds a folder uses
`replaced`. Use `write` or `replacing` for a single file, `make_scratch` and `remove` for temporary folders.
"""

from dithc.core.artifacts.outputs.folder import NO_SPACE, OutputFolder, check_file, owns, replacing, write
from dithc.core.artifacts.outputs.listing import MARKER_FILE, files_of
from dithc.core.artifacts.outputs.scratch import make_scratch, remove

__all__ = [
    "MARKER_FILE",
    "NO_SPACE",
    "OutputFolder",
    "check_file",
    "files_of",
    "make_scratch",
    "owns",
    "remove",
    "replacing",
    "write",
]
