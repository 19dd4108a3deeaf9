"""Archives: products as they are delivered, read in place or unpacked for as long as they are read.

What: `members` finds the files of tar archives where they lie; `unpack` unpacks what is wanted of a `.tar.gz` into `scratch`.
Invariants: every entry is judged before one is written; nothing unpacked outlives its reading, and what a killed run left goes.
How to change it: another kind of archive is a file like `tarball.py`.
"""

from dithc.data.archives.tar_index import Member, members
from dithc.data.archives.tarball import unpack
from dithc.data.archives.unpacking import NoRoom, check_disk, remove_abandoned, scratch

__all__ = ["Member", "NoRoom", "check_disk", "members", "remove_abandoned", "scratch", "unpack"]
