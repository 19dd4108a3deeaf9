"""Storage of long measurements, so that an interrupted command resumes with the finished units.

A `MeasurementSession` is one execution of a benchmark. It stores each complete unit (a run, a case, a round of
interleaved variants) as a line of a file. Ctrl-C and SIGTERM discard the running unit; the benchmark then returns a
result from the finished units. Units measured with different arguments or in a different environment are discarded.
"""

import json
import os
import signal
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from dithc.core.artifacts import difference
from dithc.core.integrity import dump_checksummed_line, load_checksummed_lines, require_regular_file
from dithc.core.logging import get_logger

Value = TypeVar("Value")
log = get_logger(__name__)


class MeasurementStopped(BaseException):
    """Signal that a unit was not measured because the benchmark is stopping."""


class MeasurementSession:
    """One execution of a benchmark, which reuses the units of interrupted executions with the same settings.

    `settings` are all values that determine the measured values. A difference discards the stored units.

    Attributes:
        path: file of the stored units; None stores none.
        stopped_by: "Ctrl-C" or the signal name; an empty string before an interruption.
        number: count of executions so far, from 1.
    """

    def __init__(self, path: Path | None = None, *, settings: Mapping[str, Any] | None = None) -> None:
        self.path, self.stopped_by, self.number = path, "", 1
        self._settings = json.loads(json.dumps(settings or {}, default=str))
        self._stored: defaultdict[str, deque[Any]] = defaultdict(deque)
        self._num_units, self._has_header, self._is_outdated = 0, False, False
        if path is not None and path.exists():
            self._load(path)

    def unit(self, name: str, make: Callable[[], Value], *, keep: Callable[[Value], bool] = lambda _: True) -> Value:
        """Return the JSON value of `make`, or its stored value, and store values that `keep` accepts.

        `name` describes the measurement. Units with the same name are reused in their order.

        Raises:
            MeasurementStopped: the unit is not stored, and the benchmark is stopping.
        """
        if self._stored[name]:
            return self._stored[name].popleft()  # type: ignore[no-any-return]
        if self.stopped_by:
            raise MeasurementStopped
        try:
            value = make()
        except (KeyboardInterrupt, SystemExit) as error:
            if not self._num_units:  # a result needs a finished unit
                raise
            self.stopped_by = "Ctrl-C" if isinstance(error, KeyboardInterrupt) else "SIGTERM"
            log.warning(f"stopped by {self.stopped_by}: reporting the finished units, without {name}")
            raise MeasurementStopped from None
        self._num_units += 1
        if keep(value):
            self._write({"unit": name, "value": value})
        return value

    def end(self) -> None:
        """Delete the stored units after the benchmark is complete."""
        if self.path is not None and (self._has_header or not self._is_outdated):
            self.path.unlink(missing_ok=True)

    def _load(self, path: Path) -> None:
        rows, _ = load_checksummed_lines(require_regular_file(path).read_text(errors="replace"))
        headers = [row["settings"] for row in rows if "settings" in row]
        differing = [change for settings in headers if (change := difference(settings, self._settings))]
        if not headers or differing:
            reason = f"the environment or the arguments changed: {differing[0]}" if headers else "its header is missing"
            log.warning(f"discarding the measurements in {path}: {reason}")
            self._is_outdated = True
            return
        self.number = 1 + len(headers)
        for row in rows:
            if "unit" in row:
                self._stored[row["unit"]].append(row["value"])
                self._num_units += 1
        log.info(f"resuming after {self._num_units} units in {path}")

    def _write(self, row: Mapping[str, Any]) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("w" if self._is_outdated and not self._has_header else "a") as file:
            if not self._has_header:
                file.write(dump_checksummed_line({"settings": self._settings, "time": time.time()}))
            file.write(dump_checksummed_line(dict(row)))
            file.flush()
            os.fsync(file.fileno())
        self._has_header = True


_sessions: list[MeasurementSession] = []


def current_session() -> MeasurementSession:
    """Return the current execution; outside of `measurement_session`, an execution that stores no units."""
    return _sessions[-1] if _sessions else MeasurementSession()


@contextmanager
def measurement_session(path: Path | None, *, settings: Mapping[str, Any]) -> Iterator[MeasurementSession]:
    """Make an execution current during a block, in which SIGTERM ends the running unit as Ctrl-C does."""
    _sessions.append(MeasurementSession(path, settings=settings))
    try:
        with sigterm_exits():
            yield _sessions[-1]
    finally:
        _sessions.pop()


@contextmanager
def sigterm_exits() -> Iterator[None]:
    """Raise SystemExit with status 143 at SIGTERM during a block of the main thread."""
    is_main = threading.current_thread() is threading.main_thread()  # other threads must not set handlers
    previous = signal.signal(signal.SIGTERM, _exit) if is_main else None
    try:
        yield
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, previous)


def _exit(number: int, _: object) -> None:
    raise SystemExit(128 + number)
