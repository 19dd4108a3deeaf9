"""Files of an output folder that dithc wrote, according to its marker and manifest."""

import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Self

from dithc.core import system_files
from dithc.core.artifacts.atomic_files import atomic_write, is_stream
from dithc.core.artifacts.manifest import Manifest
from dithc.core.integrity import dump_checksummed, load_checksummed, require_regular_file
from dithc.core.logging import user_error

MARKER_FILE = ".dithc-output.json"
VERSION_CONTROL = {".git", ".hg", ".svn", ".bzr", ".jj", ".datalad"}
# Leases, files and folders of operating systems, statistics, styles and projects of QGIS. They are neither rejected nor deleted.
SYSTEM_FILES = (".nfs*", ".DS_Store", "._*", ".*lease.json", ".lease.*", "*.aux.xml", "*.qm[dl]", "*.qg[sz]", "*.qlr")
TEMPORARY = re.compile(r"\.(.+)\.tmp\.[^/]+\.\d+")
SCRATCH = "scratch"
MARKER_DEPTH = 2  # folders between a file and the marker that lists it


class FileList:
    """Files of an output folder that may be replaced or deleted, by the names of its manifest and marker."""

    def __init__(self, folder: Path, *, manifest: str = "manifest.json", marker: str = MARKER_FILE) -> None:
        self.folder, self.manifest, self.marker = folder.resolve(), manifest, marker

    @classmethod
    def of(cls, manifest: Path) -> Self:
        return cls(manifest.parent, manifest=manifest.name)

    @classmethod
    def around(cls, file: Path) -> Self:
        """Return the folder of a single file, such as a report, among other files; the marker has the file's name."""
        return cls(file.parent, marker=f".{file.stem}{MARKER_FILE}")

    @property
    def is_scratch(self) -> bool:
        """True if dithc may delete all content."""
        return bool((self._read_marker() or {}).get(SCRATCH))

    def delete(self) -> None:
        self._delete([*self._present(self._owned())])
        _remove_empty(self.folder)

    def _read_marker(self) -> dict[str, Any] | None:
        """Return the content of the marker; None if it is missing or damaged."""
        with suppress(OSError, ValueError):
            content = load_checksummed(require_regular_file(self.folder / self.marker).read_text())
            if isinstance(content.get("files"), dict):
                return content
        return None

    def _write(self, files: dict[str, int | None], **owner: str | None) -> None:
        if is_stream(self.folder / self.marker):
            raise user_error(
                f"{self.folder / self.marker} is not a file",
                got="a device or a pipe",
                expected="no file of this name, or the list of files that dithc wrote",
                fix="remove it",
            )
        content = {**(self._read_marker() or {}), **owner, "files": files}
        self.folder.mkdir(parents=True, exist_ok=True)
        stated = {key: value for key, value in content.items() if value is not None}
        atomic_write(self.folder / self.marker, dump_checksummed(stated))

    def _listed(self) -> dict[str, int | None]:
        return dict((self._read_marker() or {"files": {}})["files"])

    def _documents(self) -> list[dict[str, Any]]:
        """Return the intact documents among marker and both documents of the manifest."""
        # `Manifest.read` would register files that will be replaced.
        documents = [self._read_marker()]
        for name in self._manifests():
            with suppress(OSError, ValueError):
                documents.append(load_checksummed(require_regular_file(self.folder / name).read_text()))
        return [document for document in documents if document]

    def _owner(self) -> tuple[str | None, str | None]:
        stated = [document for document in self._documents() if document.get("stage")]
        return (stated[0]["stage"], stated[0].get("name")) if stated else (None, None)

    def _owned(self) -> dict[str, int | None]:
        """Return the size of each file in marker or manifest, by relative path."""
        owned: dict[str, int | None] = {}
        for document in self._documents()[::-1]:
            files = document.get("files")
            if isinstance(files, list):  # a manifest
                owned |= {os.path.normpath(entry["path"]): entry["bytes"] for entry in files}
                owned |= dict.fromkeys(self._manifests())
            elif isinstance(files, dict):
                owned |= files
        if self.marker == MARKER_FILE:
            for path in self.folder.glob(f".?*{MARKER_FILE}"):
                owned |= FileList(self.folder, marker=path.name)._listed()
        return {name: size for name, size in owned.items() if not name.startswith(("..", "/"))}

    def _manifests(self) -> list[str]:
        """Return the names of both documents of the manifest; empty for a single file."""
        return [self.manifest, Manifest.provenance_path(Path(self.manifest)).name] if self.marker == MARKER_FILE else []

    def _present(self, owned: dict[str, int | None]) -> Iterator[str]:
        return (name for name, _ in owned.items() if self._is_owned(name, owned))

    def _is_owned(self, name: str, owned: dict[str, int | None]) -> bool:
        """Return True if a file is listed.

        A larger file than listed is another file. A smaller file in the folder of a stage is damaged and will be
        repaired. A smaller single file is an edit of the user."""
        try:
            status = (self.folder / name).lstat()
        except OSError:
            return False
        if name not in owned or not stat.S_ISREG(status.st_mode):
            return False
        size = owned[name]
        return size is None or status.st_size == size or (self.marker == MARKER_FILE and status.st_size < size)

    def unknown(self, owned: dict[str, int | None]) -> Iterator[str]:
        """Yield relative paths of files, links and version-control folders that dithc did not write."""
        if self.folder.exists() and not self.folder.is_dir():
            yield self.folder.name
        for root, folders, files in os.walk(self.folder, onerror=_raise):
            visible = (name for name in folders if not _is_of_system(name))
            folders[:] = sorted(name for name in visible if not FileList(Path(root) / name).is_scratch)
            repositories = [f"{name}/" for name in folders if name in VERSION_CONTROL]
            links = [name for name in folders if (Path(root) / name).is_symlink()]
            for name in sorted([*files, *repositories, *links]):
                path = Path(root) / name
                is_known = name.endswith(MARKER_FILE) or _is_of_system(name) or self._is_temporary(path, owned)
                if not is_known and not self._is_owned(self._relative(path), owned):
                    yield self._relative(path)

    def _is_temporary(self, path: Path, names: Collection[str]) -> bool:
        """Return True for the temporary file of a listed file or of the marker."""
        match = TEMPORARY.fullmatch(path.name)
        if match is None or not stat.S_ISREG(path.lstat().st_mode):
            return False
        return match[1].endswith(MARKER_FILE) or self._relative(path.with_name(match[1])) in names

    def _relative(self, path: Path) -> str:
        return os.path.relpath(os.path.join(os.path.realpath(path.parent), path.name), self.folder)

    def _claimed(self) -> Self:
        """Return the claimed folder that contains this folder, or this folder."""
        if self.marker != MARKER_FILE:
            return self
        folders = [type(self)(folder) for folder in [self.folder, *self.folder.parents][: MARKER_DEPTH + 1]]
        return next((output for output in folders if output._read_marker() is not None), self)

    def _delete(self, names: Iterable[str]) -> None:
        removed = [self.folder / name for name in names]
        for path in removed:
            path.unlink(missing_ok=True)
        for folder in sorted({parent for path in removed for parent in path.parents}, reverse=True):
            if folder != self.folder and folder.is_relative_to(self.folder):
                _remove_empty(folder)


def files_of(folder: Path) -> list[Path]:
    """Return all regular files below a folder, except markers, in order of their paths."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(MARKER_FILE))


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        if all(path.name.endswith(MARKER_FILE) for path in folder.iterdir()):
            for marker in folder.iterdir():
                marker.unlink()
            folder.rmdir()


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _is_of_system(name: str) -> bool:
    return name.casefold() in system_files.NAMES or any(fnmatch(name, pattern) for pattern in SYSTEM_FILES)
