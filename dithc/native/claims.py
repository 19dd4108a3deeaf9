"""Which CPUs the pinned threads of other processes on this node have: two teams on one CPU wait for each other.

A process that pins a thread to a CPU binds a socket in Linux's abstract namespace, whose name holds the number of the CPU.
The name is taken as long as the process lives, however it ends, and leaves nothing behind in any file system.
"""

import errno
import socket
import sys
import threading
from collections.abc import Iterable

_held: dict[int, socket.socket] = {}
_lock = threading.Lock()


def claim(cpus: Iterable[int]) -> list[int]:
    """Claims CPUs for this process, for as long as it lives; returns those that another process has claimed, in order.

    Where the system has no such names (another one than Linux, a sandbox), nothing is claimed and nobody is found.
    """
    with _lock:
        return [cpu for cpu in sorted(set(cpus) - _held.keys()) if _is_taken(cpu)]


def _is_taken(cpu: int) -> bool:
    if sys.platform != "linux":
        return False
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\0dithc pinned CPU {cpu}")
    except OSError as error:
        name.close()
        return error.errno == errno.EADDRINUSE
    _held[cpu] = name
    return False
