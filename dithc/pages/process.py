"""Resident memory of this process, now and at its peak, and what is left on the machine."""

import ctypes
import resource
from pathlib import Path

from dithc.hardware import Limits

KIB = 1024


def peak_rss_bytes(*, proc: Path = Path("/proc")) -> int:
    """Highest resident size of this process so far, or since `reset_peak_rss`.

    The kernel's VmHWM is the program's own; getrusage, the fallback, also counts what was resident before exec.
    """
    peak = _field_bytes(proc / "self/status", key="VmHWM:")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB if peak is None else peak


def reset_peak_rss(*, proc: Path = Path("/proc")) -> bool:
    """Gives free heap back and starts the peak anew from the current size; False where the kernel does not allow it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; others return memory by themselves
    if trim is not None:
        trim(0)
    try:
        (proc / "self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def pss_bytes(process: int | str = "self", *, proc: Path = Path("/proc")) -> int | None:
    """Proportional size of a process: pages shared by n processes count 1/n, so a sum over ranks counts each page once.

    None where the kernel has no smaps_rollup.
    """
    return _field_bytes(proc / str(process) / "smaps_rollup", key="Pss:")


def available_bytes(*, root: Path = Path("/")) -> int | None:
    """What can still be taken before the machine, or this process's control group, runs out; None when unknown."""
    return Limits.read(root).memory_available_bytes


_ranks = 1


def ranks_on_node(told: int | None = None) -> int:
    """How many ranks share the memory of this node: 1, until those who have connected tell."""
    global _ranks
    _ranks = _ranks if told is None else told
    return _ranks


def _field_bytes(path: Path, *, key: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * KIB for line in lines if line.startswith(key)), None)
