"""Shared memory by name, in /dev/shm: names that nobody needs any more are taken away, so that nothing outlives its processes.

MPICH keeps the name of what the ranks of a node share for as long as they run, and removes it at their end; ranks that are killed
leave it, some megabytes each time. Memory that all ranks have mapped needs no name.
"""

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from dithc.log import logger

log = logger(__name__)

FOLDER = Path("/dev/shm")
PREFIXES = ("mpich_shm_", "ucx_shm_posix_", "dithc-")  # of MPICH, of what carries its messages, of ours


def take_names_away() -> None:
    """Removes the names of MPICH's memory that this process has mapped; once MPI has started on all ranks, nobody needs them."""
    for path in _mapped("self"):
        if path.name.startswith(PREFIXES[0]):
            with suppress(OSError):  # another rank was faster
                path.unlink()


def names() -> set[Path]:
    """Shared memory of ranks that there is, of this user."""
    found = set()
    for prefix in PREFIXES:
        for path in FOLDER.glob(f"{prefix}*"):
            with suppress(OSError):
                found |= {path} if path.lstat().st_uid == os.geteuid() else set()
    return found


def sweep(before: Collection[Path]) -> None:
    """Removes what has come since `before` and no process has open or mapped: its ranks were killed while they started."""
    if not (new := names() - set(before)):
        return
    processes = [folder.name for folder in Path("/proc").glob("[0-9]*")]
    # Who makes one has it open, then maps it, then closes it: looked at in this order, it is seen.
    used = {path for process in processes for path in _open(process)}
    used |= {path for process in processes for path in _mapped(process)}
    for path in sorted(new - used):
        log.info("removing %s: memory of ranks that were killed", path)
        with suppress(OSError):
            path.unlink()


def _open(process: str) -> set[Path]:
    found = set()
    with suppress(OSError):  # a process that has ended, or is another user's
        for handle in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                found.add(Path(os.readlink(handle)))
    return found


def _mapped(process: str) -> set[Path]:
    try:
        lines = Path(f"/proc/{process}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    return {Path(line[line.index("/") :]) for line in lines if f" {FOLDER}/" in line}
