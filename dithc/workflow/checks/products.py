"""Damaged results: files of a manifest that are missing or have another size."""

from collections.abc import Iterable
from pathlib import Path

from dithc.log import UserError
from dithc.runs import Manifest


def damaged(manifests: Iterable[str]) -> dict[str, list[str]]:
    """Return a sentence per damaged file, by manifest path: missing, or of another size than written.

    Only manifests are read. A missing manifest is not damage, because the engine detects it.
    """
    faults = {path: _faults(Path(path)) for path in manifests}
    return {path: found for path, found in faults.items() if found}


def told(path: str, faults: Iterable[str]) -> str:
    """Return the log line of a damaged result."""
    first, *more = faults
    others = f" (and {len(more)} more)" if more else ""
    return f"{Path(path).parent if path.endswith('/manifest.json') else path} is not whole and is made again: {first}{others}"


def _faults(path: Path) -> list[str]:
    if not path.exists():
        return []
    try:
        return Manifest.read(path).verify(path.parent, hashes=False)
    except (UserError, OSError, KeyError, TypeError) as error:
        return [str(error).splitlines()[0]]
