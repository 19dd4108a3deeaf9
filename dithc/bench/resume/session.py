"""Storage and reuse of the units of an interrupted measurement."""

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

    `settings` are all facts that determine the measured values. A difference discards the stored units.

    Attributes:
        path: file of the stored units; None stores none.
        stopped_by: "Ctrl-C" or the signal name; an empty string before an interruption.
        number: count of executions so far, from 1.
    """

    def __init__(self, path: Path | None = None, *, settings: Mapping[str, Any] | None = None) -> None:
        self.path, self.stopped_by, self.number = path, "", 1
        self._settings = json.loads(json.dumps(settings or {}, default=str))
        self._kept: defaultdict[str, deque[Any]] = defaultdict(deque)
        self._made, self._has_begun, self._is_another_s = 0, False, False
        if path is not None and path.exists():
            self._take_up(path)

    def unit(self, name: str, make: Callable[[], Value], *, keep: Callable[[Value], bool] = lambda _: True) -> Value:
        """Return the JSON value of `make`, or its stored value, and store values that `keep` accepts.

        `name` describes the measurement. Units with the same name are reused in their order.

        Raises:
            Stopped: the unit is not stored, and the benchmark is stopping.
        """
        if self._kept[name]:
            return self._kept[name].popleft()  # type: ignore[no-any-return]
        if self.stopped_by:
            raise MeasurementStopped
        try:
            value = make()
        except (KeyboardInterrupt, SystemExit) as why:
            if not self._made:  # a result needs a finished unit
                raise
            self.stopped_by = "Ctrl-C" if isinstance(why, KeyboardInterrupt) else "SIGTERM"
            log.warning(f"stopped by {self.stopped_by}: reporting the finished units, without {name}")
            raise MeasurementStopped from None
        self._made += 1
        if keep(value):
            self._write({"unit": name, "value": value})
        return value

    def end(self) -> None:
        """Delete the stored units after the benchmark is complete."""
        if self.path is not None and (self._has_begun or not self._is_another_s):
            self.path.unlink(missing_ok=True)

    def _take_up(self, path: Path) -> None:
        rows, _ = load_checksummed_lines(require_regular_file(path).read_text(errors="replace"))
        begun = [row["settings"] for row in rows if "settings" in row]
        differing = [found for settings in begun if (found := difference(settings, self._settings))]
        if not begun or differing:
            why = f"the environment or the arguments changed: {differing[0]}" if begun else "its header is missing"
            log.warning(f"discarding the measurements in {path}: {why}")
            self._is_another_s = True
            return
        self.number = 1 + len(begun)
        for row in rows:
            if "unit" in row:
                self._kept[row["unit"]].append(row["value"])
                self._made += 1
        log.info(f"resuming after {self._made} units in {path}")

    def _write(self, row: Mapping[str, Any]) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("w" if self._is_another_s and not self._has_begun else "a") as file:
            if not self._has_begun:
                file.write(dump_checksummed_line({"settings": self._settings, "time": time.time()}))
            file.write(dump_checksummed_line(dict(row)))
            file.flush()
            os.fsync(file.fileno())
        self._has_begun = True


_now: list[MeasurementSession] = []


def current_session() -> MeasurementSession:
    """Return the current execution; outside of `measurement_session`, an execution that stores no units."""
    return _now[-1] if _now else MeasurementSession()


@contextmanager
def measurement_session(path: Path | None, *, settings: Mapping[str, Any]) -> Iterator[MeasurementSession]:
    """Make an execution (see `MeasurementSession`) current during a block, in which SIGTERM ends the running unit as Ctrl-C
    does."""
    _now.append(MeasurementSession(path, settings=settings))
    try:
        with sigterm_exits():
            yield _now[-1]
    finally:
        _now.pop()


@contextmanager
def sigterm_exits() -> Iterator[None]:
    """Raise SystemExit with status 143 at SIGTERM during a block of the main thread."""
    is_main = threading.current_thread() is threading.main_thread()  # other threads must not set handlers
    previous = signal.signal(signal.SIGTERM, _leave) if is_main else None
    try:
        yield
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, previous)


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)
