"""Progress of long operations: a bar on a terminal, occasional plain lines in a log."""

import sys
import time
from typing import Any, Self

from dithc.core.logging.escaping import escaped
from dithc.core.logging.messages import get_logger

SECONDS_BETWEEN_LINES = 15.0


class progress:
    """Progress report of a long operation with rate and remaining time.

    Used as `with progress(total=n, label="tiles", unit="tile") as bar: ... bar.update(1, loss="0.12")`. A terminal
    shows a bar; other outputs get one line every 15 seconds and one at the end.
    """

    def __init__(self, *, total: int, label: str, unit: str = "it", done: int = 0, quiet: bool = False) -> None:
        self.total, self.label, self.unit, self.done, self.quiet = total, label, unit, done, quiet
        self._first = done
        self._start = self._last_line = time.monotonic()
        self._notes = ""
        self._bar: Any = None
        if sys.stderr.isatty() and not quiet:
            from tqdm import tqdm  # takes a third of the time in which `dithc --help` starts

            self._bar = tqdm(total=total, initial=done, desc=label, unit=unit, dynamic_ncols=True)

    def update(self, count: int = 1, **notes: str) -> None:
        """Count `count` more units; `notes` (name=text) are shown after the rate."""
        self.done += count
        notes = {name: escaped(text) for name, text in notes.items()}
        self._notes = "".join(f", {name} {text}" for name, text in notes.items())
        if self._bar is not None:
            self._bar.update(count)
            if notes:
                self._bar.set_postfix(notes, refresh=False)
        elif not self.quiet and time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._log_line()

    def _log_line(self) -> None:
        self._last_line = time.monotonic()
        elapsed = self._last_line - self._start
        rate = (self.done - self._first) / elapsed if elapsed > 0 else 0.0
        remaining = _interval((self.total - self.done) / rate) if rate > 0 else "?"
        share = 100 * self.done // self.total if self.total else 100
        get_logger(f"dithc.{self.label}").info(
            f"{self.done}/{self.total} {self.unit} ({share} %), {rate:{'.0f' if rate >= 100 else '.3g'}} {self.unit}/s, "
            f"{_interval(elapsed)} elapsed, {remaining} remaining{self._notes}"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
        elif not self.quiet:
            self._log_line()


def _interval(seconds: float) -> str:
    """Format a time as tqdm does: mm:ss or h:mm:ss."""
    minutes, seconds_of_minute = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds_of_minute:02d}" if hours else f"{minutes:02d}:{seconds_of_minute:02d}"
