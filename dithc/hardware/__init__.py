"""What machine is this: sockets, dies, clusters, cores, caches, memory nodes, and what we may use of it.

Why: every choice of threads, ranks and placement starts from the real topology and from the limits that a container, a
batch system or `taskset` put on this process; guessing either is how CPU training becomes slow.
Invariants: `discover` only reads (sysfs and procfs below a root folder: a written tree stands in for another machine);
`plan` is a pure function of the machine; only `apply` acts, and it says what it did. A cluster is, by rule: a NUMA node
with CPUs where a die holds several of them; else the cores sharing an L3 cache; else the whole die.
How to change it: a new fact is a field of `Machine` read in `sysfs.py` with a written tree in the tests; a new rule for
placing ranks goes into `plan.py`, together with the reason it prints.
"""

from dithc.hardware.limits import Limits
from dithc.hardware.machine import Machine, describe
from dithc.hardware.plan import CorePlan, RankPlan, apply, plan
from dithc.hardware.sysfs import discover

__all__ = ["CorePlan", "Limits", "Machine", "RankPlan", "apply", "describe", "discover", "plan"]
