"""A limit on the memory of a run, and how it is kept."""

import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


class MemoryLimit:
    """A limit on all ranks of a run together: a control group where one can be made, else RLIMIT_DATA for each rank.

    RLIMIT_DATA counts private writable mappings: neither the code of libraries nor a file tier. A control group counts all
    that is resident, of a file tier what is in memory just now. Groups of version 1 do not say whether a group below one's own
    may be made, so none is.

    Attributes:
        how: which of the two, in words; empty without a limit.
        data_bytes: RLIMIT_DATA of each rank; None where the control group sees to it.
    """

    def __init__(self, limit_bytes: int | None, *, ranks: int, root: Path = CGROUPS) -> None:
        self.how, self.data_bytes, self._folder = "", None, None
        if limit_bytes is None:
            return
        self._folder = _new_group(limit_bytes, root)
        if self._folder is not None:
            self.how = f"control group {self._folder}, memory.max {limit_bytes} bytes for all ranks together"
        else:
            self.data_bytes = limit_bytes // ranks
            self.how = (
                f"RLIMIT_DATA of {self.data_bytes} bytes for each of {ranks} rank(s): no control group (v2) can be made"
            )

    def enter(self) -> None:
        """Called in the child before it becomes the launcher."""
        if self._folder is not None:
            (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def struck(self) -> bool:
        """Whether the control group killed a process."""
        if self._folder is None:
            return False
        lines = (self._folder / "memory.events").read_text().splitlines()
        return any(line.startswith("oom_kill ") and int(line.split()[1]) > 0 for line in lines)

    def close(self) -> None:
        """Removes the control group."""
        if self._folder is not None:
            self._folder.rmdir()


def _new_group(limit_bytes: int, root: Path) -> Path | None:
    """A control group (v2) below our own with that limit, None where it cannot be made."""
    try:
        own = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        folder = root / own.lstrip("/") / f"dithc-bench-{os.getpid()}"
        if "memory" not in (folder.parent / "cgroup.subtree_control").read_text().split():
            return None
        folder.mkdir()
    except (OSError, StopIteration):
        return None
    try:
        (folder / "memory.max").write_text(str(limit_bytes))
    except OSError:
        folder.rmdir()
        return None
    return folder
