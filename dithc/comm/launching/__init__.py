"""Start and termination of ranks: the launcher's command line, its supervisor, and a guard process per rank.

Contents: `launch` builds the command line for each launcher and MPI, and `supervise` runs it. `guarded` inserts a
parent process above a rank. It reports how the rank ended, as `ending` does, and kills a rank that a signal has stopped
for longer than `end_when_stopped` allows. `check_shared_memory` rejects a small /dev/shm; `take_names_away` removes
unused names of shared memory.
Invariants: no rank outlives its driver, and no shared memory outlives its ranks. The launching process never loads MPI.
Extending: another launcher is a branch in `launch.py`.
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
