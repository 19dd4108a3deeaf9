"""Archives of products and images, read in place or unpacked temporarily.

Contents: `members` lists the files of tar archives in place. `unpack` unpacks selected files of a `.tar.gz` into
`scratch`.

Invariants: all entries are checked before any is written. Unpacked files are removed after reading; a later run
removes those of a killed run.

Extending: another archive format is a module like `tarball.py`.
"""

from dithc.data.archives.tar_index import Member, members
from dithc.data.archives.tarball import unpack
from dithc.data.archives.unpacking import NoRoom, check_disk, remove_abandoned, scratch

__all__ = ["Member", "NoRoom", "check_disk", "members", "remove_abandoned", "scratch", "unpack"]
