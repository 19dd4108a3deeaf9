"""Memory of this process from the kernel: size, current and peak, and memory nodes and huge pages of its mappings."""

import ctypes
import re
import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from dithc.core.units import KIB
from dithc.engine.hardware import Limits


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


@dataclass(frozen=True)
class PeakMemory:
    """Peak memory of this process by type, in bytes.

    Attributes:
        private_bytes: peak of the memory without files and shared memory.
        shared_bytes: this process's proportional share of shared memory now.
        file_bytes: pages of programs and libraries now; all processes of a node share them.
    """

    private_bytes: int
    shared_bytes: int
    file_bytes: int

    @classmethod
    def read(cls, *, proc: Path = Path("/proc")) -> Self:
        """Return the memory of this process since its start, or since `reset_peak_rss`."""
        status, rollup = proc / "self/status", proc / "self/smaps_rollup"
        shared, file = (_field_bytes(status, key=key) or 0 for key in ("RssShmem:", "RssFile:"))
        proportional = _field_bytes(rollup, key="Pss_Shmem:")
        private = max(0, peak_rss_bytes(proc=proc) - shared - file)
        return cls(private, shared if proportional is None else proportional, file)


def pss_bytes(process: int | str = "self", *, proc: Path = Path("/proc")) -> int | None:
    """Return the proportional set size of a process; None if the kernel has no smaps_rollup.

    A page shared by n processes counts 1/n, so that a sum over ranks counts each page once.
    """
    return _field_bytes(proc / str(process) / "smaps_rollup", key="Pss:")


def available_bytes(*, root: Path = Path("/")) -> int | None:
    """Return the memory still available to this process, by machine and control group; None if unknown."""
    return Limits.read(root).memory_available_bytes


_ranks = 1


def ranks_on_node(count: int | None = None) -> int:
    """Return the number of ranks that share the memory of this node, or set it: 1 until the ranks are connected."""
    global _ranks
    _ranks = _ranks if count is None else count
    return _ranks


def _field_bytes(path: Path, *, key: str) -> int | None:
    lines = _text(path).splitlines()
    return next((int(line.split()[1]) * KIB for line in lines if line.startswith(key)), None)


_HEADER = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S{4} ")
_HUGE = ("AnonHugePages:", "Shared_Hugetlb:", "Private_Hugetlb:")
_PAGES = re.compile(r"N(\d+)=(\d+)")

Range = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class PageResidency:
    """Kernel data about memory ranges. A mapping with other memory counts by its share of addresses.

    Attributes:
        bytes_of_node: Resident bytes per memory node; empty if the kernel has no numa_maps.
        huge_bytes: Part of them on transparent huge pages; None if the kernel has no smaps.
        reserved_bytes: Bytes on huge pages reserved by the administrator (hugetlb); None if the kernel has no smaps.
        policies: Number of mappings per policy, such as `default` or `prefer:0`.
    """

    bytes_of_node: Mapping[int, int] = field(default_factory=dict)
    huge_bytes: int | None = None
    reserved_bytes: int | None = None
    policies: Mapping[str, int] = field(default_factory=dict)

    @property
    def resident_bytes(self) -> int:
        return sum(self.bytes_of_node.values())


def page_residency(ranges: Iterable[Range], *, proc: Path = Path("/proc")) -> PageResidency:
    """Return the residence of address ranges (start, stop), from smaps and numa_maps of this process."""
    requested = sorted(ranges)
    mappings = _mappings(_text(proc / "self/smaps"))
    if not mappings:
        return PageResidency()
    shares = {start: _overlap((start, stop), requested) / (stop - start) for start, (stop, *_) in mappings.items()}
    huge = sum(shares[start] * huge_bytes for start, (_, huge_bytes, _) in mappings.items())
    reserved = sum(shares[start] * reserved_bytes for start, (_, _, reserved_bytes) in mappings.items())
    nodes: dict[int, float] = {}
    policies: dict[str, int] = {}
    for line in _text(proc / "self/numa_maps").splitlines():
        address, policy, *fields = line.split()
        share = shares.get(int(address, 16), 0.0)
        if not share:
            continue
        policies[policy] = policies.get(policy, 0) + 1
        page_bytes = next((int(w.split("=")[1]) * KIB for w in fields if w.startswith("kernelpagesize_kB=")), 4 * KIB)
        for text in fields:
            if match := _PAGES.fullmatch(text):
                node = int(match[1])
                nodes[node] = nodes.get(node, 0.0) + share * int(match[2]) * page_bytes
    return PageResidency(
        bytes_of_node={node: round(count) for node, count in sorted(nodes.items())},
        huge_bytes=round(huge),
        reserved_bytes=round(reserved),
        policies=dict(sorted(policies.items())),
    )


def _mappings(smaps: str) -> dict[int, tuple[int, int, int]]:
    """Return end, transparent and reserved huge-page bytes of each mapping, by its start."""
    mappings: dict[int, tuple[int, int, int]] = {}
    start = None
    for line in smaps.splitlines():
        if match := _HEADER.match(line):
            start = int(match[1], 16)
            mappings[start] = (int(match[2], 16), 0, 0)
        elif start is not None and line.startswith(_HUGE):
            stop, huge_bytes, reserved_bytes = mappings[start]
            size = int(line.split()[1]) * KIB
            is_transparent = line.startswith("AnonHugePages:")
            mappings[start] = (stop, huge_bytes + is_transparent * size, reserved_bytes + (not is_transparent) * size)
    return mappings


def _overlap(mapping: Range, ranges: list[Range]) -> int:
    return sum(max(0, min(mapping[1], stop) - max(mapping[0], start)) for start, stop in ranges)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
