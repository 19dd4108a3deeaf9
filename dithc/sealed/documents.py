"""A JSON document whose last key holds the SHA-256 of all text before it; and JSON of whom it may be, read without surprise."""

import errno
import json
import re
import stat
from hashlib import sha256
from pathlib import Path
from typing import Any

KEY = "seal"
FORM = f',\n "{KEY}": "{"_" * 64}"\n}}\n'
TAIL = re.compile(rf'(.*),\n "{KEY}": "([0-9a-f]{{64}})"\n}}\n', re.DOTALL)


def plain(path: Path) -> Path:
    """The path of a file that ends: nobody may ever write into a pipe, and a device has no end.

    Raises:
        OSError: it is another thing, or not there.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is a folder, a pipe or a device, not a plain file", str(path))
    return path


def parse(text: str | bytes) -> Any:
    """The values of a JSON text.

    Raises:
        ValueError: it is no JSON, or has parts within parts deeper than the reader goes.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("parts within parts, deeper than any document is") from None


def seal(content: dict[str, Any], *, allow_nan: bool = False) -> str:
    """The text of a document: `content`, which is not empty, and its seal.

    Args:
        content: JSON values.
        allow_nan: whether numbers that are not finite are written; JSON has no word for them, Python reads them.

    Raises:
        ValueError: a number is not finite, and that is not allowed.
    """
    body = json.dumps(content, indent=1, allow_nan=allow_nan).removesuffix("\n}")
    return f'{body},\n "{KEY}": "{_of(body)}"\n}}\n'


def unseal(text: str) -> dict[str, Any]:
    """Return the content of a document that `seal` wrote.

    Raises:
        ValueError: a byte is not what was written.
    """
    found = TAIL.fullmatch(text)
    if found is None:
        raise ValueError("it is altered: it has no whole seal")
    if found.group(2) != _of(found.group(1)):
        raise ValueError("it is altered: its bytes are not those of its seal")
    content = parse(f"{found.group(1)}\n}}")
    assert isinstance(content, dict)
    return content


def content_of(text: str) -> Any:
    """The content of a document that has a seal, or of one that never had one.

    Raises:
        ValueError: it is no JSON, or has a seal and is altered.
    """
    return unseal(text) if has_seal(text) else parse(text)


def has_seal(text: str) -> bool:
    """Whether a text ends like a document with a seal, one character aside."""
    tail = text[-len(FORM) :]
    return len(tail) == len(FORM) and sum(a not in (b, "_") for a, b in zip(FORM, tail, strict=True)) <= 1


def _of(body: str) -> str:
    return sha256(body.encode()).hexdigest()
