"""Thread team of a rank, grouped by core cluster, and the partition of work among clusters and cores.

Purpose: the clusters of a die form a tensor-parallel group inside one process (CFTP). Every operator's output is
partitioned among them, inputs are read in place, and no data is exchanged. The same rule shares a global batch among
ranks.
Contents: `Team`, the persistent threads that run operators; `cut`, the part of each operator's output per core;
`partition`, the 1D rule that both use.
Invariants: `partition` and `cut` are pure functions. Parts cover the output in order, without overlap, for any size and
any number of parts, and equal those of the C library (kernels/team, kernels/gemm), which tests compare. (If memory is
bound to several nodes, the optimizer partitions each tensor separately.) Idle threads of a team sleep.
Extending: change a partition rule and its constant in C and here in one commit; a new operation is an entry of
`cut.Operation`.
"""

from dithc.cftp.cut import Part, cut
from dithc.cftp.partition import partition, partition_two_level
from dithc.cftp.team import Team

__all__ = ["Part", "Team", "cut", "partition", "partition_two_level"]
