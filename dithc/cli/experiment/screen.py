"""Lines on a terminal that are drawn again and again in one place."""

import os
import shutil
import sys
from collections.abc import Sequence

from dithc.log import escaping


class Screen:
    """Standard output: on a terminal, `show` replaces what it showed before; elsewhere `say` alone is of use.

    Args:
        goes_on: what is shown is of no account beside the work: once nobody reads it, it is thrown away without an error.
    """

    def __init__(self, *, goes_on: bool = False) -> None:
        self._goes_on = goes_on
        self.is_terminal = sys.stdout.isatty()
        self._shown = 0

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None where there is none."""
        return shutil.get_terminal_size().columns if self.is_terminal else None

    @property
    def height(self) -> int | None:
        """Lines of the terminal but one, which the cursor takes; None where there is none."""
        return max(2, shutil.get_terminal_size().lines - 1) if self.is_terminal else None

    def say(self, *lines: str) -> None:
        """Prints lines that stay, above those that are shown; `show` has to be called again."""
        self._print(self._cleared() + "".join(f"{shown}\n" for shown in map(_shown, lines)))

    def show(self, lines: Sequence[str]) -> None:
        """Draws lines in the place of those shown before; each has to fit the width."""
        begin = f"\x1b[{self._shown}F" if self._shown else ""
        self._print(begin + "".join(f"{shown}\x1b[K\n" for shown in map(_shown, lines)) + "\x1b[J")
        self._shown = len(lines)

    def _cleared(self) -> str:
        before, self._shown = self._shown, 0
        return f"\x1b[{before}F\x1b[J" if before else ""

    def _print(self, text: str) -> None:
        try:
            sys.stdout.write(escaping.Coded(text))
            sys.stdout.flush()
        except OSError:  # a closed pipe, a terminal that is gone
            if not self._goes_on:
                raise
            self.is_terminal = False
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _shown(line: str) -> str:
    return line if isinstance(line, escaping.Coded) else escaping.escaped(line)
