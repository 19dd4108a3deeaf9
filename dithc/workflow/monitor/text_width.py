"""Line fitting: shortened names, folded and truncated lines."""

from collections.abc import Sequence
from textwrap import wrap

WIDTH = 160  # of lines written to a file or a pipe
INDENT = "  "


def shortened(name: str, width: int) -> str:
    """Shorten a name to `width` characters, keeping its distinctive beginning and end."""
    begin = width // 2
    return name if len(name) <= width else f"{name[:begin]}…{name[begin + 1 - width :]}"


def cut(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= width else text[: max(0, width - 1)] + "…"


def folded(lines: Sequence[str], *, width: int | None) -> list[str]:
    """Fold lines longer than `width`, indented from the second on; words (paths) stay unbroken."""
    return [part for line in lines for part in _folded(line, width or WIDTH)]


def _folded(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())] + INDENT
    return wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
