"""Ownership of output folders: the files that a stage may replace or delete.

A marker lists these files in the folder. It is a sealed document that exists before the first file does. Sizes are added when
the stage ends; until then a size is null. All other files belong to the user: dithc neither replaces nor deletes them.
How to change it: a stage that writes in place calls `claim`, `plan`, `prune` and `finish`; a stage that builds a folder uses
`replaced`; a single file is written by `write` or
`replacing`. Temporary folders come from `make_scratch`, and `remove` deletes them.
"""

from dithc.runs.outputs.folder import NO_SPACE, OutputFolder, check_file, owns, replacing, write
from dithc.runs.outputs.listing import MARKER_FILE, files_of
from dithc.runs.outputs.scratch import make_scratch, remove

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
