"""Selection of the scene files of a source in a fixed order, the files of each scene, and their state without reading."""

import hashlib
import os
import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice, takewhile
from pathlib import Path
from typing import overload

from dithc.config import datasets
from dithc.core.logging import UserError, get_logger, user_error
from dithc.core.system_files import is_system_file
from dithc.data.file_checks import printable

SHOWN = 5
RASTERS = frozenset({".tif", ".tiff", ".jp2", ".j2k", ".npy"})
"""Suffixes of scene rasters and of masks."""
MASK = re.compile(
    r"(?:^|[\W_])(?:udm2?(?![^\W_])|(?:cloud|cld|usable|valid)[\W_]?mask|c?fmask|qa60|b?qa[\W_]?(?:pixel|radsat|aerosol)"
    r"|pixel[\W_]qa|msk_(?:cl|snw|det|qua|def|nod|sat|tec)|cloud[\W_]?prob|(?:scl|cldprb|clm)(?=(?:[\W_]\w{2,4})?$)"
    r"|(?:masks?|msk|labels?|clouds?|b?qa)$)|^\W*(?:masks?|labels?)[\W_]",
    re.IGNORECASE,
)
"""Names without suffix of masks that producers deliver with a scene: PlanetScope, Landsat, Sentinel-2, MAJA, Fmask."""
MASK_FOLDER = re.compile(
    r"(?:(?:cloud|seg|segmentation)[\W_]?)?(?:masks?|labels?)|annotations?|ground[\W_]?truth|gts?", re.IGNORECASE
)
"""Names of folders with one mask or label raster per scene."""
COMPANION = re.compile(
    r"\.(?:xml|json|geojson|txt|md|rst|html?|pdf|imd|til|met|rp[bc]|prj|qpj|aux|ovr|msk|md5|sha\d+|crc|sfv"
    r"|tfw|tiff?w|j[gp]w|jpe?gw|p[gn]w|pngw|gfw|bpw|j2w|jp2w|wld)$"
    r"|^(?:readme|licen[cs]e|copying|notice|authors|citation|changelog|version|manifest|checksums?|(?:md5|sha\d+)sums?)(?:\.|$)",
    re.IGNORECASE,
)
"""Names of metadata, world files, overviews, checksums and licenses, which contain no scene pixels."""
DIGEST_CHARS = 16
SEPARATORS = (".", "_", "-")
log = get_logger(__name__)


class PathList(Sequence[Path]):
    """Sequence of paths in one buffer: a million paths take 60 MB per process instead of 600 MB."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._text, self._ends = bytearray(), array("q", [0])
        for path in paths:
            self._text += os.fsencode(path)
            self._ends.append(len(self._text))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> Path: ...
    @overload
    def __getitem__(self, index: slice) -> list[Path]: ...
    def __getitem__(self, index: int | slice) -> Path | list[Path]:
        selection = range(len(self))[index]
        if isinstance(selection, range):
            return [self[position] for position in selection]
        return Path(os.fsdecode(bytes(self._text[self._ends[selection] : self._ends[selection + 1]])))


def scene_id(path: Path, folder: Path) -> str:
    """Return the path of a scene below the source's folder, with `/`; its name if the source is one file."""
    return printable(path.name if path == folder else path.relative_to(folder).as_posix())


