"""Identification of the code that produces a result: version, source hash and commit."""

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

COMMIT_LENGTH = 12
PACKAGE = Path(__file__).parents[2]


@cache
def source_hash() -> str:
    """Return the first 12 hex digits of the SHA-256 over all Python files of the package, in path order."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(str(path.relative_to(PACKAGE)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def commit() -> str:
    """Return the checked-out commit from git's files; empty outside a checkout.

    The source may differ from the commit; `source_hash` identifies the source. git is not called, because processes of
    MPI should not fork."""
    try:
        folder = PACKAGE.parent / ".git"
        if folder.is_file():  # a linked work tree contains the path of its folder
            folder = PACKAGE.parent / folder.read_text().removeprefix("gitdir:").strip()
        head = (folder / "HEAD").read_text().strip()
        if not head.startswith("ref:"):
            return head[:COMMIT_LENGTH]
        ref = head.removeprefix("ref:").strip()
        common = folder / "commondir"
        shared = folder / common.read_text().strip() if common.is_file() else folder
        if (shared / ref).is_file():
            return (shared / ref).read_text().strip()[:COMMIT_LENGTH]
        packed = (line.split() for line in (shared / "packed-refs").read_text().splitlines())
        return next((fields[0][:COMMIT_LENGTH] for fields in packed if fields[1:] == [ref]), "")
    except (OSError, UnicodeError):
        return ""


def code_version() -> dict[str, str]:
    try:
        number = version("dithc")
    except PackageNotFoundError:
        number = "not installed"
    return {"version": number, "source": source_hash()}


def made_by() -> dict[str, str]:
    return code_version() | ({"commit": commit()} if commit() else {})
