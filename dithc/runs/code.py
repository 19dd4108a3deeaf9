"""Which code produced a result: the version, and a hash of the source that ran."""

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

COMMIT_LENGTH = 12
PACKAGE = Path(__file__).parent.parent


@cache
def source_hash() -> str:
    """First 12 hex digits of a SHA-256 over every Python file of the package, in path order."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(str(path.relative_to(PACKAGE)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def commit() -> str:
    """The commit that is checked out where the package stands, as git's own files name it; empty where it is no checkout.

    The source may differ from it: what ran is told by `source_hash`.
    """
    try:
        folder = PACKAGE.parent / ".git"
        if folder.is_file():  # of a linked work tree, which names its folder
            folder = PACKAGE.parent / folder.read_text().removeprefix("gitdir:").strip()
        head = (folder / "HEAD").read_text().strip()
        if not head.startswith("ref:"):
            return head[:COMMIT_LENGTH]
        name = head.removeprefix("ref:").strip()
        common = folder / "commondir"
        shared = folder / common.read_text().strip() if common.is_file() else folder
        if (shared / name).is_file():
            return (shared / name).read_text().strip()[:COMMIT_LENGTH]
        packed = (line.split() for line in (shared / "packed-refs").read_text().splitlines())
        return next((words[0][:COMMIT_LENGTH] for words in packed if words[1:] == [name]), "")
    except (OSError, UnicodeError):
        return ""


def code_version() -> dict[str, str]:
    """Version of the installed package and the hash of its source: results of the same are made by the same code."""
    try:
        number = version("dithc")
    except PackageNotFoundError:
        number = "not installed"
    return {"version": number, "source": source_hash()}


def made_by() -> dict[str, str]:
    """The code version, and the commit where it is known, for people who look for the code."""
    return code_version() | ({"commit": commit()} if commit() else {})
