"""What machine is this: sockets, dies, clusters, cores, caches, memory nodes and tiers, and what we may use of it.

Why: every choice of threads, ranks and placement starts from the real topology and from the limits that a container, a
batch system or `taskset` put on this process; guessing either is how CPU training becomes slow.
Invariants: `discover` only reads (sysfs and procfs below a root folder: a written tree stands in for another machine; so does
a description, `description.read`, that DITHC_MACHINE names); `plan` is a pure function of the machine; only `placement.apply`
acts, and it says what it did; `placement.verify` reads back from the kernel what was asked of it.
A cluster is, by rule: a NUMA node with CPUs where a die holds several of them; else the cores sharing an L3 cache; else those
sharing an L2, where it has several; else the whole die. A die is what the kernel calls one, unless several of those share a NUMA
node (then the socket); where it calls none so (Arm), NUMA nodes that are nearer to each other than to the rest of their socket.
How to change it: a new fact is a field of `Machine` read in `sysfs.py`, with a written tree in the tests and a key in
`description.py`; a rule of grouping is in `grouping.py`, of memory in `tiers.py`; a new rule for placing ranks goes into
`plan.py`, together with the reason it prints.
"""

from dithc.hardware import description, placement
from dithc.hardware.limits import Limits
from dithc.hardware.machine import Machine
from dithc.hardware.plan import CorePlan, RankPlan, plan
from dithc.hardware.sysfs import discover

__all__ = ["CorePlan", "Limits", "Machine", "RankPlan", "description", "discover", "placement", "plan"]
