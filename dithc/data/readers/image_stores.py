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

from dithc.core.logging import get_logger, user_error
from dithc.core.system_files import is_system_file
from dithc.data.archives import TarMember, list_members
from dithc.data.file_checks import check_memory, open_regular, printable
from dithc.data.images import SUFFIXES, read_file
from dithc.data.parquet import ParquetInfo, read_cell, read_columns, read_shard
from dithc.data.readers.classes import check_disjoint, check_splits
from dithc.data.readers.listing import Listing, PathList, check_exists
from dithc.data.scene import Reason, SceneRejectedError

EXPECTED = "images (" + ", ".join(sorted(SUFFIXES)) + ")"
FOLDERS = "point `source.path` at the folder that contains the class folders, or set `classes: one` for a flat folder"
SHARDS = "point `source.path` at the archive, or at the folder that contains the shards"
LABEL_SUFFIXES = (".cls", ".json")  # in order of preference
MAX_LABEL_BYTES = 64 << 20
MAX_CLASSES = 1 << 20
IMAGE, LABEL = "image", "label"
SPLIT_SHARD = re.compile(r"(.*?)-\d+-of-(\d+)\b.*")
log = get_logger(__name__)


class ImageStore(ABC):
    """Images of one layout, in reading order."""

    paths: Sequence[Path]

    def __init__(self, listing: Listing, classes: list[str], labels: Mapping[Path, object], *, single: bool) -> None:
        if not labels:
            raise listing.nothing_found(listing.folder, expected=f"archives with {EXPECTED} in them", fix=SHARDS)
        check_splits(listing.folder, labels, single=single)
        self.classes, self.labels = [printable(name) for name in classes], labels  # labels as stored, maybe invalid
        self.paths = list(labels)

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

    def __init__(self, listing: Listing, *, single: bool) -> None:
        folder = listing.folder
        check_exists(folder, expected=EXPECTED)
        self._depth, self._numbers = len(folder.parts), dict[str, int]()
        if single:
            paths = _images(listing, fix=FOLDERS)
            check_splits(folder, paths, single=True)
            self.classes, self.paths = [printable(folder.name)], paths
            return
        entries = sorted(path for path in folder.iterdir() if not is_system_file(path.name)) if folder.is_dir() else []
        folders = [path for path in entries if path.is_dir()]
        check_disjoint(folder, folders)
        if not folders:
            raise listing.nothing_found(folder, expected=f"a folder per class, with {EXPECTED}", fix=FOLDERS)
        for path in entries:
            if not path.is_dir():
                listing.add_unread(path)
        fix = "remove the empty folder; " + FOLDERS
        paths_by_class = {path.name: _images(listing, fix=fix, subfolder=path) for path in folders}
        classes = [name for name, paths in paths_by_class.items() if paths]
        self._numbers = {name: number for number, name in enumerate(classes)}
        paths = PathList(chain.from_iterable(paths_by_class.values()))
        if not paths:
            raise listing.nothing_found(folder, expected=EXPECTED, fix=FOLDERS)
        check_splits(folder, paths)
        self.classes, self.paths = [printable(name) for name in classes], paths

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
        check_memory(path, self.size, description="a file")
        with open_regular(self.archive) as file:
            file.seek(self.offset)
            content = file.read(self.size)
        if len(content) < self.size:
            raise OSError(f"the archive ends {self.size - len(content)} bytes early")
        return content


class _Archives(ImageStore):
    _ranges: dict[Path, ByteRange]

    def file(self, path: Path) -> Path:
        return self._ranges[path].archive

    def size(self, path: Path) -> int:
        return self._ranges[path].size

    def content(self, path: Path) -> bytes:
        return self._ranges[path].read(path)


