"""JSON lines with the CRC-32 of the line as last key, for files that grow."""

import json
import re
from typing import Any
from zlib import crc32

from dithc.core.integrity.json_documents import ends_like, parse_json

KEY = "crc"
FORM = f', "{KEY}": "________"}}'
TAIL = re.compile(rf'(.*), "{KEY}": "([0-9a-f]{{8}})"}}')


def dump_checksummed_line(content: dict[str, Any]) -> str:
    """Return a line with its checksum and line end; `content` has at least one key."""
    body = json.dumps(content, default=str).removesuffix("}")
    return f'{body}, "{KEY}": "{_checksum(body)}"}}\n'


def load_checksummed_lines(text: str) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the contents of the intact lines of a file, and the numbers of altered lines, from 1.

    Skips an incomplete line of a killed process.
    """
    rows, altered = list[dict[str, Any]](), list[int]()
    for number, line in enumerate(text.split("\n"), start=1):
        match = TAIL.fullmatch(line)
        if match is not None and match.group(2) == _checksum(match.group(1)):
            rows.append(parse_json(f"{match.group(1)}}}"))
        elif match or ends_like(line, FORM) or ends_like(line[:-1], FORM) or line.endswith("}"):
            altered.append(number)
    return rows, altered


def _checksum(body: str) -> str:
    return f"{crc32(body.encode()):08x}"
