"""Existing results: damaged files of a manifest, and files of the user in place of results."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from dithc.core.artifacts import Manifest, outputs
from dithc.core.logging import UserError, user_error

SHOWN = 3


def check_owner(root: Path, paths: Iterable[Path]) -> None:
    """Reject files of the user in place of outputs: Snakemake deletes the outputs of a job before it starts.

    `paths` are the outputs of the planned jobs; in a first run also their logs. UserError if dithc did not write one.
    """
    config = root / "config.json"
    foreign = (path for path in (config, *paths) if path.exists() and not outputs.owns(path))
    if files := list(islice(foreign, SHOWN)):
        raise user_error(
            f"{root} holds files that dithc did not write in place of results",
            got=", ".join(map(str, files)),
            expected="no files of these names, or earlier results of this experiment",
            fix="move these files, or set another `name` or `results`",
        )


def find_damaged(manifests: Iterable[str]) -> dict[str, list[str]]:
    """Return a sentence per damaged file, by manifest path: missing, or of another size than written.

    Only manifests are read. The engine detects missing manifests, so they do not count.
    """
    faults = {path: _faults(Path(path)) for path in manifests}
    return {path: reasons for path, reasons in faults.items() if reasons}


def damage_message(path: str, faults: Iterable[str]) -> str:
    first, *rest = faults
    suffix = f" (and {len(rest)} more)" if rest else ""
    return f"{Path(path).parent if path.endswith('/manifest.json') else path} is incomplete, rebuilding it: {first}{suffix}"


def _faults(path: Path) -> list[str]:
    if not path.exists():
        return []
    try:
        return Manifest.read(path).verify(path.parent, hashes=False)
    except (UserError, OSError, KeyError, TypeError) as error:
        return [str(error).splitlines()[0]]
