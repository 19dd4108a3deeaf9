"""The lease: at most one trainer writes to a store folder, and a dead one does not block the next."""

import contextlib
import json
import os
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dithc.log import UserError, logger
from dithc.runs.files import atomic_write

HEARTBEAT_SECONDS = 5.0
EXPIRES_SECONDS = 45.0
log = logger(__name__)


class LeaseHeld(UserError):
    """Another trainer works on this store folder; the command line exits with status 76."""


def _start_time(pid: int) -> str | None:
    """Start time of a process of this host in clock ticks (field 22 of /proc/pid/stat), None if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


class Lease:
    """Holds `folder/lease.json` while a `with` block runs, renewed every 5 seconds by a thread.

    A lease is free when its holder is a dead process of this host, or has not renewed it for 45 seconds. `wait_seconds`
    is how long to wait for that before giving up.

    Raises:
        Lease.Held: somebody else holds it and went on renewing it.
    """

    Held = LeaseHeld

    def __init__(self, folder: Path, *, wait_seconds: float = EXPIRES_SECONDS + HEARTBEAT_SECONDS) -> None:
        self.path = folder / "lease.json"
        self.wait_seconds = wait_seconds
        self.mine = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "start": _start_time(os.getpid()),
            "id": time.time_ns(),
        }
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def _holder(self) -> dict[str, Any] | None:
        """Who holds the lease now, None if it is free."""
        try:
            content: dict[str, Any] = json.loads(self.path.read_text())
            age = time.time() - self.path.stat().st_mtime
            dead = content["host"] == self.mine["host"] and _start_time(content["pid"]) != content["start"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if dead:
            return None
        return None if age > EXPIRES_SECONDS else content

    def holds(self) -> bool:
        """Whether the lease is still ours; asked before every checkpoint (fencing)."""
        try:
            return bool(json.loads(self.path.read_text())["id"] == self.mine["id"])
        except (OSError, ValueError, KeyError):
            return False

    def _renew(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):  # a file system that hiccups must not end the thread
                if self.holds():
                    os.utime(self.path)

    def __enter__(self) -> Self:
        deadline = time.monotonic() + self.wait_seconds
        while (holder := self._holder()) is not None:
            if time.monotonic() >= deadline:
                raise LeaseHeld(
                    f"{self.path.parent} is being trained by process {holder['pid']} on {holder['host']}\n"
                    "  got:      a lease that is renewed\n  expected: no other trainer of the same run\n"
                    "  remedy:   wait for it, or stop it; then start again"
                )
            log.warning(f"waiting for the trainer on {holder['host']} (process {holder['pid']}) to finish or expire")
            time.sleep(min(HEARTBEAT_SECONDS, max(0.1, deadline - time.monotonic())))
        atomic_write(self.path, json.dumps(self.mine))
        if not self.holds():  # two starters renamed at once; the later one holds it
            raise LeaseHeld(f"{self.path} was taken by another trainer in the same moment\n  remedy:   start again")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self.holds():
            self.path.unlink(missing_ok=True)
