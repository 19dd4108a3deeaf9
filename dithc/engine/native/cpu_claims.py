"""CPUs that pinned threads of other processes on this node use, because two teams on one CPU wait for each other.

A process claims a CPU by a socket in Linux's abstract namespace. Its name is in use until the process ends.
"""

import errno
import socket
import threading
from collections.abc import Iterable

_held: dict[int, socket.socket] = {}
_lock = threading.Lock()


def claim(cpus: Iterable[int]) -> list[int]:
    """Claim CPUs for the lifetime of this process; return CPUs that another process has claimed."""
    with _lock:
        return [cpu for cpu in sorted(set(cpus) - _held.keys()) if _is_taken(cpu)]


def _is_taken(cpu: int) -> bool:
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\0dithc pinned CPU {cpu}")
    except OSError as error:
        name.close()
        return error.errno == errno.EADDRINUSE
    _held[cpu] = name
    return False
