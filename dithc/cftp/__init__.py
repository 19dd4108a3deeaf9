"""The cut of work among clusters, and among the cores of a cluster.

Why: the clusters of a die form the tensor-parallel group, and every operation's output is cut among them; the same cut
shares a global batch among ranks.
Invariants: `partition` is a pure function; its parts cover the whole range, in order, without overlap, for any size and
any number of parts: nothing must divide anything.
How to change it: a cut that prefers a dimension or a tile size is another argument of `partition`, property-tested.
"""

from dithc.cftp.partition import partition, partition_two_level

__all__ = ["partition", "partition_two_level"]
