"""Stores of images: class folders, tar archives of classes, WebDataset shards, and parquet shards.

A store lists its images once, then returns bytes and label of any image, read in place. The path of an image in an
archive is the path of the archive followed by the name in it.
"""

import json
import re
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from dithc.core.clutter import is_clutter
from dithc.core.logging import get_logger, user_error
from dithc.data.archives import TarMember, list_members
from dithc.data.file_checks import check_room, open_regular, printable
from dithc.data.images import SUFFIXES, read_file
from dithc.data.parquet import ParquetInfo, read_cell, read_columns, read_shard
from dithc.data.readers.classes import check_apart, check_splits
from dithc.data.readers.listing import Listing, PathList, exists
from dithc.data.scene import Reason, SceneRejectedError

WANTED = "images (" + ", ".join(sorted(SUFFIXES)) + ")"
FOLDERS = "point `source.path` at the folder that contains the class folders, or set `classes: one` for a flat folder"
SHARDS = "point `source.path` at the archive, or at the folder that contains the shards"
LABEL_SUFFIXES = (".cls", ".json")  # in order of preference
MOST_LABEL_BYTES = 64 << 20
MOST_CLASSES = 1 << 20
IMAGE, LABEL = "image", "label"
SPLIT_SHARD = re.compile(r"(.*?)-\d+-of-(\d+)\b.*")
log = get_logger(__name__)


class ImageStore(ABC):
    """Images of one layout, in reading order."""

    def __init__(
        self, classes: list[str], labels: Mapping[Path, object], *, paths: Sequence[Path] | None = None
    ) -> None:
        self.classes, self.labels = classes, labels  # labels as stored, which may be invalid
        self.paths: Sequence[Path] = list(labels) if paths is None else paths

    @abstractmethod
    def content(self, path: Path) -> bytes:
        """Return the bytes of an image; raise OSError, SceneRejectedError or UserError if they cannot be read."""

    def file(self, path: Path) -> Path:
        return path

    def size(self, path: Path) -> int:
        return self.file(path).stat().st_size

    def label(self, path: Path) -> int:
        """Return the label of an image; raise SceneRejectedError if it is not the number of a class."""
        label = self.labels[path]
        if type(label) is int and 0 <= label < len(self.classes):
            return label
        raise SceneRejectedError(
            Reason.WRONG_LABEL,
            f"the label of {path.name} in {path.parent.name} is not a class",
            got="none" if label is None else printable(repr(label)[:80]),
            expected=f"an integer from 0 to {len(self.classes) - 1}",
            fix="write the labels again, remove unlabeled images (frequent in test sets), or set `classes: one`",
        )


class FolderStore(ImageStore):
    """Files in a folder per class, in sorted order, or in any folders as a single class."""

    def __init__(self, listing: Listing, *, one: bool) -> None:
        folder = listing.folder
        exists(folder, wanted=WANTED)
        self._depth, self._numbers = len(folder.parts), dict[str, int]()
        if one:
            paths = _images(listing, fix=FOLDERS)
            check_splits(folder, paths, one=True)
            super().__init__([printable(folder.name)], {}, paths=paths)
            return
        inside = sorted(path for path in folder.iterdir() if not is_clutter(path.name)) if folder.is_dir() else []
        folders = [path for path in inside if path.is_dir()]
        check_apart(folder, folders)
        if not folders:
            raise listing.nothing_found(folder, wanted=f"a folder per class, with {WANTED}", fix=FOLDERS)
        for path in inside:
            if not path.is_dir():
                listing.leave(path)
        fix = "remove the empty folder; " + FOLDERS
        found = {path.name: _images(listing, fix=fix, below=path) for path in folders}
        classes = [name for name, paths in found.items() if paths]
        self._numbers = {name: number for number, name in enumerate(classes)}
        paths = PathList(chain.from_iterable(found.values()))
        if not paths:
            raise listing.nothing_found(folder, wanted=WANTED, fix=FOLDERS)
        check_splits(folder, paths)
        super().__init__([printable(name) for name in classes], {}, paths=paths)

    def label(self, path: Path) -> int:
        return self._numbers[path.parts[self._depth]] if self._numbers else 0

    def content(self, path: Path) -> bytes:
        return read_file(path)


class ByteRange(NamedTuple):
    """Location of the bytes of an image."""

    archive: Path
    offset: int
    size: int

    def read(self, path: Path) -> bytes:
        """Return the bytes; errors name `path`."""
        check_room(path, self.size, said="a file")
        with open_regular(self.archive) as file:
            file.seek(self.offset)
            content = file.read(self.size)
        if len(content) < self.size:
            raise OSError(f"the archive ends {self.size - len(content)} bytes early")
        return content


class _Archives(ImageStore):
    _spots: dict[Path, ByteRange]

    def file(self, path: Path) -> Path:
        return self._spots[path].archive

    def size(self, path: Path) -> int:
        return self._spots[path].size

    def content(self, path: Path) -> bytes:
        return self._spots[path].read(path)


