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

from dithc.log import UserError, logger, problem
from dithc.runs.files import atomic_write

HEARTBEAT_SECONDS = 5.0
EXPIRES_SECONDS = 45.0
UNKNOWN: dict[str, Any] = {"host": "an unknown host", "boot": None, "pid": "?", "start": None, "id": None}
log = logger(__name__)


class LeaseHeld(UserError):
    """Another trainer works on this store folder; the command line exits with status 76."""


def _boot() -> str | None:
    """Which boot of which kernel this is: tells containers and machines of the same name apart."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _start_time(pid: int) -> str | None:
    """Start time of a process of this host in clock ticks (field 22 of /proc/pid/stat), None if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


class Lease:
    """Holds `folder/lease.json` while a `with` block runs, renewed every 5 seconds by a thread.

    A lease is free when its holder is a dead process of this host, or has not renewed it for 45 seconds of the file
    server's clock. `wait_seconds` is how long to wait for that before giving up. Taking it is one atomic link, so that of two
    starters one has it.

    Raises:
        Lease.Held: somebody else holds it and went on renewing it.
    """

    Held = LeaseHeld

    def __init__(self, folder: Path, *, wait_seconds: float = EXPIRES_SECONDS + HEARTBEAT_SECONDS) -> None:
        self.path = folder / "lease.json"
        self.wait_seconds = wait_seconds
        self.mine = {
            "host": socket.gethostname(),
            "boot": _boot(),
            "pid": os.getpid(),
            "start": _start_time(os.getpid()),
            "id": time.time_ns(),
        }
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def _take(self) -> dict[str, Any] | None:
        """Takes the lease if it is free; otherwise says who holds it."""
        ours = self.path.with_name(f".lease.{self.mine['host']}.{self.mine['pid']}.{self.mine['id']}")
        atomic_write(ours, json.dumps(self.mine))
        try:
            for _ in range(2):  # once more after a stale lease was put away
                with contextlib.suppress(FileExistsError):
                    os.link(ours, self.path)
                    return None
                holder, stale = self._look(now=ours.stat().st_mtime)
                if not stale or not self._put_away(holder, aside=ours.with_suffix(".stale")):
                    break
            return holder
        finally:
            ours.unlink(missing_ok=True)

    def _look(self, *, now: float) -> tuple[dict[str, Any], bool]:
        """Who holds the lease, and whether it is stale; `now` is by the clock of the file system it stands on."""
        try:
            text, renewed = self.path.read_text(), self.path.stat().st_mtime
        except FileNotFoundError:
            return UNKNOWN, True
        try:
            content: dict[str, Any] = UNKNOWN | json.loads(text)
        except (ValueError, TypeError):
            content = UNKNOWN
        here = (content["host"], content["boot"]) == (self.mine["host"], self.mine["boot"])
        dead = here and _start_time(content["pid"]) != content["start"]
        return content, dead or now - renewed > EXPIRES_SECONDS

    def _put_away(self, holder: dict[str, Any], *, aside: Path) -> bool:
        """Moves a stale lease aside; gives it back if it is a fresh one that another starter has just taken."""
        try:
            os.rename(self.path, aside)
        except FileNotFoundError:
            return True
        try:
            if holder is not UNKNOWN and json.loads(aside.read_text())["id"] != holder["id"]:
                os.link(aside, self.path)
                return False
            return True
        except (OSError, ValueError, KeyError, TypeError):
            return True
        finally:
            aside.unlink(missing_ok=True)

    def holder(self) -> dict[str, Any] | None:
        """Who holds the lease now (`host`, `pid`, `id`: when it was taken, in ns since 1970); None where it is free.

        Nothing is written: the lease's age is by the clock of this machine.
        """
        if not self.path.exists():
            return None
        content, stale = self._look(now=time.time())
        return None if stale else content

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
        while (holder := self._take()) is not None:
            if time.monotonic() >= deadline:
                raise LeaseHeld(
                    problem(
                        f"{self.path.parent} is being trained by process {holder['pid']} on {holder['host']}",
                        got="a lease that is renewed",
                        expected="no other trainer of the same run",
                        remedy="wait for it, or stop it; then start again",
                    )
                )
            log.warning(f"waiting for the trainer on {holder['host']} (process {holder['pid']}) to finish or expire")
            time.sleep(min(HEARTBEAT_SECONDS, max(0.1, deadline - time.monotonic())))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self.holds():
            self.path.unlink(missing_ok=True)