class Listing:
    """Selection of a source's files, with a record of the files that no reader opens."""

    def __init__(self, source: datasets.Source | datasets.Layer, folder: Path) -> None:
        self.folder, self.excluded = folder, 0  # files that `include` and `exclude` remove
        self.unread, self.masks = set[Path](), list[Path]()  # masks that no setting uses
        clouds = getattr(source, "clouds", None)
        self._has_masks = clouds is not None
        self._mask = None if clouds is None or clouds.mask is None else clouds.mask.names.casefold()
        self._include, self._exclude = (
            [pattern.casefold().removeprefix("./").rstrip("/") for pattern in getattr(source, name, ())]
            for name in ("include", "exclude")
        )

    def files(
        self,
        *,
        suffixes: Collection[str],
        expected: str,
        fix: str,
        accept: Callable[[Path], bool] = lambda path: True,
        subfolder: Path | None = None,
        masks: bool = False,
    ) -> list[Path]:
        """Return all files with one of the suffixes (any case) that `accept` and the patterns accept, sorted.

        Entries that are not folders count as files: the reader rejects broken links, pipes and devices with a row. `subfolder`
        is a folder in the source; `masks` accepts names of masks as scenes. Raises UserError without a scene.
        """
        top = subfolder or self.folder
        check_exists(top, expected=expected)
        scenes, excluded = [], self.excluded
        paths = [top] if top.is_file() else [parent / name for parent, _, names in walk(top) for name in names]
        for path in sorted(paths):
            suffix = path.suffix.lower()
            if self._mask is not None and suffix in RASTERS and fnmatchcase(path.name.casefold(), self._mask):
                self.unread.add(path)
            elif suffix not in suffixes or not accept(path) or (path != top and _is_hidden(path.name)):
                self.add_unread(path, suffixes)
            elif self.selects(path, masks=masks or path == self.folder):
                scenes.append(path)
        if not scenes and (subfolder is None or self.excluded == excluded):
            raise self.nothing_found(top, expected=expected, fix=fix)
        return scenes

    def selects(self, path: Path, *, masks: bool = True) -> bool:
        """Return whether the patterns select a file or product, else count it; `masks` accepts names of masks."""
        if masks and not self._include and not self._exclude:
            return True
        parts = [part.casefold() for part in path.relative_to(self.folder).parts or (path.name,)]
        names = {name for end, part in enumerate(parts, 1) for name in (part, "/".join(parts[:end]))}

        def matching(patterns: list[str]) -> list[str]:
            return [pattern for pattern in patterns if any(fnmatchcase(name, pattern) for name in names)]

        included = matching(self._include) if self._include else ["*"]
        if not included or matching(self._exclude):
            self.excluded += 1
            return False
        if masks or not _is_mask(path, parts) or any(_is_mask(Path(text), text.split("/")) for text in included):
            return True
        self.masks.append(path)
        return False

    def without_masks(self, paths: list[Path]) -> list[Path]:
        """Return images, without masks of other images: `a_mask.png` next to `a.jpg`."""
        stems = {(path.parent, path.stem.casefold()) for path in paths}
        masks = {path for path in paths if any((path.parent, name) in stems for name in _bases(path.stem.casefold()))}
        self.masks += sorted(masks)
        return [path for path in paths if path not in masks]

    def add_unread(self, path: Path, suffixes: Collection[str] = ()) -> None:
        """Record a file that is not a scene, unless its name denotes a companion or a system file."""
        is_ignored = path.suffix.lower() not in suffixes if _is_hidden(path.name) else COMPANION.search(path.name)
        if not is_ignored and self.selects(path):
            self.unread.add(path)

    def read(self, paths: Iterable[Path]) -> None:
        """Remove inputs of scenes from the record of files that no reader opens."""
        if self.unread:
            self.unread.difference_update(Path(os.path.normpath(path)) for path in paths)

    def report(self) -> dict[str, int]:
        """Log the files that no reader opens, and return their number by suffix."""
        counts = self._count_unread()
        if self.unread:
            text = ", ".join(f"{count} {kind}" for kind, count in counts.items())
            log.warning(
                f"{self.folder}: not read: {text}, such as {scene_id(min(self.unread), self.folder)}; convert these files, or "
                "list them in `source.exclude`"
            )
        if self.masks:
            apply = "set `source.clouds.mask` to apply them, or " if self._has_masks else ""
            log.warning(
                f"{self.folder}: masks are not scenes: {len(self.masks)}, such as {scene_id(self.masks[0], self.folder)}; "
                f"{apply}name them in `source.include`"
            )
        return counts

    def nothing_found(self, folder: Path, *, expected: str, fix: str) -> UserError:
        """Return the error for a folder without scenes, which names its content."""
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else [folder.name]
        rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        counts = "".join(f"; {count} {kind}" for kind, count in self._count_unread().items())
        got = f"{', '.join(names[:SHOWN])}{rest}{counts}" if names else "an empty folder"
        if self.excluded:
            fix = f"correct `source.include` and `source.exclude`, which omit {self.excluded} files; or {fix}"
        return user_error(f"no scene found in {folder}", got=got, expected=expected, fix=fix)

    def _count_unread(self) -> dict[str, int]:
        counts = Counter(printable(path.suffix.lower()) or "no suffix" for path in self.unread)
        counts |= Counter({"masks": len(self.masks), "excluded": self.excluded})
        return {kind: count for kind, count in sorted(counts.items()) if count}


