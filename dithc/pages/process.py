"""Resident memory of this process, current and peak, and the available memory of the machine."""

import ctypes
import resource
from pathlib import Path

from dithc.hardware import Limits

KIB = 1024


def peak_rss_bytes(*, proc: Path = Path("/proc")) -> int:
    """Return the highest resident size of this process so far, or since `reset_peak_rss`.

    The kernel's VmHWM covers the program only. The fallback getrusage also counts memory from before exec.
    """
    peak = _field_bytes(proc / "self/status", key="VmHWM:")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB if peak is None else peak


def reset_peak_rss(*, proc: Path = Path("/proc")) -> bool:
    """Return free heap memory and reset the peak to the current size; False if the kernel does not allow it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only; other libraries return memory automatically
    if trim is not None:
        trim(0)
    try:
        (proc / "self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def pss_bytes(process: int | str = "self", *, proc: Path = Path("/proc")) -> int | None:
    """Return the proportional set size of a process; None if the kernel has no smaps_rollup.

    A page shared by n processes counts 1/n, so that a sum over ranks counts each page once.
    """
    return _field_bytes(proc / str(process) / "smaps_rollup", key="Pss:")


def available_bytes(*, root: Path = Path("/")) -> int | None:
    """Return the memory still available to this process, by machine and control group; None if unknown."""
    return Limits.read(root).memory_available_bytes


_ranks = 1


def ranks_on_node(told: int | None = None) -> int:
    """Return the number of ranks that share the memory of this node, or set it: 1 until the ranks are connected."""
    global _ranks
    _ranks = _ranks if told is None else told
    return _ranks


def _field_bytes(path: Path, *, key: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * KIB for line in lines if line.startswith(key)), None)