class TarStore(_Archives):
    """Archives of classes, as ImageNet is distributed.

    The class is an inner tar by its name, else a folder in the archive, else the archive for images without a folder.
    """

    def __init__(self, listing: Listing, *, one: bool) -> None:
        folder, spots, classes = listing.folder, dict[Path, ByteRange](), dict[Path, str]()
        for archive in _shards(listing, ".tar"):
            for member in _pictures(archive, listing, others_refused=not one):
                path = archive / member.name
                spots[path] = ByteRange(archive, member.offset, member.size)
                classes[path] = archive.stem if one else _class_of(archive, member)
        _some(listing, spots)
        check_splits(folder, spots, one=one)
        names = [folder.name] if one else sorted(set(classes.values()))
        numbers = dict.fromkeys(classes.values(), 0) if one else {name: number for number, name in enumerate(names)}
        self._spots = spots
        super().__init__([printable(name) for name in names], {path: numbers[name] for path, name in classes.items()})


class WebDataset(_Archives):
    """Tar shards of samples: the files of a sample share the name up to its first dot.

    `KEY.jpg` comes with `KEY.cls`, the label in digits, or `KEY.json`, which contains it as `label`.
    """

    def __init__(self, listing: Listing, *, one: bool) -> None:
        folder, labels = listing.folder, dict[Path, object]()
        self._spots = {}
        for archive in _shards(listing, ".tar"):
            for sample in _samples(archive):
                pictures = [member for member in sample if member.name.suffix.lower() in SUFFIXES]
                for member in pictures or sample[:1]:
                    path = archive / member.name
                    self._spots[path] = ByteRange(archive, member.offset, member.size if pictures else 0)
                    labels[path] = 0 if one else _label_of(archive, sample)
                if len(pictures) > 1:
                    raise user_error(
                        f"{archive} has a sample of several images",
                        got=", ".join(printable(str(member.name)) for member in pictures[:4]),
                        expected="one image per name, up to its first dot",
                        fix="give each image a unique name up to the first dot",
                    )
        _some(listing, self._spots)
        check_splits(folder, self._spots, one=one)
        super().__init__([folder.name] if one else _class_names(folder, labels.values()), labels)


class Parquet(ImageStore):
    """Shards of rows, as in Hugging Face datasets: `image`, bytes or a struct with `bytes`, and `label`, a number."""

    def __init__(self, listing: Listing, *, one: bool) -> None:
        folder = listing.folder
        self._cells, labels = dict[Path, tuple[Path, int, int]](), dict[Path, object]()
        named = dict[Path, list[str]]()
        for file in _split_shards(_shards(listing, ".parquet")):
            shard, given = _checked_shard(file, one=one)
            named |= {file: shard.names[LABEL]} if LABEL in shard.names else {}
            places = ((number, row) for number, group in enumerate(shard.groups) for row in range(group.rows))
            for index, (label, (group, row)) in enumerate(zip(given, places, strict=True)):
                path = file / f"{index:06d}"
                labels[path], self._cells[path] = label, (file, group, row)
        check_splits(folder, self._cells, one=one)
        self._rows = Counter(file for file, *_ in self._cells.values())
        _some(listing, self._cells)
        first = next(iter(named.items()), None)
        if first and (other := next((file for file, names in named.items() if names != first[1]), None)):
            raise user_error(
                f"{other.name} has other class names than {first[0].name}",
                got="two lists of names",
                expected="one list, because labels are its indices",
                fix="keep the shards of each dataset in a separate folder",
            )
        if one:
            classes = [folder.name]
        else:
            classes = first[1] if first else _class_names(folder, labels.values())
        super().__init__([printable(name) for name in classes], labels)

    def file(self, path: Path) -> Path:
        return self._cells[path][0]

    def size(self, path: Path) -> int:
        file, *_ = self._cells[path]
        return file.stat().st_size // self._rows[file]

    def content(self, path: Path) -> bytes:
        file, group, row = self._cells[path]
        content = read_cell(file, IMAGE, group=group, row=row)
        if content is None:
            raise SceneRejectedError(
                Reason.INCOMPLETE,
                f"row {path.name} of {file.name} has no image",
                got="none",
                expected=f"the bytes of an image in `{IMAGE}`",
                fix="write the shards again with embedded images (datasets: embed_external_files)",
            )
        return content


def _images(listing: Listing, *, fix: str, below: Path | None = None) -> PathList:
    found = listing.files(suffixes=SUFFIXES, wanted=WANTED, fix=fix, below=below, masks=True)
    return PathList(listing.without_masks(found))


def _shards(listing: Listing, suffix: str) -> list[Path]:
    """Return the shards directly in the folder of a listing, sorted, or its single file."""
    folder = listing.folder
    fix = f"{SHARDS}; unpack compressed archives (.tar.gz) to .tar first"
    return listing.files(
        suffixes={suffix},
        masks=True,
        wanted=f"{suffix} archives of images",
        fix=fix,
        use=lambda path: folder in (path, path.parent),
    )


def _some(listing: Listing, found: Mapping[Path, object]) -> None:
    if not found:
        raise listing.nothing_found(listing.folder, wanted=f"archives with {WANTED} in them", fix=SHARDS)


