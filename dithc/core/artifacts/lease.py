"""Leases: at most one process writes to a folder, and a dead process does not block the next."""

import contextlib
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any, Self

from dithc.core.integrity import parse_json, require_regular_file
from dithc.core.logging import UserError, get_logger, user_error
from dithc.core.processes import HELD, start_time

HEARTBEAT_SECONDS = 5.0
EXPIRES_SECONDS = 45.0
# Observation time for a lease that has expired by the clocks, or was renewed in the future, because clocks may be wrong.
OBSERVED_SECONDS = 12.0
LEASE_FILE = "lease.json"
UNKNOWN: dict[str, Any] = {"host": "an unknown host", "boot": None, "pid": "?", "start": None, "id": None}
log = get_logger(__name__)


class LeaseHeldError(UserError):
    """Another process holds the lease of a folder."""

    status = HELD


def _boot() -> str | None:
    """Return boot and PID namespace, which distinguish containers and machines with the same name."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


class Lease:
    """Lease on a folder: holds `folder/lease.json` during a `with` block; a thread renews it every 5 seconds.

    A lease is free if its holder is a dead process of this host, or if the file does not change during observation. The
    observation takes 45 seconds, or 12 if the lease is older than 45 seconds by the clocks. Clocks alone do not decide,
    because they may be wrong. `wait_seconds` limits the wait for a free lease; old leases and leases from the future
    are always observed. A lease is taken by one atomic link, so only one of two processes succeeds.

    Raises:
        Lease.Held: Another process holds the lease and renews it.
    """

    Held = LeaseHeldError

    def __init__(self, folder: Path, *, wait_seconds: float = EXPIRES_SECONDS + HEARTBEAT_SECONDS) -> None:
        self.path, self.folder = folder / LEASE_FILE, folder
        self.wait_seconds = wait_seconds
        self._observed: tuple[object, float] = (None, 0.0)
        self._has_odd_time = False
        self.identity = {
            "host": socket.gethostname(),
            "boot": _boot(),
            "pid": os.getpid(),
            "start": start_time(os.getpid()),
            "id": time.time_ns(),
        }
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    @classmethod
    def for_folder(cls, folder: Path, *, wait_seconds: float = 2 * HEARTBEAT_SECONDS) -> Self:
        """Return the lease of a folder that may be replaced: its file is next to the folder if that is possible."""
        lease = cls(folder, wait_seconds=wait_seconds)
        real = folder.resolve()
        parent = real if real.is_dir() and not os.access(real.parent, os.W_OK) else real.parent
        lease.path = parent / f".{real.name}.{LEASE_FILE}"
        return lease

    @classmethod
    def find(cls, folder: Path) -> list[Self]:
        """Return the leases in a folder and its subfolders."""
        leases = []
        for path in sorted(folder.rglob(f"*{LEASE_FILE}")):
            leases.append(cls(path.parent, wait_seconds=0.0))
            leases[-1].path = path
        return leases

    def _acquire(self) -> dict[str, Any] | None:
        """Take the lease if it is free; otherwise return its holder."""
        candidate = self.path.with_name(f".lease.{self.identity['host']}.{self.identity['pid']}.{self.identity['id']}")
        candidate.parent.mkdir(parents=True, exist_ok=True)
        try:
            candidate.write_text(json.dumps(self.identity))  # no other process reads this name
            for _ in range(2):  # the second attempt follows the removal of a stale lease
                with contextlib.suppress(FileExistsError):
                    os.link(candidate, self.path)
                    self._sweep(now=candidate.stat().st_mtime)
                    return None
                holder, age = self._inspect(self.path, now=candidate.stat().st_mtime)
                self._has_odd_time = age is None or not -HEARTBEAT_SECONDS <= age <= EXPIRES_SECONDS
                if not self._is_free(age) or not self._remove_stale(holder, target=candidate.with_suffix(".stale")):
                    break
            return holder
        finally:
            candidate.unlink(missing_ok=True)

    def _sweep(self, *, now: float) -> None:
        for path in self.path.parent.glob(".lease.*"):
            with contextlib.suppress(OSError):
                owner, age = self._inspect(path, now=now)
                is_lease = owner["host"] != UNKNOWN["host"] and owner["id"] is not None
                if is_lease and (age is None or age > EXPIRES_SECONDS):
                    path.unlink()

    def _inspect(self, path: Path, *, now: float) -> tuple[dict[str, Any], float | None]:
        """Return the holder and the age of a lease; None for a dead holder. `now` is a time of its file system."""
        try:
            text, stat = require_regular_file(path).read_text(errors="replace"), path.stat()
        except FileNotFoundError:
            return UNKNOWN, None
        if path == self.path and self._observed[0] != (state := (text, stat.st_mtime_ns, stat.st_ino)):
            self._observed = (state, time.monotonic())
        content = UNKNOWN
        with contextlib.suppress(ValueError, TypeError):
            content = UNKNOWN | parse_json(text)
        is_local = (content["host"], content["boot"]) == (self.identity["host"], self.identity["boot"])
        is_dead = is_local and start_time(content["pid"]) != content["start"]
        return content, None if is_dead else now - stat.st_mtime

    def _is_free(self, age: float | None) -> bool:
        """Return True if a lease of this age may be taken, given its observation."""
        if age is None:
            return True
        unchanged = time.monotonic() - self._observed[1]
        return unchanged > (OBSERVED_SECONDS if age > EXPIRES_SECONDS else EXPIRES_SECONDS)

    def _remove_stale(self, holder: dict[str, Any], *, target: Path) -> bool:
        """Move a stale lease aside; restore it if another process has just taken it."""
        try:
            os.rename(self.path, target)
        except FileNotFoundError:
            return True
        try:
            if holder is not UNKNOWN and parse_json(require_regular_file(target).read_text())["id"] != holder["id"]:
                os.link(target, self.path)
                return False
            return True
        except (OSError, ValueError, KeyError, TypeError):
            return True
        finally:
            target.unlink(missing_ok=True)

    def holder(self) -> dict[str, Any] | None:
        """Return the holder (`host`, `pid`, `id`: time of acquisition in ns since 1970); None if the lease is free.

        Neither writes nor observes: the age is computed with the clock of this machine.
        """
        if not self.path.exists():
            return None
        content, age = self._inspect(self.path, now=time.time())
        return None if age is None or abs(age) > EXPIRES_SECONDS else content

    def holds(self) -> bool:
        """Return True if this process still holds the lease; called before every checkpoint (fencing)."""
        try:
            return bool(parse_json(require_regular_file(self.path).read_text())["id"] == self.identity["id"])
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _renew(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):  # a temporary error of the file system must not end the thread
                if self.holds():
                    os.utime(self.path)

    def __enter__(self) -> Self:
        start = time.monotonic()
        while (holder := self._acquire()) is not None:
            wait = max(self.wait_seconds, EXPIRES_SECONDS + HEARTBEAT_SECONDS if self._has_odd_time else 0.0)
            if time.monotonic() >= start + wait:
                raise LeaseHeldError(
                    user_error(
                        f"process {holder['pid']} on {holder['host']} works on {self.folder}",
                        got=f"an active lease ({self.path})",
                        expected="no other process that writes to this folder",
                        fix="wait for it, or stop it; then start again",
                    )
                )
            log.warning(f"waiting for process {holder['pid']} on {holder['host']} to finish, or its lease to expire")
            time.sleep(min(HEARTBEAT_SECONDS / 2, max(0.1, start + wait - time.monotonic())))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.holds():
            self.path.unlink(missing_ok=True)
