"""Readers of scenes, one module per `kind` of source.

Contents: `read_scenes` lists the files of a source in sorted order. `SceneSource` reads them one at a time, onto one grid,
or returns the reason for a rejection.

Invariants: bands, units, layout and offset come from metadata (of a STAC item also by its processing baseline) or from
the configuration. A file that is unreadable or contradicts its declaration becomes a `Rejection` with what, got,
expected and fix. A folder without files of the kind is an error.

`layers` appends bands of other rasters or fields to the scenes of any source.

Extending: a new kind is a class with `paths`, `classes` and `read(path) -> Scene` (raising `SceneRejectedError`) and its row in
`READERS`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dithc.config import datasets
from dithc.core.logging import UserError
from dithc.data.archives import DiskFullError, remove_stale_folders
from dithc.data.npy_writer import NO_SPACE
from dithc.data.parquet import Kind
from dithc.data.readers.classes import check_splits
from dithc.data.readers.listing import Listing, check_name, scene_id, state_of
from dithc.data.scene import PixelBuffer, Reason, Rejection, Scene, SceneRejectedError

if TYPE_CHECKING:
    from dithc.data.readers.layers import Layers

__all__ = ["SceneSource", "read_scenes", "scene_id", "state_of"]

SCENE_MEMORY_BYTES = 256 << 20
EXPANSION = 12
"""Memory per byte of a file: content may be compressed to a third, and needs four bytes per number in memory."""


class Reader(Protocol):
    """Interface of readers, which must be picklable because several processes read with copies.

    Optional members:
    - `columns`: additional properties of its scenes for the table.
    - `size(path)`: bytes that are read, if not the entire files.
    - `memory_bytes`: most memory for reading one scene.
    - `scaling`: scale and offset of the stored numbers, if all files determine them.
    - `canvas`: set before each scene, as the allocator of large scenes.
    - `checks_splits`: True if the reader itself detects files of several splits.
    """

    classes: list[str]
    listing: Listing

    def inputs(self, path: Path) -> list[Path]:
        """Return all files that affect the scene of a path."""

    @property
    def paths(self) -> Sequence[Path]:
        """Paths of the scenes in reading order."""

    def read(self, path: Path) -> Scene:
        """Read one of `paths`; raise SceneRejectedError, UserError or OSError if it must not be used."""


READERS: dict[type, tuple[str, str]] = {
    datasets.Sentinel2Source: ("sentinel2", "SafeReader"),
    datasets.Sentinel2StacSource: ("sentinel2", "StacReader"),
    datasets.Sentinel2ArraySource: ("sentinel2", "Sentinel2ArrayReader"),
    datasets.Gaofen2Source: ("gaofen2", "Gaofen2Reader"),
    datasets.GeoTiffSource: ("geotiff", "GeoTiffReader"),
    datasets.NetcdfSource: ("netcdf", "NetcdfReader"),
    datasets.ImageFolderSource: ("image_folder", "ImageFolderReader"),
    datasets.PluginSource: ("plugin", "InstalledReader"),
}
"""Module and name of each reader. Only the reader of the source is imported, because each needs other libraries."""


class SceneSource:
    """Scenes of a source: the length is the number of files, and iteration reads them one at a time."""

    def __init__(self, reader: Reader, folder: Path, layers: "Layers | None") -> None:
        self._reader, self.folder, self._layers = reader, folder, layers
        self.classes = reader.classes
        self.columns: dict[str, Kind] = getattr(reader, "columns", {})
        # Scale and offset of the stored numbers, and files, that every scene depends on.
        self.shared = [getattr(reader, "scaling", None), layers and (layers.scaling, layers.state())]

    def __len__(self) -> int:
        return len(self._reader.paths)

    def __iter__(self) -> Iterator[Scene | Rejection]:
        for position in range(len(self)):
            yield self.read(position, PixelBuffer())

    def path(self, position: int) -> Path:
        return self._reader.paths[position]

    def scene_id(self, position: int) -> str:
        return scene_id(self.path(position), self.folder)

    def inspect(self, position: int) -> tuple[str | None, int]:
        """Return the state of a scene's files without reading them (None if unknown), and the bytes that are read."""
        path = self.path(position)
        try:
            files = self._reader.inputs(path)
        except (SceneRejectedError, UserError, OSError):  # reported by `read`
            return None, 0
        self._reader.listing.read(files)
        state, size = state_of(files, relative_to=path.parent)
        if state is not None and hasattr(self._reader, "size"):
            size = self._reader.size(path)
        return state, size

    def left_out(self) -> dict[str, int]:
        """Log the files that no reader opens, and return their number by suffix; after `inspect` of every scene."""
        if not getattr(self._reader, "checks_splits", False):
            check_splits(self.folder, self._reader.paths, single=True)
        if self._layers:
            self._reader.listing.read(self._layers.files)
            self._layers.report()
        return self._reader.listing.report()

    def memory_bytes(self, largest: int) -> int:
        """Return the most memory for reading one scene, if the largest scene has so many bytes of files."""
        declared: int | None = getattr(self._reader, "memory_bytes", None)
        added = self._layers.memory_bytes if self._layers else 0
        return (declared or max(SCENE_MEMORY_BYTES, EXPANSION * largest)) + added

    def read(self, position: int, canvas: PixelBuffer) -> Scene | Rejection:
        """Read a scene by its position; the reader may allocate a large scene on the canvas."""
        wide = self._layers.canvas(canvas) if self._layers else None
        if hasattr(self._reader, "canvas"):
            self._reader.canvas = wide or canvas
        path = self.path(position)
        try:
            check_name(path, self.folder)
            scene = self._reader.read(path)
            return scene if self._layers is None or wide is None else self._layers.append(scene, wide)
        except DiskFullError:
            raise
        except SceneRejectedError as error:
            cause = error
        except UserError as error:
            cause = _convert_error(error)
        except MemoryError as error:
            cause = SceneRejectedError(
                Reason.READ_ERROR,
                "the memory is too small for the file",
                got=str(error) or "an allocation that failed",
                expected="memory for its pixels and intermediate results",
                fix="cut it into smaller scenes, or stage it on a machine with more memory",
            )
        except (OSError, ValueError, EOFError) as error:
            if isinstance(error, OSError) and error.errno in NO_SPACE:  # the canvas failed, not the scene
                raise
            cause = SceneRejectedError(
                Reason.READ_ERROR,
                "the file cannot be read",
                got=str(error) or type(error).__name__,
                expected="a complete file of this kind",
                fix="replace the file if it is damaged; otherwise convert it, or list it in `source.exclude`",
            )
        return Rejection(scene_id=scene_id(path, self.folder), path=path, error=cause)


