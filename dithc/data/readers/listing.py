"""Which files of a source's folder are scenes, in an order that does not depend on the file system."""

import os
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import overload

from dithc.data.files import printable
from dithc.log import UserError, logger, problem

SHOWN = 5
log = logger(__name__)


class Paths(Sequence[Path]):
    """Many paths as one text: a million take 60 MB, in every process that reads them, and not 600."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._text, self._ends = bytearray(), array("q", [0])
        for path in paths:
            self._text += os.fsencode(path)
            self._ends.append(len(self._text))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, place: int) -> Path: ...
    @overload
    def __getitem__(self, place: slice) -> list[Path]: ...
    def __getitem__(self, place: int | slice) -> Path | list[Path]:
        chosen = range(len(self))[place]
        if isinstance(chosen, range):
            return [self[one] for one in chosen]
        return Path(os.fsdecode(bytes(self._text[self._ends[chosen] : self._ends[chosen + 1]])))


def scene_id(path: Path, folder: Path) -> str:
    """The path of a scene below the source's folder, with `/`; its name if the source is one file."""
    return printable(path.name if path == folder else path.relative_to(folder).as_posix())


def list_files(
    folder: Path,
    *,
    suffixes: Collection[str],
    wanted: str,
    remedy: str,
    use: Callable[[Path], bool] = lambda path: True,
) -> list[Path]:
    """All files at or under `folder` with one of the suffixes (any case) that `use` accepts, sorted; hidden ones are not.

    What is no folder counts as a file: links that lead nowhere, pipes and devices are the reader's to refuse, with a row.

    Raises:
        UserError: `folder` does not exist or holds no such file.
        OSError: a folder in it cannot be read.
    """
    exists(folder, wanted=wanted)
    inside = (place / name for place, _, names in walk(folder) for name in names)
    candidates = [folder] if folder.is_file() else sorted(inside)
    found = [path for path in candidates if path.suffix.lower() in suffixes and not _hidden(path, folder) and use(path)]
    if not found:
        raise nothing_found(folder, wanted=wanted, remedy=remedy)
    return found


def walk(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """`os.walk` that misses nothing in silence: hidden folders are not entered.

    Links to folders are not followed, as they may lead anywhere, and are said; those that the caller takes out are its own.

    Raises:
        OSError: a folder cannot be read, so that it is unknown what scenes it holds.
    """

    def stop(error: OSError) -> None:
        raise error

    links = list[Path]()
    for place, folders, names in os.walk(folder, onerror=stop):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield Path(place), folders, names
        links += [Path(place, name) for name in folders if Path(place, name).is_symlink()]
    if links:
        log.warning(
            f"{len(links)} links to folders in {folder} are not followed, such as {links[0]}: what is there is no scene; link "
            "the files, or name the folder itself in `source.path`"
        )


def check_name(path: Path, folder: Path) -> None:
    """Refuses a file whose name tables, JSON and logs cannot hold.

    Raises:
        UserError: its path below the source's folder is not UTF-8.
    """
    named = path.name if path == folder else path.relative_to(folder).as_posix()
    if printable(named) != named:
        raise problem(
            "the name of the file is not UTF-8",
            got=printable(named),
            expected="a name that every program reads alike",
            remedy="rename it (convmv -f latin1 -t utf-8 --notest), or take it out of the folder",
        )


def exists(folder: Path, *, wanted: str) -> None:
    """Raises a UserError where `folder` does not exist."""
    if not folder.exists():
        raise problem(
            f"the data at {folder} (`source.path`) is not there",
            got="no such file or folder",
            expected=wanted,
            remedy="put your files there (a link will do) or correct `source.path`; it is relative to the working folder",
        )


def nothing_found(folder: Path, *, wanted: str, remedy: str) -> UserError:
    """The error for a folder that holds nothing of the kind; names what it does hold."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else [folder.name]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return problem(
        f"no scene found in {folder}",
        got=f"{', '.join(names[:SHOWN])}{more}" if names else "an empty folder",
        expected=wanted,
        remedy=remedy,
    )


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.parts[len(folder.parts) :])
