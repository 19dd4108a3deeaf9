"""JSON documents and JSON lines with checksums that detect every changed byte.

Purpose: manifests, lists of files of checkpoints and lines of metrics determine or report results, and no other
document contains their hash.
Contents: `dump_checksummed` and `load_checksummed` for documents, `dump_checksummed_line` and `load_checksummed_lines` for lines;
`require_regular_file` rejects pipes and devices, `parse_json` reports invalid JSON as ValueError.
Invariants: a checksummed document is JSON for every other reader. The checksum covers every byte, including white space and the
checksum. It detects damage, not manipulation: anyone can compute the checksum of a changed document.
Extending: write every document that determines or reports a result with `dump_checksummed`; read it with `read_document` or
`load_checksummed`.
"""

import errno
import json
import re
import stat
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

KEY = "checksum"
FORM = f',\n "{KEY}": "{"_" * 64}"\n}}\n'
SEAL = re.compile(rf'"?{KEY}"?\s*:\s*["\']?[0-9a-f]{{32,}}')
"""A checksum at any position and in any layout, for documents that an editor or another program has rewritten."""
TAIL = re.compile(rf'(.*),\n "{KEY}": "([0-9a-f]{{64}})"\n}}\n', re.DOTALL)
LINE_KEY = "crc"  # of a line of a file that grows: its CRC-32
LINE_FORM = f', "{LINE_KEY}": "________"}}'
LINE_TAIL = re.compile(rf'(.*), "{LINE_KEY}": "([0-9a-f]{{8}})"}}')


class Altered(ValueError):
    """A document that was changed after dithc wrote it."""


def require_regular_file(path: Path) -> Path:
    """Return the path of a plain file; OSError for other types, because pipes and devices may block or never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "a folder, a pipe or a device instead of a plain file", str(path))
    return path


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raises ValueError for invalid or too deeply nested text."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("too many nested levels") from None


def dump_checksummed(content: dict[str, Any], *, allow_nan: bool = False) -> str:
    """Return the text of a document of at least one key with its checksum.

    ValueError for a number that is not finite, unless `allow_nan`; then the text is readable by Python, but not valid JSON.
    """
    body = json.dumps(content, indent=1, allow_nan=allow_nan).removesuffix("\n}")
    return f'{body},\n "{KEY}": "{_hash(body)}"\n}}\n'


def load_checksummed(text: str) -> dict[str, Any]:
    """Return the content of a document that `dump_checksummed` wrote; Altered if a byte changed or the checksum is missing."""
    match = TAIL.fullmatch(text)
    if match is None:
        raise Altered("it was changed after it was written: its checksum is missing or incomplete")
    if match.group(2) != _hash(match.group(1)):
        raise Altered("it was changed after it was written: its SHA-256 differs from its checksum")
    content = parse_json(f"{match.group(1)}\n}}")
    assert isinstance(content, dict)
    return content


def read_document(path: Path, *, most: int | None = None) -> dict[str, Any]:
    """Return the content of the document in a file; Altered if it was changed or has more than `most` bytes."""
    with require_regular_file(path).open("rb") as file:
        content = file.read(-1 if most is None else most + 1)
    try:
        if most is not None and len(content) > most:
            raise Altered(f"it has more than {most / 2**20:g} MiB")
        return load_checksummed(content.decode())
    except ValueError as error:
        raise Altered(f"{path}: {error}") from None


def load_document(text: str) -> Any:
    """Return the content of a checksummed document, or of JSON without a checksum; ValueError if it is changed or invalid."""
    return load_checksummed(text) if has_checksum(text) else parse_json(text)


def has_checksum(text: str) -> bool:
    """Return True if a text contains a checksum, or ends like a checksummed document except for one character."""
    return ends_like(text, FORM) or SEAL.search(text) is not None


def ends_like(text: str, form: str) -> bool:
    """Return True if a text ends in this form, with any characters for `_`, except for one character."""
    tail = text[-len(form) :]
    return len(tail) == len(form) and sum(a not in (b, "_") for a, b in zip(form, tail, strict=True)) <= 1


def _hash(body: str) -> str:
    return sha256(body.encode()).hexdigest()


def dump_checksummed_line(content: dict[str, Any]) -> str:
    """Return a line with its checksum and line end; `content` has at least one key."""
    body = json.dumps(content, default=str).removesuffix("}")
    return f'{body}, "{LINE_KEY}": "{_crc(body)}"}}\n'


def load_checksummed_lines(text: str) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the contents of the intact lines of a file, and the numbers of altered lines, from 1.

    Skips an incomplete line of a killed process.
    """
    rows, altered = list[dict[str, Any]](), list[int]()
    for number, line in enumerate(text.split("\n"), start=1):
        match = LINE_TAIL.fullmatch(line)
        if match is not None and match.group(2) == _crc(match.group(1)):
            rows.append(parse_json(f"{match.group(1)}}}"))
        elif match or ends_like(line, LINE_FORM) or ends_like(line[:-1], LINE_FORM) or line.endswith("}"):
            altered.append(number)
    return rows, altered


def _crc(body: str) -> str:
    return f"{crc32(body.encode()):08x}"
