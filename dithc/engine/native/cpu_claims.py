"""CPUs that pinned threads of other processes on this node use, because two teams on one CPU wait for each other.

A process claims a CPU by a socket in Linux's abstract namespace. Its name is in use until the process ends.
"""

import errno
import socket
import threading
from collections.abc import Iterable

_sockets: dict[int, socket.socket] = {}
_lock = threading.Lock()


def claim(cpus: Iterable[int]) -> list[int]:
    """Claim CPUs for the lifetime of this process; return CPUs that another process has claimed."""
    with _lock:
        return [cpu for cpu in sorted(set(cpus) - _sockets.keys()) if _is_in_use(cpu)]


def _is_in_use(cpu: int) -> bool:
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\0dithc pinned CPU {cpu}")
    except OSError as error:
        name.close()
        return error.errno == errno.EADDRINUSE
    _sockets[cpu] = name
    return False