def _pictures(archive: Path, listing: Listing, *, others_refused: bool) -> Iterable[TarMember]:
    """Yield the image files of an archive of classes; `listing` records all other files."""
    for member in list_members(archive):
        suffix = member.name.suffix.lower()
        if suffix in SUFFIXES:
            yield member
        elif suffix == LABEL_SUFFIXES[0] and others_refused:
            raise user_error(
                f"{archive} is not an archive of classes",
                got=f"{printable(str(member.name))}, the label of a WebDataset's sample",
                expected="images, in archives or folders that are their classes",
                fix="set `layout: webdataset`, or keep the two types of archives in two datasets",
            )
        else:
            listing.leave(archive / member.name)


def _class_of(archive: Path, member: TarMember) -> str:
    within = next((part for part in member.name.parents if part.suffix.lower() == ".tar"), None)
    if within is not None:
        return within.with_suffix("").as_posix()
    return member.name.parent.as_posix() if len(member.name.parts) > 1 else archive.stem


def _samples(archive: Path) -> Iterable[list[TarMember]]:
    """Return the files of a shard by sample, in the order of their first files."""
    samples = defaultdict[str, list[TarMember]](list)
    for member in list_members(archive):
        if any(part.endswith(".tar") for part in member.name.parts[:-1]):
            raise user_error(
                f"{archive} is not a shard of a WebDataset",
                got=f"{printable(str(member.name))}, an archive in it",
                expected="images with their labels next to them",
                fix="set `layout: tar` if archives in an archive are the classes",
            )
        stem = member.name.name.split(".")[0]
        samples[(member.name.parent / stem).as_posix()].append(member)
    return samples.values()


def _label_of(archive: Path, sample: list[TarMember]) -> object:
    """Return the label in a sample's files, valid or not; None without label."""
    of_suffix = {member.name.suffix.lower(): member for member in sample}
    member = next((of_suffix[suffix] for suffix in LABEL_SUFFIXES if suffix in of_suffix), None)
    if member is None or member.size > MOST_LABEL_BYTES:
        return None
    text = ByteRange(archive, member.offset, member.size).read(archive / member.name).decode("utf-8", "replace").strip()
    if member.name.suffix.lower() == LABEL_SUFFIXES[0]:
        return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else text
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return found.get(LABEL) if isinstance(found, dict) else found


def _class_names(folder: Path, labels: Iterable[object]) -> list[str]:
    """Return class names from `class_index.json` next to the shards ({"0": ["n01440764", "tench"]}), else numbers."""
    whole = [label for label in labels if type(label) is int and 0 <= label < MOST_CLASSES]
    beside = sorted((folder if folder.is_dir() else folder.parent).glob("*class_index.json"))
    if not beside:
        return [str(label) for label in range(max(whole, default=0) + 1)]
    try:
        with open_regular(beside[0]) as file:
            table = json.loads(file.read(MOST_LABEL_BYTES))
        names = [table[str(label)] for label in range(max(1, len(table)))]
        return [str(name if isinstance(name, str) else name[0]) for name in names]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise user_error(
            f"{beside[0]} does not name the classes",
            got=repr(error),
            expected='every number from 0 with its names, {"0": ["n01440764", "tench"], ...}',
            fix="write it again, or remove it: classes are then named by their numbers",
        ) from error


def _split_shards(files: list[Path]) -> list[Path]:
    """Return the shards if they belong to one split; Hugging Face stores shards of several splits in one folder."""
    named = {file: match for file in files if (match := SPLIT_SHARD.fullmatch(file.stem))}
    splits = {match[1] for match in named.values()}
    if len(splits) > 1:
        raise user_error(
            f"{files[0].parent} contains shards of several splits",
            got=", ".join(sorted(splits)),
            expected="shards of one split: validation and test images must not be trained on",
            fix="select one split: `source.include: [train-*]`",
        )
    said = max((int(match[2]) for match in named.values()), default=0)
    if len(named) < said:
        log.warning(f"only {len(named)} of {said} shards exist: {files[0].parent}")
    return files


def _checked_shard(file: Path, *, one: bool) -> tuple[ParquetInfo, list[object]]:
    wanted = {IMAGE: "bytes"} | ({} if one else {LABEL: "int"})
    try:
        with open_regular(file):
            shard = read_shard(file, IMAGE)
        wrong = {name: shard.kinds.get(name, "none") for name, kind in wanted.items() if shard.kinds.get(name) != kind}
        labels = [0] * sum(group.rows for group in shard.groups) if one or wrong else read_columns(file, LABEL)[LABEL]
    except OSError as error:
        raise user_error(
            f"{file} cannot be read", got=error, expected="a complete parquet file", fix="download it again"
        ) from error
    if wrong:
        raise user_error(
            f"{file} lacks the columns of images",
            got=", ".join(f"{name}: {kind}" for name, kind in (shard.kinds | wrong).items()),
            expected=f"`{IMAGE}`, bytes or a struct with `bytes`, and `{LABEL}`, integers",
            fix="rename and convert them (datasets: rename_column, cast_column); without labels set `classes: one`",
        )
    for group in shard.groups:
        check_room(file, group.num_bytes, said=f"a group of {group.rows} rows")
    return shard, labels
