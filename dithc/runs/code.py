"""Which code produced a result: the version, and a hash of the source that ran."""

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGE = Path(__file__).parent.parent


@cache
def source_hash() -> str:
    """First 12 hex digits of a SHA-256 over every Python file of the package, in path order."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(str(path.relative_to(PACKAGE)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def code_version() -> dict[str, str]:
    """Version of the installed package and the hash of its source."""
    try:
        number = version("dithc")
    except PackageNotFoundError:
        number = "not installed"
    return {"version": number, "source": source_hash()}
