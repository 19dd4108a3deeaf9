"""The first thing to run when something is wrong or slow: what this machine is, what is off and why, what will hurt.

Why: most trouble on a CPU cluster is not in the program: a launcher of another MPI, two OpenMP runtimes, a quota on CPU
time, no compiler, a full disk. Each leaves a trace that can be read before the first job.
A profile for the cluster that is here is written (`write_profile`) and tried by jobs of a second (`check_profile`).
Invariants: `collect` changes nothing and always returns; a check that fails is a finding, not an exception; `bad` means
that work will fail or be wrong or far too slow, `warn` that something is off, with the fix beside it. `bad`, and so exit
status 1 of the verb, are: less than 2 GiB of memory or of disk; a package that is missing; an instruction set (HCOPS_ISA) or a
description (DITHC_MACHINE) that cannot be used; OpenMP runtimes of two kinds; more OpenMP threads asked for than CPUs allowed;
a launcher of another MPI than the library.
How to change it: a check is a function that returns findings, listed in `collect.CHECKS`; what it reads goes through an
argument or the environment, so that its test can show it another machine.
"""

from dithc.doctor.collect import collect, worst
from dithc.doctor.finding import Finding, Level
from dithc.doctor.node_probe import probe_node
from dithc.doctor.profile import write_profile
from dithc.doctor.profile_check import check_profile

__all__ = ["Finding", "Level", "check_profile", "collect", "probe_node", "worst", "write_profile"]
