"""Ownership of output folders: the files that a stage may replace or delete.

A marker lists these files in the folder. It is a sealed document that exists before the first file does. Sizes are added when
the stage ends; until then a size is null. All other files belong to the user: dithc neither replaces nor deletes them.
"""

import errno
import glob
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import Any

from dithc.log import logger, problem
from dithc.runs.files import atomic_write, beside, flush
from dithc.runs.manifest import Manifest
from dithc.sealed import has_seal, plain, seal, unseal

MARKER_FILE = ".dithc-output.json"
VERSION_CONTROL = {".git", ".hg", ".svn", ".bzr", ".jj", ".datalad"}
# Files and folders of the operating system, and leases. They are neither rejected nor deleted.
SYSTEM_FILES = (".nfs*", ".DS_Store", "._*", "Thumbs.db", "desktop.ini", "lost+found", ".*lease.json", ".lease.*")
TEMPORARY = re.compile(r"\.(.+)\.tmp\.[^/]+\.\d+")
NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
SCRATCH = "scratch"
SHOWN = 3
MARKER_DEPTH = 2  # folders between a file and the marker that lists it
log = logger(__name__)


class OutputFolder:
    """Output folder of one stage.

    Attributes:
        folder: absolute path without symbolic links.
        manifest: name of the manifest in the folder.
        marker: name of the marker in the folder.
    """

    def __init__(self, folder: Path, *, manifest: str = "manifest.json", marker: str = MARKER_FILE) -> None:
        self.folder, self.manifest, self.marker = folder.resolve(), manifest, marker

    @classmethod
    def of(cls, manifest: Path) -> "OutputFolder":
        """Return the folder of a manifest."""
        return cls(manifest.parent, manifest=manifest.name)

    @classmethod
    def around(cls, file: Path) -> "OutputFolder":
        """Return the folder of a single file, such as a report, that other files surround; its marker has the file's name."""
        return cls(file.parent, marker=f".{file.stem}{MARKER_FILE}")

    def check(self, *, stage: str | None = None, name: str | None = None) -> dict[str, int | None]:
        """Reject a folder that holds files of the user or of another stage.

        Args:
            stage: stage that is going to write; None accepts each.
            name: name of the dataset, run or evaluation; None accepts each.

        Returns:
            The size of each file that may be replaced, by relative path; None for a size that is not fixed yet.

        Raises:
            UserError: the folder has another owner, or holds a file that neither marker nor manifest lists.
        """
        owner, owned = self._owner(), self._owned()
        for got, expected in zip(owner, (stage, name), strict=True):
            if None not in (got, expected) and got != expected:
                raise problem(
                    f"output folder {self.folder} holds the results of another stage",
                    got=" ".join(filter(None, owner)),
                    expected=f"{stage} {name}",
                    remedy="choose another folder with `--out`, or delete this one",
                )
        if unknown := list(islice(self._unknown(owned), SHOWN)):
            raise problem(
                f"output folder {self.folder} holds files that dithc did not write",
                got=", ".join(unknown),
                expected="a new or empty folder, or an earlier output of the same stage without other files",
                remedy="choose another folder with `--out`, or move these files elsewhere",
            )
        return owned

    def claim(self, *, stage: str, name: str) -> None:
        """Check the folder, create it and write its marker.

        Temporary files of killed processes are deleted, here and by `plan`.

        Raises:
            UserError: as `check`.
        """
        owned = self.check(stage=stage, name=name)
        self._remove_temporary(owned)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write(dict.fromkeys([*self._present(owned), *self._manifests()]), stage=stage, name=name)

    def plan(self, paths: Iterable[Path]) -> None:
        """List files in the marker before they are written.

        The marker is that of the nearest claimed folder above, or a new one in this folder.

        Raises:
            UserError: a file of this name exists and dithc did not write it.
        """
        home, listed = self._home(), self._home()._listed()
        names = home._free(paths)
        home._remove_temporary(names)
        if any(listed.get(name, 0) is not None for name in names):
            home._write(listed | dict.fromkeys(names))

    @contextmanager
    def rebuilt(self, subfolder: str) -> Iterator[Path]:
        """Delete the earlier files of a subfolder, then list the files that exist in it after the body.

        Used for files whose names a library chooses, such as TensorBoard events. The folder must be claimed.
        """
        self._delete(name for name in self._present(self._owned()) if name.startswith(f"{subfolder}/"))
        place = self.folder / subfolder
        before = files_of(place)
        yield place
        new = [self._relative(path) for path in files_of(place) if path not in before]
        self._home()._write(self._home()._listed() | dict.fromkeys(new))

    def prune(self, keep: Iterable[Path], *, prefix: str = "") -> None:
        """Delete the files of earlier executions that have a prefix, except the manifest and `keep`."""
        home = self._home()
        start = home._relative(self.folder / "_").removesuffix("_") + prefix
        kept = {home._relative(path) for path in keep} | {*home._manifests()}
        home._delete(name for name in home._present(home._owned()) if name.startswith(start) and name not in kept)

    def finish(self, *, stage: str, name: str) -> None:
        """Fix the sizes of all files that are listed, now that the manifest is written."""
        names = [*self._present(self._owned()), *self._manifests()]
        sizes = {name: (self.folder / name).stat().st_size for name in names if (self.folder / name).is_file()}
        self._write(dict(sizes), stage=stage, name=name)

    @contextmanager
    def replaced(self, *, stage: str | None = None, name: str | None = None) -> Iterator[Path]:
        """Yield a temporary folder that takes the place of this one when the body succeeds.

        After an error this folder is unchanged. Files that appeared in it meanwhile are moved into the new one.

        Raises:
            UserError: as `check`; or the disk is full. No temporary file is left then.
        """
        self._recover()
        self.check(stage=stage, name=name)
        try:
            temporary = beside(self.folder)
            try:
                make_scratch(temporary)
                yield temporary
                self._install(temporary, stage=stage, name=name)
            except BaseException:
                remove(temporary)
                raise
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            raise problem(
                f"writing {self.folder} failed: the disk is full",
                got=error.strerror or str(error),
                expected="room for the output; the earlier content is unchanged",
                remedy="free space (or raise the quota), or set `results` to a larger file system; then start again",
            ) from error

    def delete(self) -> None:
        """Delete all files that dithc wrote here, and the folder if no other file is in it."""
        self._delete([*self._present(self._owned())])
        (self.folder / MARKER_FILE).unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    def _remove_temporary(self, names: Collection[str]) -> None:
        """Delete the temporary forms of files that killed processes left."""
        for path in [path for path in self.folder.rglob(".*.tmp.*") if self._is_temporary(path, names)]:
            log.info(f"removing {path}: its writer was killed")
            path.unlink()

    def _free(self, paths: Iterable[Path]) -> list[str]:
        """Return relative paths that this folder's stage may write.

        Raises:
            UserError: a file of this name exists and is not listed.
        """
        owned, names = self._owned(), []
        for path in paths:
            names.append(self._relative(path))
            if os.path.lexists(path) and not _is_owned(path, names[-1], owned):
                raise problem(
                    f"{path} exists and dithc did not write it",
                    got=f"a file that {self.folder / self.marker} does not list",
                    expected="no file of this name",
                    remedy="choose another place with `--out`, or move the file elsewhere",
                )
        return names

    def _install(self, temporary: Path, *, stage: str | None, name: str | None) -> None:
        """Exchange this folder and a complete temporary folder."""
        owner = self._owner()
        new = OutputFolder(temporary, manifest=self.manifest)
        new._write(dict.fromkeys(self._manifests()), stage=stage or owner[0], name=name or owner[1])
        for part in temporary.rglob("*"):
            flush(part)
        new.move(self.folder)

    def move(self, target: Path) -> None:
        """Give a complete temporary folder its final name; an earlier folder of this name is deleted afterwards.

        Raises:
            OSError: the folder is not writable; the earlier folder is intact.
        """
        sizes: dict[str, int | None] = {self._relative(path): path.stat().st_size for path in files_of(self.folder)}
        self._write(self._listed() | sizes, scratch=None)
        flush(self.folder)
        aside = self.folder.with_name(f"{self.folder.name}.replaced")
        if target.is_dir():
            os.rename(target, aside)
        try:
            os.rename(self.folder, target)
        except BaseException:
            if aside.is_dir():
                os.rename(aside, target)
            raise
        flush(target.parent)
        if aside.is_dir():
            OutputFolder(target, manifest=self.manifest)._retire(aside)

    def _retire(self, aside: Path) -> None:
        """Delete an earlier version of this folder; files of the user are moved into the present one."""
        OutputFolder(aside, manifest=self.manifest).delete()
        for path in sorted(aside.rglob("*"), reverse=True) if aside.is_dir() else []:
            target = self.folder / path.relative_to(aside)
            if path.is_dir() and not path.is_symlink():
                with suppress(OSError):
                    target.mkdir(parents=True, exist_ok=True)
                    path.rmdir()
            elif not os.path.lexists(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(path, target)
        try:
            if aside.is_dir():
                aside.rmdir()
        except OSError:
            log.warning(
                f"{aside} holds files that dithc did not write and {self.folder} holds too: move them elsewhere"
            )

    def _recover(self) -> None:
        """Undo or complete the replacement that a killed process began."""
        siblings = sorted(self.folder.parent.glob(f".{glob.escape(self.folder.name)}.tmp.*"), reverse=True)
        for path in filter(lambda path: TEMPORARY.fullmatch(path.name.removesuffix(".replaced")), siblings):
            if not path.name.endswith(".replaced"):
                remove(path, reason="its writer was killed")
            elif not OutputFolder(path, manifest=self.manifest)._documents():
                log.warning(f"{path} is kept: dithc did not write it")
            elif self.folder.exists():
                self._retire(path)
            else:
                log.info(f"renaming {path} back to {self.folder}: a process was killed while it replaced the folder")
                os.rename(path, self.folder)

    def _read(self) -> dict[str, Any] | None:
        """Return the content of the marker; None without an intact one."""
        with suppress(OSError, ValueError):
            content = unseal(plain(self.folder / self.marker).read_text())
            if isinstance(content.get("files"), dict):
                return content
        return None

    def _write(self, files: dict[str, int | None], **owner: str | None) -> None:
        content = {**(self._read() or {}), **owner, "files": files}
        self.folder.mkdir(parents=True, exist_ok=True)
        stated = {key: value for key, value in content.items() if value is not None}
        atomic_write(self.folder / self.marker, seal(stated))

    def _listed(self) -> dict[str, int | None]:
        return dict((self._read() or {"files": {}})["files"])

    def _documents(self) -> list[dict[str, Any]]:
        """Return the marker and both documents of the manifest, as far as these are intact.

        `Manifest.read` would register files that are about to be replaced.
        """
        found = [self._read()]
        for name in self._manifests():
            with suppress(OSError, ValueError):
                found.append(unseal(plain(self.folder / name).read_text()))
        return [document for document in found if document]

    def _owner(self) -> tuple[str | None, str | None]:
        """Return stage and name that marker or manifest state."""
        stated = [document for document in self._documents() if document.get("stage")]
        return (stated[0]["stage"], stated[0].get("name")) if stated else (None, None)

    def _owned(self) -> dict[str, int | None]:
        """Return the size of each file that marker or manifest list, by relative path."""
        owned: dict[str, int | None] = {}
        for document in self._documents()[::-1]:
            files = document.get("files")
            if isinstance(files, list):  # a manifest
                owned |= {os.path.normpath(entry["path"]): entry["bytes"] for entry in files}
                owned |= dict.fromkeys(self._manifests())
            elif isinstance(files, dict):
                owned |= files
        return {name: size for name, size in owned.items() if not name.startswith(("..", "/"))}

    def _manifests(self) -> Iterator[str]:
        yield self.manifest
        yield Manifest.making_of(Path(self.manifest)).name

    def _present(self, owned: dict[str, int | None]) -> Iterator[str]:
        return (name for name, _ in owned.items() if _is_owned(self.folder / name, name, owned))

    def _unknown(self, owned: dict[str, int | None]) -> Iterator[str]:
        """Yield relative paths of files, links and version-control folders that dithc did not write."""
        if self.folder.exists() and not self.folder.is_dir():
            yield self.folder.name
        for root, folders, files in os.walk(self.folder):
            folders[:] = sorted(
                name for name in folders if not _is_of_system(name) and not is_scratch(Path(root) / name)
            )
            repositories = [f"{name}/" for name in folders if name in VERSION_CONTROL]
            links = [name for name in folders if (Path(root) / name).is_symlink()]
            for name in sorted([*files, *repositories, *links]):
                path = Path(root) / name
                known = name.endswith(MARKER_FILE) or _is_of_system(name) or self._is_temporary(path, owned)
                if not known and not _is_owned(path, self._relative(path), owned):
                    yield self._relative(path)

    def _is_temporary(self, path: Path, names: Collection[str]) -> bool:
        """Return whether a file is the temporary form of a file that is listed, or of the marker."""
        found = TEMPORARY.fullmatch(path.name)
        if found is None or not stat.S_ISREG(path.lstat().st_mode):
            return False
        return found[1].endswith(MARKER_FILE) or self._relative(path.with_name(found[1])) in names

    def _relative(self, path: Path) -> str:
        return os.path.relpath(os.path.join(os.path.realpath(path.parent), path.name), self.folder)

    def _home(self) -> "OutputFolder":
        """Return the claimed folder that this one belongs to, or this one."""
        if self.marker != MARKER_FILE:
            return self
        above = [OutputFolder(folder) for folder in [self.folder, *self.folder.parents][: MARKER_DEPTH + 1]]
        return next((one for one in above if one._read() is not None), self)

    def _delete(self, names: Iterable[str]) -> None:
        """Delete files, then the folders that have become empty."""
        removed = [self.folder / name for name in names]
        for path in removed:
            path.unlink(missing_ok=True)
        for folder in sorted({one for path in removed for one in path.parents}, reverse=True):
            if folder != self.folder and folder.is_relative_to(self.folder):
                with suppress(OSError):
                    (folder / MARKER_FILE).unlink(missing_ok=True)
                    folder.rmdir()


def files_of(folder: Path) -> list[Path]:
    """Return all regular files below a folder, except markers, in order of their paths."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MARKER_FILE)


def check_file(path: Path) -> None:
    """Reject a file that exists and that dithc did not write.

    A file of dithc is empty, has a seal, or stands in the marker of its folder.

    Raises:
        UserError: the file is the user's.
    """
    if path.is_file() and path.stat().st_size and not _has_seal(path):
        OutputFolder.around(path)._free([path])


def write(path: Path, content: str | bytes) -> None:
    """Write a small file atomically and list it in a marker in its folder.

    Raises:
        UserError: a file of this name exists and dithc did not write it.
    """
    OutputFolder.around(path).plan([path])
    atomic_write(path, content)


def make_scratch(folder: Path) -> None:
    """Create a folder whose content dithc may delete, whatever it is.

    Raises:
        FileExistsError: the folder exists and is no such folder.
    """
    if is_scratch(folder):
        return
    folder.mkdir(parents=True)
    mark_scratch(folder)


def mark_scratch(folder: Path) -> None:
    """Declare that dithc may delete the content of a folder, whatever it is."""
    (folder / MARKER_FILE).write_text(seal({SCRATCH: True, "files": {}}))


def is_scratch(folder: Path) -> bool:
    """Return whether dithc may delete the content of a folder."""
    return bool((OutputFolder(folder)._read() or {}).get(SCRATCH))


def remove(folder: Path, *, reason: str | None = None, manifest: str = "manifest.json") -> None:
    """Delete a scratch folder or a folder inside one; of any other folder, the files that its marker or manifest lists.

    Args:
        folder: folder to delete; it may be missing.
        reason: logged, if it is given.
        manifest: name of the manifest in the folder.
    """
    if folder.is_symlink() or not folder.is_dir():
        return
    if reason:
        log.info(f"removing {folder}: {reason}")
    if any(map(is_scratch, [folder, *folder.parents[:MARKER_DEPTH]])):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        OutputFolder(folder, manifest=manifest).delete()
    if folder.exists():
        log.warning(f"{folder} is kept: it holds files that dithc did not write")


def _has_seal(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 256))
        return has_seal(file.read().decode(errors="replace"))


def _is_owned(path: Path, name: str, owned: dict[str, int | None]) -> bool:
    """Return whether a file is listed. A smaller size than listed is damage, a larger one is another file."""
    if name not in owned:
        return False
    try:
        found = path.lstat()
    except OSError:
        return False
    size = owned[name]
    return stat.S_ISREG(found.st_mode) and (size is None or found.st_size <= size)


def _is_of_system(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in SYSTEM_FILES)
