"""Lines that are redrawn in place on a terminal."""

import os
import shutil
import sys
from collections.abc import Sequence

from dithc.core.logging import escaping


class LiveDisplay:
    """Standard output. On a terminal, `show` replaces the lines that it drew before; otherwise only `write` is useful.

    Args:
        ignores_close: discard output without an error after the reader has closed it, because the work matters more.
    """

    def __init__(self, *, ignores_close: bool = False) -> None:
        self._ignores_close = ignores_close
        self.is_terminal = sys.stdout.isatty()
        self._shown = 0

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None without a terminal."""
        return shutil.get_terminal_size().columns if self.is_terminal else None

    @property
    def height(self) -> int | None:
        """Lines of the terminal, minus one for the cursor; None without a terminal."""
        return max(2, shutil.get_terminal_size().lines - 1) if self.is_terminal else None

    def write(self, *lines: str) -> None:
        """Print permanent lines above the shown lines. The caller must call `show` afterwards."""
        begin = f"\x1b[{self._shown}F\x1b[J" if self._shown else ""
        self._print(begin + "".join(f"{line}\n" for line in map(_display_text, lines)))
        self._shown = 0

    def show(self, lines: Sequence[str]) -> None:
        """Replace the shown lines. Each line must fit the width."""
        begin = f"\x1b[{self._shown}F" if self._shown else ""
        self._print(begin + "".join(f"{line}\x1b[K\n" for line in map(_display_text, lines)) + "\x1b[J")
        self._shown = len(lines)

    def _print(self, text: str) -> None:
        try:
            sys.stdout.write(escaping.Coded(text))
            sys.stdout.flush()
        except OSError:  # a closed pipe or terminal
            if not self._ignores_close:
                raise
            self.is_terminal = False
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _display_text(line: str) -> str:
    return line if isinstance(line, escaping.Coded) else escaping.escaped(line)