def read_scenes(
    source: datasets.Source, folder: Path, layers: Mapping[str, datasets.Layer] | None = None
) -> SceneSource:
    """List the scene files of a source under `folder` (a folder or one file), sorted, and measure `layers`.

    Raises UserError without scenes, or if a file of a layer cannot be used.
    """
    remove_stale_folders()
    module, name = next(reader for kind, reader in READERS.items() if isinstance(source, kind))
    reader: Callable[[Any, Path], Reader] = getattr(import_module(f"{__name__}.{module}"), name)
    if not layers:
        return SceneSource(reader(source, folder), folder, None)
    from dithc.data.readers.layers import Layers  # imports the libraries of fields

    ends = getattr(source, "suffixes", None) or [""]
    return SceneSource(reader(source, folder), folder, Layers(layers, suffix=ends[0]))


def _convert_error(error: UserError) -> SceneRejectedError:
    """Convert a user error of another module (title, then `got:`, `expected:`, `fix:`) to a rejection."""
    title, *lines = str(error).splitlines()
    fields = {key.strip(): text.strip() for key, _, text in (line.partition(":") for line in lines)}
    return SceneRejectedError(
        Reason.READ_ERROR,
        title,
        got=fields.get("got", ""),
        expected=fields.get("expected", "a complete file of this kind"),
        fix=fields.get("fix", "copy the file again from its source"),
    )
