"""Exit statuses of dithc's commands, and the process tree of this machine from /proc."""

from pathlib import Path

STOPPED = 75  # stopped and saved: run again (EX_TEMPFAIL of sysexits.h)
HELD = 76  # another process works on the same run or folder


def process_fields(pid: int | str, *, proc: Path = Path("/proc")) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; an empty list if the process is gone."""
    try:
        return (proc / f"{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def child_processes(*, proc: Path = Path("/proc")) -> dict[int, list[int]]:
    """Return the children of each process, without processes that have ended."""
    children: dict[int, list[int]] = {}
    for folder in proc.glob("[0-9]*"):
        state, parent = (process_fields(folder.name, proc=proc) or ["X", "0"])[:2]
        if state not in "ZX":
            children.setdefault(int(parent), []).append(int(folder.name))
    return children


def descendants(pid: int, *, proc: Path = Path("/proc")) -> list[int]:
    """Return the processes below a process, parents first."""
    children, pids = child_processes(proc=proc), [pid]
    for parent in pids:
        pids += children.get(parent, ())
    return pids[1:]
