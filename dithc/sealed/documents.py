"""JSON documents whose last key is the SHA-256 of the preceding text; and a JSON parser without deep recursion."""

import errno
import json
import re
import stat
from hashlib import sha256
from pathlib import Path
from typing import Any

KEY = "seal"
FORM = f',\n "{KEY}": "{"_" * 64}"\n}}\n'
SEAL = re.compile(rf'"?{KEY}"?\s*:\s*["\']?[0-9a-f]{{32,}}')
"""A seal at any place and in any layout, as an editor or another program may leave it."""
TAIL = re.compile(rf'(.*),\n "{KEY}": "([0-9a-f]{{64}})"\n}}\n', re.DOTALL)


class Altered(ValueError):
    """A document whose bytes are not the bytes that dithc wrote."""


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
        Altered: a byte was changed, or the seal is missing.
    """
    found = TAIL.fullmatch(text)
    if found is None:
        raise Altered("it was changed after it was written: its seal is missing or incomplete")
    if found.group(2) != _of(found.group(1)):
        raise Altered("it was changed after it was written: its SHA-256 differs from its seal")
    content = parse(f"{found.group(1)}\n}}")
    assert isinstance(content, dict)
    return content


def read(path: Path, *, most: int | None = None) -> dict[str, Any]:
    """Return the content of the document in a file of at most `most` bytes.

    Raises:
        Altered: a byte was changed, the seal is missing, or the file is larger.
        OSError: the file cannot be read.
    """
    with plain(path).open("rb") as file:
        content = file.read(-1 if most is None else most + 1)
    try:
        if most is not None and len(content) > most:
            raise Altered(f"it has more than {most / 2**20:g} MiB")
        return unseal(content.decode())
    except ValueError as error:
        raise Altered(f"{path}: {error}") from None


def content_of(text: str) -> Any:
    """The content of a document that has a seal, or of one that never had one.

    Raises:
        ValueError: it is no JSON, or was sealed and changed.
    """
    return unseal(text) if has_seal(text) else parse(text)


def has_seal(text: str) -> bool:
    """Test whether a text contains a seal, or ends like a sealed document except for one character."""
    tail = text[-len(FORM) :]
    is_near = len(tail) == len(FORM) and sum(a not in (b, "_") for a, b in zip(FORM, tail, strict=True)) <= 1
    return is_near or SEAL.search(text) is not None


def _of(body: str) -> str:
    return sha256(body.encode()).hexdigest()
