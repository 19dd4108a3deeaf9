"""Limits on this process: its CPU mask, and the CPU and memory limits of its control groups."""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from dithc.core.units import KIB

# A v1 group without a memory limit reports a number near 2**63, far above any real memory.
UNLIMITED_BYTES = 1 << 60


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Parse the kernel's list format, `0-3,8,10-11`, as sorted numbers; empty for an empty text."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            numbers.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(numbers))


Count = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[float, Field(strict=True, gt=0)]
Cpus = Annotated[tuple[int, ...], BeforeValidator(lambda value: parse_cpu_list(str(value)))]
"""CPUs, in descriptions in the kernel's list format."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on this process; None if unlimited or unknown.

    Attributes:
        allowed_cpus: online logical CPUs in the affinity mask (which cpusets and `taskset` set), sorted.
        cpu_quota: CPU time that the control group allows, in CPUs.
        memory_limit_bytes: smallest control-group limit.
        memory_available_bytes: memory left before the machine or the group runs out.
    """

    allowed_cpus: Cpus
    cpu_quota: Positive | None = None
    memory_limit_bytes: Count | None = None
    memory_available_bytes: Count | None = None

    @classmethod
    def read(cls, root: Path = Path("/")) -> "Limits":
        """Read the limits of this process from procfs and the control groups below `root`."""
        online = online_cpus(root)
        allowed = mask_of(root / "proc/self/status", online=online) or online or tuple(range(os.cpu_count() or 1))
        meminfo = (line.split() for line in (read_text(root / "proc/meminfo") or "").splitlines())
        available = [int(parts[1]) * KIB for parts in meminfo if parts[:1] == ["MemAvailable:"]]
        limits = []
        for group in control_groups(root, controller="memory"):
            if (limit := _group_memory_limit(group)) is not None:
                limits.append(limit)
                available.append(max(0, limit - _group_memory_used(group)))
        quotas = [
            quota for group in control_groups(root, controller="cpu") if (quota := _group_cpu_quota(group)) is not None
        ]
        return cls(
            allowed_cpus=allowed,
            cpu_quota=min(quotas, default=None),
            memory_limit_bytes=min(limits, default=None),
            memory_available_bytes=min(available, default=None),
        )

    @staticmethod
    def out_of_memory_kills(root: Path = Path("/")) -> int:
        """Count the processes that the system has killed because a control group of this process ran out of memory."""
        texts = (
            read_text(group / name)
            for group in control_groups(root, controller="memory")
            for name in ("memory.events", "memory.oom_control")
        )
        lines = [line.split() for text in texts for line in (text or "").splitlines()]
        return sum(int(parts[1]) for parts in lines if len(parts) == 2 and parts[0] == "oom_kill")


def read_text(path: Path) -> str | None:
    """Return the text of a small file without surrounding space, or None if the kernel does not provide it."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    """Return the integer in a file, or None without a file; the kernel writes -1 for unknown values."""
    text = read_text(path) or ""
    return int(text) if text.isdigit() else None


def online_cpus(root: Path) -> tuple[int, ...]:
    """Return the online logical CPUs; empty if sysfs does not report them."""
    return parse_cpu_list(read_text(root / "sys/devices/system/cpu/online") or "")


def mask_of(status: Path, *, online: Collection[int]) -> tuple[int, ...]:
    """Return the CPU mask in a `status` file of procfs, sorted; empty if it contains none.

    An unset mask includes offline CPUs; on a virtual machine often a hundred that may be added later.
    """
    for line in (read_text(status) or "").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            cpus = parse_cpu_list(line.split(":", 1)[1])
            return tuple(sorted(set(cpus).intersection(online))) if online else cpus
    return ()


def control_groups(root: Path, *, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups of a controller, up to the mount (v1 and v2)."""
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        hierarchy, controllers, group = line.split(":", 2)
        version2 = hierarchy == "0" and not controllers
        if not version2 and controller not in controllers.split(","):
            continue
        mount = _mount(root, controller=None if version2 else controller)
        if mount is None:
            continue
        mount_root, mount_point = mount
        # Inside a container the mount shows only a part of the hierarchy, and the path is relative to that part.
        inside = os.path.relpath(group, mount_root) if Path(group).is_relative_to(mount_root) else "."
        folder = mount_point / inside
        yield folder
        while folder != mount_point and mount_point in folder.parents:
            folder = folder.parent
            yield folder


def _mount(root: Path, *, controller: str | None) -> tuple[str, Path] | None:
    """Return (root of the mount in the hierarchy, mount point) of a v1 controller, or of the v2 tree for None."""
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        mount_text, _, file_system = line.partition(" - ")
        fields, (kind, _, options) = mount_text.split(), [*file_system.split(), "", "", ""][:3]
        is_match = kind == "cgroup2" if controller is None else kind == "cgroup" and controller in options.split(",")
        if is_match:
            return fields[3], root / fields[4].lstrip("/")
    return None


def _group_cpu_quota(group: Path) -> float | None:
    if version2 := read_text(group / "cpu.max"):
        quota, period = version2.split()
        return None if quota == "max" else int(quota) / int(period)
    quota_us, period_us = (read_number(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return quota_us / period_us if quota_us and period_us else None


def _group_memory_limit(group: Path) -> int | None:
    limits = (read_number(group / name) for name in ("memory.max", "memory.limit_in_bytes"))
    return min((limit for limit in limits if limit and limit < UNLIMITED_BYTES), default=None)


def _group_memory_used(group: Path) -> int:
    """Return the memory charged to the group, without the page cache that the kernel would drop under pressure."""
    used = max(read_number(group / name) or 0 for name in ("memory.current", "memory.usage_in_bytes"))
    for line in (read_text(group / "memory.stat") or "").splitlines():
        key, _, value = line.partition(" ")
        if key == "total_inactive_file" or (key == "inactive_file" and (group / "memory.current").exists()):
            return max(0, used - int(value))
    return used