def glob(folder: Path, pattern: str) -> list[Path]:
    """Return the sorted matches of a glob below a folder, without hidden and system names."""
    return sorted(path for path in folder.glob(pattern) if not is_system_file(path.relative_to(folder)))


def walk(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Walk a folder like `os.walk`, without hidden and system entries; OSError if a folder cannot be listed.

    Links to folders are not followed, because their targets may be anywhere. The log names them, unless the caller
    removes them from the list of folders.
    """

    def stop(error: OSError) -> None:
        raise error

    links = list[Path]()
    for parent, folders, names in os.walk(folder, onerror=stop):
        folders[:] = [name for name in folders if not is_system_file(name)]
        yield Path(parent), folders, [name for name in names if _is_hidden(name) or not is_system_file(name)]
        links += [Path(parent, name) for name in folders if Path(parent, name).is_symlink()]
    if links:
        log.warning(
            f"{len(links)} links to folders in {folder} are not followed, such as {links[0]}: link the files, or name the "
            "folder itself in `source.path`"
        )


def check_name(path: Path, folder: Path) -> None:
    """Raise UserError if the path of a file below the source is not UTF-8, as tables, JSON and logs require."""
    relative = path.name if path == folder else path.relative_to(folder).as_posix()
    if printable(relative) != relative:
        raise user_error(
            "the name of the file is not UTF-8",
            got=printable(relative),
            expected="a name that every program reads identically",
            fix="rename it (convmv -f latin1 -t utf-8 --notest), or remove it from the folder",
        )


def check_exists(folder: Path, *, expected: str) -> None:
    if not folder.exists():
        raise user_error(
            f"the data at {folder} (`source.path`) does not exist",
            got="no such file or folder",
            expected=expected,
            fix="put your files or a link there, or correct `source.path`, which is relative to the working folder",
        )


def _is_mask(path: Path, parts: Sequence[str]) -> bool:
    return MASK.search(path.stem) is not None or any(MASK_FOLDER.fullmatch(part) for part in parts[:-1])


def _bases(stem: str) -> list[str]:
    """Return the possible names of the image that a mask belongs to; none if `stem` is not the name of a mask."""
    names = [stem[: match.start()] + stem[match.end() :] for match in MASK.finditer(stem)]
    return [name.strip("_-. ") for name in names]


def _is_hidden(name: str) -> bool:
    return name.startswith(".") and not name.startswith("._")


class SidecarIndex:
    """Finder of files next to scenes; each folder is listed once."""

    def __init__(self) -> None:
        self._names: dict[Path, list[str]] = {}

    def __call__(self, path: Path, stem: str | None = None) -> list[Path]:
        """Return all files that start with `stem`, by default the scene's name without suffix, then with one of `ENDS`."""
        ends, stem = ("",) if stem is not None else SEPARATORS, path.stem if stem is None else stem
        if path.parent not in self._names:
            self._names[path.parent] = sorted(os.listdir(path.parent))
        names = self._names[path.parent]
        candidates = takewhile(lambda name: name.startswith(stem), islice(names, bisect_left(names, stem), None))
        return [path.with_name(name) for name in candidates if name.startswith(ends, len(stem))]


def files_below(folder: Path) -> list[Path]:
    return sorted(Path(parent, name) for parent, _, names in os.walk(folder) for name in names)


def state_of(paths: list[Path], *, relative_to: Path) -> tuple[str | None, int]:
    """Return a digest of names, sizes and times of files (None if one is inaccessible), and their bytes.

    The change time (ctime) cannot be set, which detects a file that was altered in place and given its old
    modification time.
    """
    digest, size = hashlib.sha256(), 0
    try:
        for path in paths:
            stat = path.stat()
            name = os.path.relpath(path, relative_to)
            digest.update(
                f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ctime_ns}\n".encode(errors="surrogateescape")
            )
            size += stat.st_size
    except OSError:  # reported by the reader
        return None, size
    return digest.hexdigest()[:DIGEST_CHARS], size
