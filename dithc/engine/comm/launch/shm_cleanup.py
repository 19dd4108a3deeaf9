"""Shared memory in /dev/shm: check of its size, and removal of unused names.

MPICH keeps the name of a node's shared memory while the ranks run, and removes it when they exit. Killed ranks leave
the file, some megabytes each time. Memory that all ranks have mapped does not require a name.
"""

import os
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from dithc.core.logging import get_logger, user_error
from dithc.core.units import MIB

log = get_logger(__name__)

FOLDER = Path("/dev/shm")
PREFIXES = ("mpich_shm_", "ucx_shm_posix_", "dithc-")  # MPICH, its transport UCX, dithc

# Measured with MPICH 5.0 and 2 to 8 ranks: its own segment, without which it fails, and those of UCX and of `exchange`.
RANK_BYTES, FAST_RANK_BYTES = 1_070_000, 7_500_000


def check_shared_memory(ranks: int | None = None) -> None:
    """Reject a /dev/shm that is too small for the `ranks` of this node (None inside a rank): MPICH ends by SIGBUS."""
    if "MPIR_CVAR_NOLOCAL" in os.environ or (ranks is None and "PMI_RANK" not in os.environ):
        return  # MPICH without shared memory, or another MPI
    match = re.match(r"\d*", os.environ.get("MPI_LOCALNRANKS") or os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    number = ranks or int((match and match.group()) or 1)
    # The first rank of a node creates the segment, which may already reduce the free bytes on the other ranks.
    is_first = (os.environ.get("MPI_LOCALRANKID") or os.environ.get("SLURM_LOCALID", "0")) == "0"
    size, free = size_and_free()
    if min(size, free if ranks or is_first else size) < number * RANK_BYTES or not os.access(FOLDER, os.W_OK):
        raise user_error(
            f"{FOLDER} is too small for {number} rank(s)",
            got=f"{size / MIB:.2f} MiB in size, {free / MIB:.2f} MiB free" if size else "it does not exist",
            expected=f"writable, {number * RANK_BYTES / MIB:.2f} MiB free; {number * FAST_RANK_BYTES / MIB:.0f} MiB for speed",
            fix=f"start the container with --shm-size=1g, or `mount -o remount,size=1g {FOLDER}`; delete old files",
        )
    if ranks and free < ranks * FAST_RANK_BYTES:
        needed = ranks * FAST_RANK_BYTES / MIB
        log.warning("%s: %.0f MiB free; with %.0f MiB (--shm-size) ranks exchange faster", FOLDER, free / MIB, needed)


def size_and_free(folder: Path = FOLDER) -> tuple[int, int]:
    """Return size and free bytes of a folder's file system; zeros if it does not exist."""
    try:
        stats = os.statvfs(folder)
    except OSError:
        return 0, 0
    return stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize


def unlink_shared_memory() -> None:
    """Remove the names of MPICH's memory that this process has mapped, once MPI has started on all ranks."""
    for path in _mapped("self"):
        if path.name.startswith(PREFIXES[0]):
            with suppress(OSError):  # another rank was faster
                path.unlink()


def names() -> set[Path]:
    """Return the existing shared memory files of ranks of this user."""
    paths = set()
    for prefix in PREFIXES:
        for path in FOLDER.glob(f"{prefix}*"):
            with suppress(OSError):
                paths |= {path} if path.lstat().st_uid == os.geteuid() else set()
    return paths


def sweep(existing: Collection[Path]) -> None:
    """Remove files that are not in `existing` and that no process has open or mapped: of ranks that died at their start."""
    if not (new := names() - set(existing)):
        return
    processes = [folder.name for folder in Path("/proc").glob("[0-9]*")]
    # A process opens the file, maps it, then closes it. This order of checks cannot miss a user of the file.
    used = {path for process in processes for path in _open(process)}
    used |= {path for process in processes for path in _mapped(process)}
    for path in sorted(new - used):
        log.info("removing %s: shared memory of killed ranks", path)
        with suppress(OSError):
            path.unlink()


def _open(process: str) -> set[Path]:
    paths = set()
    with suppress(OSError):  # process has ended or belongs to another user
        for handle in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                paths.add(Path(os.readlink(handle)))
    return paths


def _mapped(process: str) -> set[Path]:
    try:
        lines = Path(f"/proc/{process}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    return {Path(line[line.index("/") :]) for line in lines if f" {FOLDER}/" in line}
