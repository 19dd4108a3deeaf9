"""CPU time that this process did not receive, by reason: quota, hypervisor, other processes."""

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from dithc.core.units import GIGA
from dithc.engine.hardware.limits import control_groups, read_number, read_text

HELPERS = (
    "dithc-mpi",
    "dithc-idle",
    "dithc-load",
    "dithc-offload",
)  # threads that wait for a core without a delay of the computation
KILO, MICRO, NANO = 1e3, 1e-6, 1e-9


@dataclass(frozen=True, kw_only=True)
class CpuCounters:
    """Counters at one moment, in seconds; compare two of them with `since`.

    Attributes:
        throttled: time for which quotas of the control group, and of groups above it, have stopped each of its CPUs.
        stolen: by logical CPU of this process, time in which the hypervisor ran other machines.
        delayed: by thread, except for communication and background work, time for which it was ready to run and waited for a CPU.
        major_faults: number of page faults that read from a disk.
        ghz: present mean clock rate of the CPUs; NaN if the kernel does not report it.
    """

    throttled: float
    stolen: Mapping[int, float]
    delayed: Mapping[str, float]
    major_faults: int
    ghz: float

    @classmethod
    def read(cls, root: Path = Path("/")) -> "CpuCounters":
        """Read the counters of this process from procfs and the control groups below `root`."""
        cpus = os.sched_getaffinity(0)
        return cls(
            throttled=sum(_throttled(group) for group in control_groups(root, controller="cpu")) / len(cpus),
            stolen=_stolen(root, cpus=cpus),
            delayed=_delayed(root / "proc/self/task"),
            major_faults=resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
            ghz=_clock_ghz(root, cpus=cpus),
        )

    def since(self, before: "CpuCounters") -> dict[str, float]:
        """Return the increase of each counter by name (for CPUs and threads, the largest), and the clock rate."""
        stolen = (seconds - before.stolen.get(cpu, seconds) for cpu, seconds in self.stolen.items())
        delayed = (seconds - before.delayed.get(thread, seconds) for thread, seconds in self.delayed.items())
        return {
            "throttled": self.throttled - before.throttled,
            "stolen": max(stolen, default=0.0),
            "delayed": max(delayed, default=0.0),
            "major_faults": float(self.major_faults - before.major_faults),
            "ghz": self.ghz,
        }


def _throttled(group: Path) -> float:
    fields = dict(line.partition(" ")[::2] for line in (read_text(group / "cpu.stat") or "").splitlines())
    return int(fields.get("throttled_usec", 0)) * MICRO + int(fields.get("throttled_time", 0)) * NANO


def _stolen(root: Path, *, cpus: set[int]) -> dict[int, float]:
    stolen = {}
    for line in (read_text(root / "proc/stat") or "").splitlines():
        name, *ticks = line.split()
        if name.startswith("cpu") and name != "cpu" and int(name[3:]) in cpus and len(ticks) > 7:
            stolen[int(name[3:])] = int(ticks[7]) / os.sysconf("SC_CLK_TCK")
    return stolen


def _delayed(tasks: Path) -> dict[str, float]:
    delayed = {}
    for thread in os.listdir(tasks) if tasks.is_dir() else []:
        fields = (read_text(tasks / thread / "schedstat") or "").split()
        if len(fields) > 1 and read_text(tasks / thread / "comm") not in HELPERS:
            delayed[thread] = int(fields[1]) * NANO
    return delayed


def _clock_ghz(root: Path, *, cpus: set[int]) -> float:
    rates = [read_number(root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq") for cpu in cpus]
    known = [rate for rate in rates if rate]
    return fmean(known) * KILO / GIGA if known else float("nan")
