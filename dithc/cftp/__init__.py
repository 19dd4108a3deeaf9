"""The threads of a rank, grouped by cluster, and the cut of work among clusters and among the cores of a cluster.

What: `Team`, the persistent threads that operators run on; `cut`, the part of every operator's output that each core
computes; `partition`, the rule for one length below all of it.
Why: the clusters of a die form the tensor-parallel group inside one process: every operation's output is cut among them, inputs
are read in place, and nothing is exchanged. The same rule shares a global batch among ranks.
Invariants: `partition` and `cut` are pure functions; parts cover the whole output, in order, without overlap, for any size and
any number of parts, and equal what the C library does (kernels/team, kernels/gemm): tests compare. (Where memory is bound to
several nodes, the optimizer cuts tensor by tensor.) A team's threads sleep while nobody calls them.
How to change it: a rule of cutting changes in C and here at once, with its constant; a new operation is a line of
`cut.Operation`.
"""

from dithc.cftp.cut import Part, cut
from dithc.cftp.partition import partition, partition_two_level
from dithc.cftp.team import Team

__all__ = ["Part", "Team", "cut", "partition", "partition_two_level"]
