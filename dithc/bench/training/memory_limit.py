"""Limit on the memory of a run, and its enforcement."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from dithc.core.logging import get_logger

CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
# A killed process keeps its group until the kernel has reclaimed its memory.
LONGEST_WAIT_SECONDS, PAUSE_SECONDS = 10.0, 0.02
log = get_logger(__name__)


def _own_v2(root: Path, own_groups: Path) -> Path:
    """Return this process's version 2 group, or raise OSError if it does not delegate memory control."""
    folder = root / _path_of(own_groups, controller="")
    if "memory" not in (folder / "cgroup.subtree_control").read_text().split():
        raise OSError(f"{folder} does not delegate memory control")
    return folder


def _own_v1(root: Path, own_groups: Path) -> Path:
    """Return this process's version 1 group, or raise OSError if its limits exclude child groups."""
    folder = root / "memory" / _path_of(own_groups, controller="memory")
    if (folder / "memory.use_hierarchy").read_text().strip() != "1":
        raise OSError(f"limits of {folder} exclude its child groups")
    return folder


def _path_of(own_groups: Path, *, controller: str) -> str:
    """Return the path of this process's group under a version 1 controller, or under version 2 with an empty name."""
    for line in own_groups.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.lstrip("/")
    raise OSError("this process is not in a control group")


class _Version(NamedTuple):
    """Version of control groups: function that returns the group of this process, and names of files."""

    name: str
    find_group: Callable[[Path, Path], Path]
    limit: str
    swap: str
    kills: str


V1 = _Version("v1", _own_v1, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control")
V2 = _Version("v2", _own_v2, "memory.max", "memory.swap.max", "memory.events")


class MemoryLimit:
    """Limit on all ranks of a run together: a control group if possible, else RLIMIT_DATA for each rank.

    A control group counts all pages that its processes touch first, including file pages, which it writes back before
    it kills. RLIMIT_DATA counts only private memory. It rejects allocations and ignores library code and a file tier.

    Attributes:
        description: text about the mechanism; empty without a limit.
        data_bytes: RLIMIT_DATA of each rank; None under a control group.
    """

    def __init__(
        self, limit_bytes: int | None, *, ranks: int, root: Path = CGROUPS, own_groups: Path = OWN_GROUPS
    ) -> None:
        self.description, self.data_bytes = "", None
        self._folder: Path | None = None
        self._version = V2
        if limit_bytes is None:
            return
        reasons = []
        for version in (V2, V1):
            try:
                self._create(version, version.find_group(root, own_groups) / f"dithc-bench-{os.getpid()}", limit_bytes)
            except OSError as error:
                reasons.append(f"{version.name}: {error}")
            else:
                return
        self.data_bytes = limit_bytes // ranks
        self.description = (
            f"private memory (RLIMIT_DATA) of {self.data_bytes} bytes for each of {ranks} rank(s), without file pages: "
            f"no control group can be created ({'; '.join(reasons)})"
        )

    def _create(self, version: _Version, folder: Path, limit_bytes: int) -> None:
        """Create a group without swap. Version 1 limits memory and swap together."""
        folder.mkdir()
        try:
            (folder / version.limit).write_text(str(limit_bytes))
            swap, swap_text = folder / version.swap, "swap unlimited, because this kernel does not count it"
            if swap.exists():
                swap.write_text(str(limit_bytes) if version is V1 else "0")
                swap_text = "no swap"
        except OSError:
            folder.rmdir()
            raise
        self._folder, self._version = folder, version
        limit = f"{version.limit} {limit_bytes} for all ranks together"
        self.description = f"control group {folder} ({version.name}), {limit}, {swap_text}"

    def enter(self) -> None:
        """Enter the group in the child, before it starts the launcher."""
        if self._folder is not None:
            (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def has_killed(self) -> bool:
        """Test whether the control group killed a process; False on kernels before 4.13."""
        if self._folder is None:
            return False
        lines = (self._folder / self._version.kills).read_text().splitlines()
        return any(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def close(self) -> None:
        """Remove the control group after its processes have ended."""
        deadline = time.monotonic() + LONGEST_WAIT_SECONDS
        while self._folder is not None:
            try:
                self._folder.rmdir()
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    log.warning(
                        f"control group {self._folder} cannot be removed: {error}; end its processes, then run rmdir"
                    )
                    return
                time.sleep(PAUSE_SECONDS)
