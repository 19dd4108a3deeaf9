"""Diagnosis of the machine and the installation: properties, missing parts with reasons, and problems with fixes.

Purpose: most problems on a CPU cluster are outside the program: a launcher of another MPI, two OpenMP runtimes, a CPU
quota, no compiler, a full disk. Each can be detected before the first job.

Contents: `run_checks` runs all checks. `write_profile` writes a profile for the present cluster, `check_profile` tests it
by one-second jobs.

Invariants: `run_checks` changes nothing and always returns. A failed check is a finding, not an exception. `error` means
that work will fail, be wrong or far too slow, and sets exit status 1; `warning` marks a defect with a fix. `error` are: less
than 2 GiB of memory or disk; a missing package; an unusable instruction set (HCOPS_ISA) or description (DITHC_MACHINE_FILE);
two types of OpenMP runtimes; more OpenMP threads than allowed CPUs; a launcher of another MPI than the library;
shared memory for fewer than two ranks.

Extending: a check is a function that returns findings, listed in `run_checks.CHECKS`. It reads the system through an
argument or the environment, so that its test can emulate another machine.
"""

from dithc.engine.doctor.finding import CheckResult
from dithc.engine.doctor.node_probe import probe_node
from dithc.engine.doctor.profile_check import check_profile, measured_bandwidth
from dithc.engine.doctor.profile_writer import write_profile
from dithc.engine.doctor.profiles import job_options, profile_folder, update_profile
from dithc.engine.doctor.run_checks import run_checks, worst_level

__all__ = [
    "CheckResult",
    "check_profile",
    "job_options",
    "measured_bandwidth",
    "probe_node",
    "profile_folder",
    "run_checks",
    "update_profile",
    "worst_level",
    "write_profile",
]
