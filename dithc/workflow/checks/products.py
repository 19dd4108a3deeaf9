"""Which results are not whole: a file that a manifest lists is gone, or has another size."""

from collections.abc import Iterable
from pathlib import Path

from dithc.log import UserError
from dithc.runs import Manifest


def damaged(manifests: Iterable[str]) -> dict[str, list[str]]:
    """Looks whether the files of results are there, with the sizes that were written.

    Nothing is read but the manifests. A manifest that is not there is no damage: the engine sees that itself.

    Args:
        manifests: their paths.

    Returns:
        A sentence for each fault, by the path of the manifest.
    """
    faults = {path: _faults(Path(path)) for path in manifests}
    return {path: found for path, found in faults.items() if found}


def told(path: str, faults: Iterable[str]) -> str:
    """One line of the log on a result that is not whole."""
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
