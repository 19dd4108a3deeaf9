"""Lines of JSON, each with the CRC-32 of its own text as last key, for files that are appended to."""

import json
import re
from typing import Any
from zlib import crc32

from dithc.sealed.documents import parse

KEY = "crc"
FORM = f', "{KEY}": "________"}}'
TAIL = re.compile(rf'(.*), "{KEY}": "([0-9a-f]{{8}})"}}')


def seal_line(content: dict[str, Any]) -> str:
    """The text of a line, its end included: `content`, which is not empty, and its sum."""
    body = json.dumps(content, default=str).removesuffix("}")
    return f'{body}, "{KEY}": "{_of(body)}"}}\n'


def unseal_lines(text: str) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the contents of the intact lines of a file, and the numbers, from 1, of altered lines.

    A line that a killed process left half written is skipped.
    """
    rows, altered = list[dict[str, Any]](), list[int]()
    for number, line in enumerate(text.split("\n"), start=1):
        found = TAIL.fullmatch(line)
        if found is not None and found.group(2) == _of(found.group(1)):
            rows.append(parse(f"{found.group(1)}}}"))
        elif found or _is_nearly_sealed(line) or _is_nearly_sealed(line[:-1]) or line.endswith("}"):
            altered.append(number)
    return rows, altered


def _of(body: str) -> str:
    return f"{crc32(body.encode()):08x}"


def _is_nearly_sealed(line: str) -> bool:
    """Whether a line ends like one with a sum, one character aside; a line without its last one is asked for what was its end."""
    tail = line[-len(FORM) :]
    return len(tail) == len(FORM) and sum(a not in (b, "_") for a, b in zip(FORM, tail, strict=True)) <= 1
