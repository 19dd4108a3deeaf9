"""Description of the machine: sockets, dies, core clusters, cores, caches, memory, and limits on this process.

Purpose: threads, ranks and placement depend on the topology, and on limits of the container, batch system or `taskset`.

Contents: `discover_machine` reads the machine, `core_plan` assigns cores to ranks, `affinity` binds and verifies them. A core
cluster is, by rule: a NUMA node with CPUs if a die has several of them; else the cores sharing an L3 cache; else the
cores sharing an L2 cache, if the die has several; else the entire die. A die is the kernel's die, unless several of
these share a NUMA node (then it is the socket). Without dies in the kernel (Arm), it is a group of NUMA nodes that are
nearer to each other than to the rest of their socket.

Invariants: `discover_machine` only reads sysfs and procfs below a root folder, so that a directory tree can emulate another
machine, as can a description in DITHC_MACHINE_FILE (`description.read`). `core_plan` is a pure function of the machine. Only
`affinity.apply` has side effects, and it logs them. `affinity.verify` reads the result back from the kernel.

Extending: a new property is a field of `Machine`, read in `sysfs.py`, with a test tree and a key in `description.py`.
Grouping rules are in `topology.py`, memory rules in `memory_tiers.py`. A placement rule is in `core_plan.py`, with the reason
that it prints.
"""

from dithc.engine.hardware import affinity, description
from dithc.engine.hardware.core_plan import CorePlan, RankPlan, plan_cores
from dithc.engine.hardware.cpu_counters import CpuCounters
from dithc.engine.hardware.limits import Limits
from dithc.engine.hardware.machine import Machine
from dithc.engine.hardware.sysfs import discover_machine

__all__ = [
    "CorePlan",
    "CpuCounters",
    "Limits",
    "Machine",
    "RankPlan",
    "affinity",
    "description",
    "discover_machine",
    "plan_cores",
]
