"""Starting ranks and ending them: the launcher's line, the process that watches over it, the guard of each rank.

What: `launch` holds the line for each launcher and MPI, `supervise` runs it, `guarded` puts a parent before a rank, which says
how it ended, as `ending` does, and ends it where a signal has stopped it for longer than `end_when_stopped` allows;
`check_shared_memory` rejects a small /dev/shm; `take_names_away` removes shared memory that nobody needs.
Invariants: nothing outlives its purpose: no rank its driver, no shared memory its ranks; MPI is never loaded in this process.
How to change it: another launcher is a line in `launch.py`.
"""

from dithc.comm.launching import ending, launch
from dithc.comm.launching.guard import MEETING_SECONDS, end_when_stopped, guarded
from dithc.comm.launching.litter import check_shared_memory, take_names_away
from dithc.comm.launching.supervision import supervise

__all__ = [
    "MEETING_SECONDS",
    "check_shared_memory",
    "end_when_stopped",
    "ending",
    "guarded",
    "launch",
    "supervise",
    "take_names_away",
]