class TarStore(_Archives):
    """Archives of classes, as ImageNet is distributed.

    The class is an inner tar by its name, else a folder in the archive, else the archive for images without a folder.
    """

    def __init__(self, listing: Listing, *, single: bool) -> None:
        self._ranges, classes = {}, dict[Path, str]()
        for archive in _shards(listing, ".tar"):
            for member in _list_images(archive, listing, reject_labels=not single):
                path = archive / member.name
                self._ranges[path] = ByteRange(archive, member.offset, member.size)
                classes[path] = listing.folder.name if single else _class_name(archive, member)
        names = sorted(set(classes.values()))
        numbers = {name: number for number, name in enumerate(names)}
        super().__init__(listing, names, {path: numbers[name] for path, name in classes.items()}, single=single)


class WebDataset(_Archives):
    """Tar shards of samples: the files of a sample share the name up to its first dot.

    `KEY.jpg` comes with `KEY.cls`, the label in digits, or `KEY.json`, which contains it as `label`.
    """

    def __init__(self, listing: Listing, *, single: bool) -> None:
        folder, labels, self._ranges = listing.folder, dict[Path, object](), {}
        for archive in _shards(listing, ".tar"):
            for sample in _samples(archive):
                images = [member for member in sample if member.name.suffix.lower() in SUFFIXES]
                for member in images or sample[:1]:
                    path = archive / member.name
                    self._ranges[path] = ByteRange(archive, member.offset, member.size if images else 0)
                    labels[path] = 0 if single else _read_label(archive, sample)
                if len(images) > 1:
                    raise user_error(
                        f"{archive} has a sample of several images",
                        got=", ".join(printable(str(member.name)) for member in images[:4]),
                        expected="one image per name, up to its first dot",
                        fix="give each image a unique name up to the first dot",
                    )
        classes = [folder.name] if single else _class_names(folder, labels.values())
        super().__init__(listing, classes, labels, single=single)


class Parquet(ImageStore):
    """Shards of rows, as in Hugging Face datasets: `image`, bytes or a struct with `bytes`, and `label`, a number."""

    def __init__(self, listing: Listing, *, single: bool) -> None:
        folder = listing.folder
        self._cells, labels = dict[Path, tuple[Path, int, int]](), dict[Path, object]()
        names_by_file = dict[Path, list[str]]()
        for file in _split_shards(_shards(listing, ".parquet")):
            shard, shard_labels = _open_shard(file, single=single)
            names_by_file |= {file: shard.names[LABEL]} if LABEL in shard.names else {}
            positions = ((number, row) for number, group in enumerate(shard.groups) for row in range(group.rows))
            for index, (label, (group, row)) in enumerate(zip(shard_labels, positions, strict=True)):
                path = file / f"{index:06d}"
                labels[path], self._cells[path] = label, (file, group, row)
        self._rows = Counter(file for file, *_ in self._cells.values())
        first = next(iter(names_by_file.items()), None)
        if first and (other := next((file for file, names in names_by_file.items() if names != first[1]), None)):
            raise user_error(
                f"{other.name} has other class names than {first[0].name}",
                got="two lists of names",
                expected="one list, because labels are its indices",
                fix="keep the shards of each dataset in a separate folder",
            )
        if single:
            classes = [folder.name]
        else:
            classes = first[1] if first else _class_names(folder, labels.values())
        super().__init__(listing, classes, labels, single=single)

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


def _images(listing: Listing, *, fix: str, subfolder: Path | None = None) -> PathList:
    paths = listing.files(suffixes=SUFFIXES, expected=EXPECTED, fix=fix, subfolder=subfolder, masks=True)
    return PathList(listing.without_masks(paths))


def _shards(listing: Listing, suffix: str) -> list[Path]:
    """Return the shards directly in the folder of a listing, sorted, or its single file."""
    folder = listing.folder
    fix = f"{SHARDS}; unpack compressed archives (.tar.gz) to .tar first"
    return listing.files(
        suffixes={suffix},
        masks=True,
        expected=f"{suffix} archives of images",
        fix=fix,
        accept=lambda path: folder in (path, path.parent),
    )


