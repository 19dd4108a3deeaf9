"""Thread team of a rank, grouped by core cluster, and the partition of work among clusters and cores.

Purpose: the clusters of a die form a tensor-parallel group inside one process (CFTP). Every operator's output is
partitioned among them, inputs are read in place, and no data is exchanged. The same rule shares a global batch among
ranks.
Contents: `ThreadTeam`, the placement of the threads that run operators; `partition`, the rule that cuts outputs and batches.
Invariants: parts cover the range in order, without overlap, for any size and any number of parts, and equal those of
the C library (kernels/team), which a test compares. Idle threads of a team sleep.
Extending: change the rule in C and here in one commit.
"""

from dithc.engine.cftp.partition import partition
from dithc.engine.cftp.thread_team import ThreadTeam

__all__ = ["ThreadTeam", "partition"]
