"""`lock.json` of a folder: what was searched, what was found, and what every file of it must be."""

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dithc.config import datasets
from dithc.log import problem
from dithc.runs import atomic_write, sha256_file
from dithc.sealed import documents, seal

LOCK_FILE = "lock.json"
VERSION = 1
LOCK_BYTES = 128 << 20
"""About 20,000 scenes."""
IDENTITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")
MOST_SAID = 300
FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(kw_only=True)
class Pinned:
    """A file of a scene.

    Attributes:
        path: ID/FILE below the folder.
        href: where it is from, without query.
        size: bytes; None as long as neither catalogue nor server said so.
        checksum: multihash of the catalogue, None where it has none.
        sha256: None as long as the file is not there.
    """

    path: str
    href: str
    size: int | None
    checksum: str | None
    sha256: str | None = None


@dataclass(kw_only=True)
class PinnedItem:
    """A scene: its item, written into the folder with addresses of the files beside it, and these."""

    id: str
    path: str
    sha256: str
    assets: dict[str, Pinned]


@dataclass(kw_only=True)
class Lock:
    """All that a folder was fetched for.

    Attributes:
        search: what was asked, in words of the configuration; of items that were given, their number and digest.
        items: what was found, by id.
    """

    search: dict[str, Any]
    items: list[PinnedItem] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> "Lock | None":
        """The lock of a folder; None where it has none.

        Raises:
            UserError: it was changed or is too large, or names a file that is not of a scene's own folder.
        """
        path = folder / LOCK_FILE
        if not path.exists():
            return None
        try:
            content = documents.read(path, most=LOCK_BYTES)
            if content.pop("version") != VERSION:
                raise ValueError("another version")
            return cls(items=[_item(one) for one in content.pop("items")], **content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise problem(
                f"{path} was changed after it was written"
                if isinstance(error, documents.Altered)
                else f"{path} is invalid",
                got=error,
                expected="the bytes under its seal, and every file as ID/FILE",
                fix="remove it and run `dithc fetch` again, which searches anew; of the files that are there, those with a "
                "checksum of the catalogue are not fetched again",
            ) from None

    @staticmethod
    def asked_for(source: datasets.Sentinel2Stac) -> dict[str, Any]:
        """What the lock of a source's search says of it: all that decides which files there are."""
        assert source.search is not None
        search = source.search.model_dump(mode="json", exclude={"sign"})
        if source.search.area is not None:
            path = Path(source.search.area)
            search["area"] = sha256_file(path) if path.is_file() else None
        masks = source.clouds.probability is not None
        return {**search, "bands": source.bands, "gsd_m": source.gsd_m, "probability": masks}

    def write(self, folder: Path) -> None:
        """Writes it, wholly or not at all."""
        atomic_write(folder / LOCK_FILE, seal({"version": VERSION, **asdict(self)}))

    def difference(self, folder: Path, item: PinnedItem) -> tuple[str, str, str] | None:
        """The first file of a scene that is not what was fetched: its path, what was got and what was expected."""
        rows = [(item.path, None, item.sha256), *((one.path, one.size, one.sha256) for one in item.assets.values())]
        for path, size, sha256 in rows:
            file = folder / path
            if sha256 is None or not file.is_file():
                return path, "no such file", "the whole file: it was not fetched yet"
            if size is not None and file.stat().st_size != size:
                return path, f"{file.stat().st_size} bytes", f"{size}"
            if (got := sha256_file(file)) != sha256:
                return path, f"sha256 {got}", f"sha256 {sha256}"
        return None


def _item(content: dict[str, Any]) -> PinnedItem:
    """A scene of a lock that anybody may have written; a seal finds damage, not malice.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is none, or a path leads out of its folder.
    """
    item = PinnedItem(**{**content, "assets": {key: Pinned(**one) for key, one in content["assets"].items()}})
    if not isinstance(item.id, str) or not IDENTITY.fullmatch(item.id):
        raise ValueError(f"an item called {item.id!r}"[:MOST_SAID])
    files = list(item.assets.values())
    for path in (item.path, *(one.path for one in files)):
        folder, _, name = path.partition("/") if isinstance(path, str) else ("", "", "")
        if folder != item.id or not FILE.fullmatch(name):
            raise ValueError(f"the path {path!r} of {item.id}"[:MOST_SAID])
    sums = [item.sha256, *(one.href for one in files), *(one.sha256 or "" for one in files)]
    sizes = [one.size for one in files if one.size is not None]
    if not all(isinstance(one, str) for one in [*sums, *(one.checksum or "" for one in files)]):
        raise TypeError(f"an address, SHA-256 or checksum of {item.id} that is no text")
    if not all(isinstance(size, int) for size in sizes):
        raise TypeError(f"a size of {item.id} that is no number of bytes")
    return item
