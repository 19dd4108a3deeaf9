"""Output folder of a stage: checked, claimed, written in place or replaced as a unit."""

import errno
import glob
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from dithc.core.artifacts import atomic_files
from dithc.core.artifacts.atomic_files import flush, is_stream, unused_name
from dithc.core.artifacts.outputs.listing import MARKER_DEPTH, TEMPORARY, FileList, files_of
from dithc.core.artifacts.outputs.scratch import make_scratch, remove
from dithc.core.integrity import has_checksum
from dithc.core.logging import UserError, get_logger, user_error

NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
SHOWN = 3
LISTS = ("manifest.json", "report.json")  # they list files, also in copies of results without hidden files
log = get_logger(__name__)


class OutputFolder(FileList):
    def check(self, *, stage: str | None = None, name: str | None = None) -> dict[str, int | None]:
        """Return the size of each file that may be replaced, by relative path; None for an unknown size.

        UserError for another owner (None accepts all), or a file that neither marker nor manifest lists.
        """
        self.check_owner(stage=stage, name=name)
        owned = self._owned()
        if unknown := list(islice(self.unknown(owned), SHOWN)):
            raise user_error(
                f"output folder {self.folder} holds files that dithc did not write",
                got=", ".join(unknown),
                expected="a new or empty folder, or an earlier output of the same stage without other files",
                fix="choose another `--out`, move these files, or delete the folder if it is an incomplete copy of results",
            )
        return owned

    def check_owner(self, *, stage: str | None, name: str | None) -> None:
        """Raise UserError if marker or manifest of the folder contain another stage or name."""
        owner = self._owner()
        for got, expected in zip(owner, (stage, name), strict=True):
            if None not in (got, expected) and got != expected:
                raise user_error(
                    f"output folder {self.folder} holds the results of another stage",
                    got=" ".join(filter(None, owner)),
                    expected=f"{stage} {name}",
                    fix="choose another folder with `--out`, or delete this one",
                )

    def claim(self, *, stage: str, name: str) -> None:
        """Check the folder, create it and write its marker; raises UserError as `check`.

        `claim` and `plan` delete temporary files of killed processes.
        """
        owned = self.check(stage=stage, name=name)
        self._remove_temporary(owned)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write(dict.fromkeys([*self._present(owned), *self._manifests()]), stage=stage, name=name)

    def plan(self, paths: Iterable[Path]) -> None:
        """Add files to the marker of the nearest claimed folder above (else of this folder) before they are written.

        UserError if a file with this name exists and dithc did not write it.
        """
        owner, listed = self._claimed(), self._claimed()._listed()
        names = owner._check_paths(paths)
        owner._remove_temporary(names)
        if any(listed.get(name, 0) is not None for name in names):
            owner._write(listed | dict.fromkeys(names))

    def prune(self, keep: Iterable[Path], *, prefix: str = "") -> None:
        """Delete files of earlier executions with a prefix, except the manifest and `keep`."""
        owner = self._claimed()
        start = owner._relative(self.folder / "_").removesuffix("_") + prefix
        paths = {owner._relative(path) for path in keep} | {*owner._manifests()}
        owner._delete(name for name in owner._present(owner._owned()) if name.startswith(start) and name not in paths)

    def finish(self, *, stage: str | None = None, name: str | None = None) -> None:
        """Record the sizes of all listed files, after the last of them was written."""
        names = [*self._present(self._owned()), *self._manifests()]
        written = [name for name in names if (self.folder / name).is_file()]
        sizes: dict[str, int | None] = {name: (self.folder / name).stat().st_size for name in written}
        owner = {"stage": stage, "name": name} if stage else {}
        self._write(sizes, **owner)

    @contextmanager
    def replaced(self, *, stage: str | None = None, name: str | None = None) -> Iterator[Path]:
        """Yield a temporary folder that replaces this folder if the body succeeds; errors as in `check`, or a full disk.

        After an error, this folder is unchanged and no temporary file remains. Files that appear in it meanwhile are
        moved into the new folder.
        """
        self._recover()
        self.check(stage=stage, name=name)
        try:
            temporary = unused_name(self.folder)
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
            cause = "a file reached the size limit" if error.errno == errno.EFBIG else "the disk is full"
            raise user_error(
                f"writing {self.folder} failed: {cause}",
                got=error,
                expected="sufficient space; the earlier content is unchanged",
                fix="free space (or raise the quota), or set `results` to a larger file system; then start again",
            ) from error

    def _remove_temporary(self, names: Collection[str]) -> None:
        for folder in {(self.folder / name).parent for name in names}:
            for path in [path for path in folder.glob(".*.tmp.*") if self._is_temporary(path, names)]:
                log.info(f"removing {path}: its writer was killed")
                path.unlink()

    def _check_paths(self, paths: Iterable[Path]) -> list[str]:
        """Return the relative paths of files that may be written; raises UserError if an unlisted file exists."""
        owned, names = self._owned(), []
        for path in paths:
            names.append(self._relative(path))
            if os.path.lexists(path) and not self._is_owned(names[-1], owned) and not _is_empty(path):
                raise self._ownership_error(path)
        return names

    def _ownership_error(self, path: Path) -> UserError:
        return user_error(
            f"{path} exists and dithc did not write it",
            got=f"a file that {self.folder / self.marker} does not list",
            expected="no file of this name",
            fix="name another file, or move this one elsewhere",
        )

    def _install(self, temporary: Path, *, stage: str | None, name: str | None) -> None:
        """Exchange this folder and a complete temporary folder."""
        owner = self._owner()
        new = OutputFolder(temporary, manifest=self.manifest)
        new._write(dict.fromkeys(self._manifests()), stage=stage or owner[0], name=name or owner[1])
        for part in temporary.rglob("*"):
            flush(part)
        new.move(self.folder)

    def move(self, target: Path) -> None:
        """Rename a complete temporary folder to its final name, then delete the earlier folder with this name.

        The earlier folder is intact after an OSError.
        """
        sizes: dict[str, int | None] = {self._relative(path): path.stat().st_size for path in files_of(self.folder)}
        self._write(self._listed() | sizes, scratch=None)
        flush(self.folder)
        earlier = self.folder.with_name(f"{self.folder.name}.replaced")
        if target.is_dir():
            os.rename(target, earlier)
        try:
            os.rename(self.folder, target)
        except BaseException:
            if earlier.is_dir():
                os.rename(earlier, target)
            raise
        flush(target.parent)
        if earlier.is_dir():
            OutputFolder(target, manifest=self.manifest)._retire(earlier)

    def _retire(self, folder: Path) -> None:
        """Delete an earlier version of this folder; move files of the user into the current version."""
        earlier = OutputFolder(folder, manifest=self.manifest)
        earlier._remove_temporary(earlier._owned())
        earlier.delete()
        for path in sorted(folder.rglob("*"), reverse=True) if folder.is_dir() else []:
            target = self.folder / path.relative_to(folder)
            if path.is_dir() and not path.is_symlink():
                with suppress(OSError):
                    target.mkdir(parents=True, exist_ok=True)
                    path.rmdir()
            elif not os.path.lexists(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(path, target)
        try:
            if folder.is_dir():
                folder.rmdir()
        except OSError:
            log.warning(f"{folder} contains files of the user that also exist in {self.folder}: move them elsewhere")

    def _recover(self) -> None:
        """Undo or complete the replacement of a killed process."""
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


def owns(path: Path) -> bool:
    """Return True if dithc wrote a file: a marker or manifest lists it, or it has a checksum, or it is empty."""
    if _is_empty(path):
        return True
    parents = path.absolute().parents[: MARKER_DEPTH + 1]
    folders = [OutputFolder(folder, manifest=name) for folder in parents for name in LISTS]
    is_listed = any(output._is_owned(output._relative(path), output._owned()) for output in folders)
    return is_listed or (path.is_file() and _has_seal(path))


def check_file(path: Path, *, stage: str | None = None, name: str | None = None) -> None:
    """Reject an existing output file of the user or of another stage by a UserError.

    The marker of a single file must list it. The manifest of a run, which shares its folder with other manifests, must
    have a checksum, and the same stage and name.
    """
    if is_stream(path) or not path.exists():
        return
    if stage is not None and _has_seal(path):
        OutputFolder.of(path).check_owner(stage=stage, name=name)
    else:
        OutputFolder.around(path)._check_paths([path])


@contextmanager
def replacing(path: Path, *, of: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path for a single file, such as the file of `--json`; streams are written directly.

    The marker lists the file with its size before the file gets its name. With `of`, the marker of that file is used.
    UserError if a file with this name exists, or appears meanwhile, and dithc did not write it.
    """
    if is_stream(path):
        with atomic_files.atomic_replace(path) as temporary:
            yield temporary
        return
    output = OutputFolder.around(of or path)
    output._check_paths([path])

    def enlist(temporary: Path) -> None:
        (name,) = output._check_paths([path])
        output._write(output._listed() | {name: temporary.stat().st_size})

    try:
        with atomic_files.atomic_replace(path, is_new=not os.path.lexists(path), before=enlist) as temporary:
            yield temporary
    except FileExistsError as error:
        if not os.path.lexists(path):  # a folder of the path is a file
            raise
        raise output._ownership_error(path) from error


def write(path: Path, content: str | bytes, *, of: Path | None = None) -> None:
    """Write a small single file; see `replacing`."""
    with replacing(path, of=of) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def _is_empty(path: Path) -> bool:
    return path.is_file() and not path.stat().st_size


def _has_seal(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 256))
        return has_checksum(file.read().decode(errors="replace"))
