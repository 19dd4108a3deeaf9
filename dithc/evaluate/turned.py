"""Features of some images in the other 7 orientations, stored next to the shards for the search for copies.

`turned.npy` is float32 (7, n, d). `turned.json`, written after it, identifies the images and their set.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.evaluate.copies import Rows
from dithc.evaluate.statistics import Origin
from dithc.log import problem
from dithc.runs import Manifest, atomic_write, replacing, sha256_file
from dithc.sealed import plain, seal, unseal

ARRAY_FILE, SIDECAR_FILE = "turned.npy", "turned.json"
TURNS = 7


def write_turned(folder: Path, *, origin: Origin, rows: Rows, features: NDArray[np.float32]) -> None:
    """Write the array (7, n, d), then its identity: images `rows` (n) of the set of `origin`."""
    (folder / SIDECAR_FILE).unlink(missing_ok=True)
    with replacing(folder / ARRAY_FILE) as temporary, temporary.open("wb") as file:
        np.save(file, features)
    atomic_write(
        folder / SIDECAR_FILE, seal(_identity(origin, rows) | {"file_sha256": sha256_file(folder / ARRAY_FILE)})
    )


def remove_turned(folder: Path) -> None:
    """Remove the files of an earlier run."""
    for name in (SIDECAR_FILE, ARRAY_FILE):
        (folder / name).unlink(missing_ok=True)


def turned_files(folder: Path) -> list[Path]:
    """Return the existing files."""
    return [path for path in (folder / ARRAY_FILE, folder / SIDECAR_FILE) if path.exists()]


def has_turned(folder: Path, *, origin: Origin, rows: Rows) -> bool:
    """Test whether intact features of these images exist."""
    try:
        found = unseal(plain(folder / SIDECAR_FILE).read_text())
        return found.pop("file_sha256") == sha256_file(folder / ARRAY_FILE) and found == _identity(origin, rows)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def read_turned(folder: Path, *, origin: Origin, rows: Rows) -> NDArray[np.float32] | None:
    """Map the features (7, n, d) of images `rows`; None if they do not exist.

    Raises:
        UserError: the files are damaged or contain other images.
    """
    if not turned_files(folder):
        return None
    for path in turned_files(folder):
        Manifest.whole(path)
    if not has_turned(folder, origin=origin, rows=rows):
        raise problem(
            f"{folder / ARRAY_FILE} cannot be used",
            got="damaged features, or features of other images",
            expected=f"{len(rows)} images of the set in this folder, each in {TURNS} orientations",
            fix="rerun the features stage",
        )
    found: NDArray[np.float32] = np.load(folder / ARRAY_FILE, mmap_mode="r")
    return found


def _identity(origin: Origin, rows: Rows) -> dict[str, Any]:
    fields = asdict(origin)
    return {"rows": rows.tolist(), **{name: fields[name] for name in ("sha256", "resize", "set_hash", "stretch")}}