def _list_images(archive: Path, listing: Listing, *, reject_labels: bool) -> Iterable[TarMember]:
    """Yield the image files of an archive of classes; `listing` records all other files."""
    for member in list_members(archive):
        suffix = member.name.suffix.lower()
        if suffix in SUFFIXES:
            yield member
        elif suffix == LABEL_SUFFIXES[0] and reject_labels:
            raise user_error(
                f"{archive} is not an archive of classes",
                got=f"{printable(str(member.name))}, the label of a WebDataset's sample",
                expected="images, in archives or folders that are their classes",
                fix="set `layout: webdataset`, or keep the two types of archives in two datasets",
            )
        else:
            listing.add_unread(archive / member.name)


def _class_name(archive: Path, member: TarMember) -> str:
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


def _read_label(archive: Path, sample: list[TarMember]) -> object:
    """Return the label in a sample's files, valid or not; None without label."""
    by_suffix = {member.name.suffix.lower(): member for member in sample}
    member = next((by_suffix[suffix] for suffix in LABEL_SUFFIXES if suffix in by_suffix), None)
    if member is None or member.size > MAX_LABEL_BYTES:
        return None
    text = ByteRange(archive, member.offset, member.size).read(archive / member.name).decode("utf-8", "replace").strip()
    if member.name.suffix.lower() == LABEL_SUFFIXES[0]:
        return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else text
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return content.get(LABEL) if isinstance(content, dict) else content


def _class_names(folder: Path, labels: Iterable[object]) -> list[str]:
    """Return class names from `class_index.json` next to the shards ({"0": ["n01440764", "tench"]}), else numbers."""
    valid_labels = [label for label in labels if type(label) is int and 0 <= label < MAX_CLASSES]
    index_files = sorted((folder if folder.is_dir() else folder.parent).glob("*class_index.json"))
    if not index_files:
        return [str(label) for label in range(max(valid_labels, default=0) + 1)]
    try:
        with open_regular(index_files[0]) as file:
            table = json.loads(file.read(MAX_LABEL_BYTES))
        names = [table[str(label)] for label in range(max(1, len(table)))]
        return [str(name if isinstance(name, str) else name[0]) for name in names]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise user_error(
            f"{index_files[0]} does not name the classes",
            got=repr(error),
            expected='every number from 0 with its names, {"0": ["n01440764", "tench"], ...}',
            fix="write it again, or remove it: classes are then named by their numbers",
        ) from error


def _split_shards(files: list[Path]) -> list[Path]:
    """Return the shards if they belong to one split; Hugging Face stores shards of several splits in one folder."""
    matches = {file: match for file in files if (match := SPLIT_SHARD.fullmatch(file.stem))}
    splits = {match[1] for match in matches.values()}
    if len(splits) > 1:
        raise user_error(
            f"{files[0].parent} contains shards of several splits",
            got=", ".join(sorted(splits)),
            expected="shards of one split: validation and test images must not be trained on",
            fix="select one split: `source.include: [train-*]`",
        )
    declared = max((int(match[2]) for match in matches.values()), default=0)
    if len(matches) < declared:
        log.warning(f"only {len(matches)} of {declared} shards exist: {files[0].parent}")
    return files


def _open_shard(file: Path, *, single: bool) -> tuple[ParquetInfo, list[object]]:
    kinds = {IMAGE: "bytes"} | ({} if single else {LABEL: "int"})
    try:
        with open_regular(file):
            shard = read_shard(file, IMAGE)
        invalid = {name: shard.kinds.get(name, "none") for name, kind in kinds.items() if shard.kinds.get(name) != kind}
        count = sum(group.rows for group in shard.groups)
        labels = [0] * count if single or invalid else read_columns(file, LABEL)[LABEL]
    except OSError as error:
        raise user_error(
            f"{file} cannot be read", got=error, expected="a complete parquet file", fix="download it again"
        ) from error
    if invalid:
        raise user_error(
            f"{file} lacks the columns of images",
            got=", ".join(f"{name}: {kind}" for name, kind in (shard.kinds | invalid).items()),
            expected=f"`{IMAGE}`, bytes or a struct with `bytes`, and `{LABEL}`, integers",
            fix="rename and convert them (datasets: rename_column, cast_column); without labels set `classes: one`",
        )
    for group in shard.groups:
        check_memory(file, group.num_bytes, description=f"a group of {group.rows} rows")
    return shard, labels
