"""`lock.json` of a folder: the search, the items found, and size and checksum of each of their files."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dithc.config import datasets
from dithc.core.artifacts import atomic_write, sha256_file
from dithc.core.integrity import Altered, dump_checksummed, read_document
from dithc.core.logging import user_error

LOCK_FILE = "lock.json"
LOCK_BYTES = 128 << 20
"""Size limit, about 20,000 scenes."""
IDENTITY = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,150}$"
MAX_MESSAGE = 300
STRICT = ConfigDict(strict=True, extra="forbid")
FilePath = Annotated[str, Field(pattern=r"^[^/]+/[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""ID/FILE relative to the folder."""


class PinnedFile(BaseModel):
    """File of a scene, with its address without query, and the multihash of the catalog, if any.

    `size` is None until the catalog or the server states it, and `sha256` until the file is downloaded.
    """

    model_config = STRICT
    path: FilePath
    href: str
    size: int | None
    checksum: str | None
    sha256: str | None = None


class PinnedItem(BaseModel):
    """Scene: its item, which is saved with relative addresses, and its files."""

    model_config = STRICT
    id: Annotated[str, Field(pattern=IDENTITY)]
    path: FilePath
    sha256: str
    assets: dict[str, PinnedFile]

    @model_validator(mode="after")
    def _check_paths(self) -> "PinnedItem":
        """Reject paths outside the folder of the scene. A checksum detects damage, not malice."""
        for path in (self.path, *(asset.path for asset in self.assets.values())):
            if path.partition("/")[0] != self.id:
                raise ValueError(f"the path {path!r} of {self.id}")
        return self


class Lock(BaseModel):
    """Request and content of a fetched folder."""

    model_config = STRICT
    version: Literal[1] = 1
    search: dict[str, Any]  # settings of the search; for items of the user, their number and digest
    items: list[PinnedItem]  # sorted by id

    @classmethod
    def read(cls, folder: Path) -> "Lock | None":
        """Return the lock of a folder, None if the folder has none.

        Raises UserError if the lock was changed, is too large, or names a file outside the folder of its scene.
        """
        path = folder / LOCK_FILE
        if not path.exists():
            return None
        try:
            return cls.model_validate(read_document(path, most=LOCK_BYTES))
        except ValueError as error:
            got: object = error
            if isinstance(error, ValidationError):
                first = error.errors()[0]
                got = f"{'.'.join(map(str, first['loc']))}: {first['msg']}, {first['input']!r}"[:MAX_MESSAGE]
            raise user_error(
                f"{path} was changed after it was written" if isinstance(error, Altered) else f"{path} is invalid",
                got=got,
                expected="the checksummed content, with every path of the form ID/FILE",
                fix=f"rm {path}, then run `dithc fetch`; files with a checksum of the catalog are not fetched again",
            ) from None

    @staticmethod
    def asked_for(source: datasets.Sentinel2StacSource) -> dict[str, Any]:
        """Return the settings of a source that decide which files its search selects."""
        assert source.search is not None
        search = source.search.model_dump(mode="json", exclude={"signing_url"})
        if source.search.area_file is not None:
            path = Path(source.search.area_file)
            search["area_file"] = sha256_file(path) if path.is_file() else None
        return search | Lock.layers_of(source)

    @staticmethod
    def layers_of(source: datasets.Sentinel2StacSource) -> dict[str, Any]:
        """Return the settings of a source that decide which files of a scene are needed."""
        masks = source.clouds.min_cloud_probability is not None
        return {"bands": source.bands, "gsd_m": source.gsd_m, "probability": masks}

    def write(self, folder: Path) -> None:
        atomic_write(folder / LOCK_FILE, dump_checksummed(self.model_dump()))

    def difference(self, folder: Path, item: PinnedItem) -> tuple[str, str, str] | None:
        """Return path, actual and expected state of the first file that differs."""
        rows: list[tuple[str, int | None, str | None]] = [(item.path, None, item.sha256)]
        rows += [(asset.path, asset.size, asset.sha256) for asset in item.assets.values()]
        for path, size, sha256 in rows:
            file = folder / path
            if sha256 is None or not file.is_file():
                return path, "no such file", "the complete file; it was not fetched yet"
            if size is not None and file.stat().st_size != size:
                return path, f"{file.stat().st_size} bytes", f"{size}"
            if (got := sha256_file(file)) != sha256:
                return path, f"sha256 {got}", f"sha256 {sha256}"
        return None
