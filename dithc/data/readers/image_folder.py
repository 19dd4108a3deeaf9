"""Images of classes in folders or archives, prepared by the ImageNet protocol of ADM and DiT.

The protocol converts to RGB, scales the short side and crops the center.
"""

import hashlib
from pathlib import Path

import numpy as np

from dithc.config import datasets
from dithc.core.logging import user_error
from dithc.core.system_files import is_system_file
from dithc.data.archives import list_members
from dithc.data.images import prepare
from dithc.data.readers.image_stores import (
    EXPECTED,
    LABEL_SUFFIXES,
    FolderStore,
    ImageStore,
    Parquet,
    TarStore,
    WebDataset,
)
from dithc.data.readers.listing import Listing, check_exists, scene_id
from dithc.data.readers.plugin import NO_GEOREFERENCE
from dithc.data.scene import Mask, Scene

BANDS = ["R", "G", "B"]
STORES: dict[str, type[FolderStore | TarStore | WebDataset | Parquet]] = {
    "folders": FolderStore,
    "tar": TarStore,
    "webdataset": WebDataset,
    "parquet": Parquet,
}


class ImageFolderReader:
    """Reader of images; a label is the index of the class folder or archive, or is stored in the shard."""

    memory_bytes = 512 << 20  # for all but extremely large images
    checks_splits = True

    def __init__(self, source: datasets.ImageFolderSource, folder: Path) -> None:
        self.source, self.folder = source, folder
        single = source.classes == "one"
        layout = _detect_layout(folder, single=single) if source.layout == "auto" else source.layout
        self.listing = Listing(source, folder)
        self._store: ImageStore = STORES[layout](self.listing, single=single)
        self.classes, self.paths = self._store.classes, self._store.paths

    def inputs(self, path: Path) -> list[Path]:
        return [self._store.file(path)]

    def size(self, path: Path) -> int:
        return self._store.size(path)

    def read(self, path: Path) -> Scene:
        """Read one image as uint8 (3, size, size); notes record losses and changes."""
        label = self._store.label(path)
        content = self._store.content(path)
        prepared = prepare(content, self.source.size, path=path)
        return Scene(
            scene_id=scene_id(path, self.folder),
            path=path,
            sha256=hashlib.sha256(content).hexdigest(),
            pixels=prepared.pixels,
            mask=np.full(prepared.pixels.shape[1:], Mask.VALID, dtype=np.uint8),
            bands=BANDS,
            place=NO_GEOREFERENCE,
            units="byte",
            label=label,
            notes=prepared.notes,
        )


def _detect_layout(folder: Path, *, single: bool) -> str:
    check_exists(folder, expected=EXPECTED)
    entries = [path for path in folder.iterdir() if not is_system_file(path.name)] if folder.is_dir() else [folder]
    folders = [path for path in entries if path.is_dir()]
    files = {*entries} - {*folders}
    shards = {suffix: [path for path in files if path.suffix.lower() == suffix] for suffix in (".tar", ".parquet")}
    kinds = [f"{len(paths)} x {suffix}" for suffix, paths in shards.items() if paths]
    if not kinds:
        return "folders"
    if len(kinds) > 1 or folders:
        raise user_error(
            f"{folder} contains images in several layouts",
            got=", ".join([*kinds, *(["folders"] if folders else [])]),
            expected="class folders, or tar archives, or parquet shards",
            fix="point `source.path` at one layout, or set `layout: folders`, `tar`, `webdataset` or `parquet`",
        )
    if shards[".parquet"]:
        return "parquet"
    return _tar_layout(min(shards[".tar"]), single=single)


def _tar_layout(archive: Path, *, single: bool) -> str:
    """Return whether a tar archive contains classes (`tar`) or labeled samples (`webdataset`)."""
    names = [member.name for member in list_members(archive)]
    if any(name.suffix.lower() in LABEL_SUFFIXES and len(name.parts) == 1 for name in names):
        return "webdataset"
    if single or all(len(name.parts) > 1 for name in names):
        return "tar"
    raise user_error(
        f"the classes of the images in {archive} are unknown",
        got="images without folders or labels",
        expected="an archive or a folder in it per class, or KEY.cls or KEY.json next to each KEY.jpg",
        fix="set `layout: tar` if each archive is a class by its name, or `classes: one`",
    )
