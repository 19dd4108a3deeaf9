"""Escaping of external text, which could otherwise control the terminal or forge lines."""

from typing import TextIO

MARK = "escapes_its_text"


class Coded(str):
    """Text with terminal codes of dithc, in which every other part is escaped. `print` does not keep the type."""

    __slots__ = ()


def escaped(text: str, *, indent: int | None = None) -> str:
    r"""Replace control, bidirectional, invisible and undecodable characters by Python's escapes, such as `\x1b`.

    A line stays separate if it starts with `indent` spaces; None escapes every line break.
    """
    if text.isprintable():
        return text
    lines = text.split("\n")
    texts = ("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line) for line in lines)
    breaks = ("\n" if indent is not None and line.startswith(" " * indent) else r"\n" for line in lines[1:])
    return "".join(part for pair in zip(["", *breaks], texts, strict=True) for part in pair)


def escape_stream(stream: TextIO) -> None:
    """Escape every text that is written to a stream, except line breaks and `Coded` texts."""
    if not hasattr(stream, MARK):
        write = stream.write
        writer = lambda text: write(text if isinstance(text, Coded) else escaped(text, indent=0))  # noqa: E731
        for name, value in (("write", writer), (MARK, True)):
            setattr(stream, name, value)
