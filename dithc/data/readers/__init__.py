"""Readers: one module per kind of source, each giving scenes on one grid or the reason why a file is not used.

What: `read_scenes` lists a source's files and reads them one by one, in sorted order.
Why: every kind of product lies in its own way; what is known of a kind stands in one file.
Invariants: nothing is guessed (bands, units, layout and offset come from metadata or from the configuration); a file that
is unreadable or contradicts its declaration becomes a `Rejection` with what, got, expected and remedy; a folder without any
file of the kind is an error at once.
How to change it: a new kind is a class with `paths`, `classes` and `read(path) -> Scene` (raising `Refused`) and its case
in `_reader`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from dithc.config import datasets
from dithc.data.readers.arrays import Sentinel2ArrayReader
from dithc.data.readers.gaofen2 import Gaofen2Reader
from dithc.data.readers.geotiff import GeoTiffReader
from dithc.data.readers.image_folder import ImageFolderReader
from dithc.data.readers.listing import check_name, scene_id
from dithc.data.readers.safe import SafeReader
from dithc.data.readers.stac import StacReader
from dithc.data.scene import Reason, Refused, Rejection, Scene
from dithc.data.table import Kind
from dithc.data.unpacking import NoRoom
from dithc.log import UserError

__all__ = ["Scenes", "read_scenes"]


class Reader(Protocol):
    """What a kind's reader offers."""

    paths: list[Path]
    classes: list[str]

    def read(self, path: Path) -> Scene:
        """Reads one of `paths`; raises Refused, UserError or OSError where it must not be used."""


class Scenes:
    """The scenes of a source: its length is the number of files; iterating reads them, one at a time.

    Attributes:
        classes: names of the classes that labels index.
        columns: facts of these scenes alone, for their table, beside those that all have.
    """

    def __init__(self, reader: Reader, folder: Path) -> None:
        self._reader, self._folder = reader, folder
        self.classes = reader.classes
        self.columns: dict[str, Kind] = getattr(reader, "columns", {})

    def __len__(self) -> int:
        return len(self._reader.paths)

    def __iter__(self) -> Iterator[Scene | Rejection]:
        for path in self._reader.paths:
            yield self._one(path)

    def _one(self, path: Path) -> Scene | Rejection:
        try:
            check_name(path, self._folder)
            return self._reader.read(path)
        except NoRoom:
            raise
        except Refused as error:
            refused = error
        except UserError as error:
            refused = _retold(error)
        except MemoryError as error:
            refused = Refused(
                Reason.READ_ERROR,
                "there is not enough memory for the file",
                got=str(error) or "an allocation that failed",
                expected="memory for its pixels and what is computed of them",
                remedy="cut it into smaller scenes, or stage it where there is more memory",
            )
        except (OSError, ValueError, EOFError) as error:
            refused = Refused(
                Reason.READ_ERROR,
                "the file cannot be read",
                got=str(error) or type(error).__name__,
                expected="a whole file of this kind",
                remedy="copy or download it again, or take it out of the folder",
            )
        return Rejection(scene_id=scene_id(path, self._folder), path=path, refused=refused)


def read_scenes(source: datasets.Source, folder: Path) -> Scenes:
    """Lists the scene files of a source under `folder` (a folder or one file) and gives them to be read in sorted order.

    Raises:
        UserError: the path does not exist, or nothing under it is of this kind.
    """
    return Scenes(_reader(source, folder), folder)


def _reader(source: datasets.Source, folder: Path) -> Reader:
    match source:
        case datasets.Sentinel2():
            return SafeReader(source, folder)
        case datasets.Sentinel2Stac():
            return StacReader(source, folder)
        case datasets.Sentinel2Array():
            return Sentinel2ArrayReader(source, folder)
        case datasets.Gaofen2():
            return Gaofen2Reader(source, folder)
        case datasets.GeoTiff():
            return GeoTiffReader(source, folder)
        case datasets.ImageFolder():
            return ImageFolderReader(source, folder)


def _retold(error: UserError) -> Refused:
    """A user error of another module (what, then lines `got:`, `expected:`, `remedy:`) as a refusal to read."""
    what, *lines = str(error).splitlines()
    said = {key.strip(): text.strip() for key, _, text in (line.partition(":") for line in lines)}
    return Refused(
        Reason.READ_ERROR,
        what,
        got=said.get("got", ""),
        expected=said.get("expected", "a whole file of this kind"),
        remedy=said.get("remedy", "copy the file again from its source"),
    )
