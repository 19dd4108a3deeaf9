"""Scenes as stored: rows of the table, and records next to stacks, which later runs reuse instead of reading the files.

A line (`CachedScene.line`) stores the position of a scene's bytes and their hash. It is valid if the settings and the
observed state of the scene's files are unchanged. The bytes are valid if their hash matches. No flush or completeness
is required: a later run uses the intact scenes of a killed run, and reads damaged scenes from their files.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from dithc.core.artifacts import outputs
from dithc.core.integrity import dump_checksummed_line, load_checksummed_lines
from dithc.core.logging import UserError, get_logger
from dithc.data.file_checks import printable
from dithc.data.npy_writer import NO_SPACE
from dithc.data.parquet import Kind
from dithc.data.readers import scene_id
from dithc.data.scene import Array, Mask, Reason, Rejection, Scene, SceneRejectedError
from dithc.data.scenes.stacks import FileCanvas, StackLocation, Stacks, array_bytes, fills_a_stack

RECORD_FILE, EARLIER = ".scenes.jsonl", "before-"
BLOCK_BYTES = 1 << 22
COLUMNS: dict[str, Kind] = {
    **dict[str, Kind].fromkeys(("scene_id", "status", "reason", "problem", "got", "expected", "fix"), "text"),
    **dict[str, Kind].fromkeys(("stack", "row"), "int"),
    **dict[str, Kind].fromkeys(("path", "sha256"), "text"),
    **dict[str, Kind].fromkeys(("label", "height", "width"), "int"),
    "dtype": "text",
    "gsd_m": "float",
    "crs": "text",
    "crs_epsg": "int",
    "transform": "floats",
    "valid_frac": "float",
    **dict[str, Kind].fromkeys(("product_id", "satellite", "sensor", "sensing_time", "baseline", "level"), "text"),
    "offset_source": "text",
    "offsets": "floats",
    "notes": "text",
}
log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class CachedScene:
    """An accepted scene, ready to be stacked."""

    scene_id: str
    path: Path
    row: dict[str, Any]  # of the table, without its position in a stack
    kind: dict[str, Any]  # bands, dtype, units, scale, offset, gsd_m: the same for all scenes of a dataset
    notes: Sequence[str]
    pixels: Array | Path  # (C, H, W), or the file of a stack that contains only this scene
    mask: Array | None  # (H, W), None if every pixel is valid
    shape: tuple[int, ...]
    sha256: str  # of pixels and mask

    @classmethod
    def from_scene(cls, scene: Scene, folder: Path, canvas: FileCanvas) -> Self:
        """Build from a scene that was just read; pixels on the canvas stay in its file."""
        values, mask, dtype = scene.pixels, scene.mask, str(scene.pixels.dtype)
        kind = {name: getattr(scene, name) for name in ("units", "scale", "offset")}
        kind |= {"gsd_m": scene.place.gsd_m, "bands": scene.bands, "dtype": dtype}
        kind |= {"file_dtype": scene.properties.get("dtype", dtype)}
        canvas.release()
        file_path = canvas.path
        pixels: Array | Path = np.ascontiguousarray(values) if file_path is None else file_path
        stored = None if bool((mask == Mask.VALID).all()) else np.ascontiguousarray(mask)
        return cls(
            scene_id=scene.scene_id,
            path=scene.path,
            row=_row(scene, folder),
            kind=kind,
            notes=scene.notes,
            pixels=pixels,
            mask=stored,
            shape=values.shape,
            sha256=_digest(pixels, stored, offset=0 if file_path is None else file_path.stat().st_size - values.nbytes),
        )

    def line(self, location: StackLocation, state: str | None) -> dict[str, Any]:
        """Return the recorded line: all fields, with file positions instead of arrays."""
        row = {name: value for name, value in self.row.items() if value is not None}
        common = {"id": self.scene_id, "row": row, "kind": self.kind, "notes": list(self.notes), "sha256": self.sha256}
        return {**common, "state": state, "shape": self.shape, "pixels": location.pixels, "mask": location.mask}


class SceneCacheWriter:
    """Stacks in a folder, with one recorded line per scene."""

    def __init__(self, folder: Path, *, settings: str) -> None:
        self.folder, self.stacks = folder, Stacks(folder)
        self._file = (folder / RECORD_FILE).open("x", buffering=1)  # line-buffered
        self._file.write(dump_checksummed_line({"settings": settings}))

    def add(self, found: CachedScene, state: str | None) -> StackLocation:
        location = self.stacks.append(found.pixels, found.mask, shape=found.shape, dtype=found.kind["dtype"])
        self._file.write(dump_checksummed_line(found.line(location, state)))
        return location

    def reject(self, rejection: Rejection, state: str | None) -> None:
        fields = {name: str(getattr(rejection.error, name)) for name in ("reason", "problem", "got", "expected", "fix")}
        self._file.write(dump_checksummed_line({"id": rejection.scene_id, "state": state, "error": fields}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self.stacks.__exit__(kind, *details)
        try:
            self._file.close()
        except OSError:  # a second error (the disk is full) must not hide the first
            if kind is None:
                raise


class SceneCache:
    """A folder written by `SceneCacheWriter`, complete or not; scenes are taken out one at a time.

    Scenes read with other `settings` are ignored. If this run wrote the folder (`is_own`), its bytes are not hashed, and its
    rejections are reused.
    """

    def __init__(self, folder: Path, *, settings: str, is_own: bool = False) -> None:
        self.folder, self.is_own = folder, is_own
        self._lines: dict[str, tuple[str | None, int]] = {}  # state, and offset of the line: scenes may be millions
        with suppress(FileNotFoundError):
            self._index(settings)

    def _index(self, settings: str) -> None:
        with (self.folder / RECORD_FILE).open("rb") as file:
            if (_parse_line(file.readline()) or {}).get("settings") != settings:
                return
            offset = file.tell()
            for text in file:
                line = _parse_line(text) or {}
                if "id" in line and (self.is_own or "error" not in line):
                    self._lines[line["id"]] = line["state"], offset
                offset += len(text)

    def __len__(self) -> int:
        return len(self._lines)

    def state(self, scene_id: str) -> str | None:
        """Return the state of the scene's files when it was read; None if missing or without observable state."""
        return self._lines.get(scene_id, (None, 0))[0]

    def take(self, scene_id: str, path: Path) -> CachedScene | Rejection | None:
        """Take a scene out; `path` is its current file. Return None, with a warning, if the record is damaged."""
        _, offset = self._lines.pop(scene_id)
        try:
            with (self.folder / RECORD_FILE).open("rb") as file:
                file.seek(offset)
                line = _parse_line(file.readline())
            if line is None or line["id"] != scene_id:
                raise OSError("its line was altered")
            if fields := line.get("error"):
                cause = SceneRejectedError(Reason(fields.pop("reason")), fields.pop("problem"), **fields)
                return Rejection(scene_id=scene_id, path=path, error=cause)
            return self._load(line, path)
        except OSError as error:
            log.warning(f"reading {scene_id} again: its copy in {self.folder} is damaged ({error})")
            return None

    def _load(self, line: dict[str, Any], path: Path) -> CachedScene:
        shape, dtype = tuple(line["shape"]), line["kind"]["dtype"]
        name, offset = line["pixels"]
        pixels: Array | Path = self.folder / name
        if not fills_a_stack(shape, dtype):
            pixels = _read_array(self.folder / name, offset, shape, dtype)
        elif (self.folder / name).stat().st_size != offset + array_bytes(shape, dtype):
            raise OSError(f"{name} does not have the length that was written")
        mask = line["mask"] and _read_array(self.folder / line["mask"][0], line["mask"][1], shape[1:], "uint8")
        if mask is not None and (mask == Mask.VALID).all():  # another scene of its stack has invalid pixels
            mask = None
        if not self.is_own and _digest(pixels, mask, offset=offset) != line["sha256"]:
            raise OSError("its bytes were altered")
        common = {name: line[name] for name in ("row", "kind", "notes", "sha256")}
        return CachedScene(scene_id=line["id"], path=path, pixels=pixels, mask=mask, shape=shape, **common)


@contextmanager
def partial_folder(out: Path, *, settings: str) -> Iterator[tuple[Path, list[SceneCache]]]:
    """Yield a folder next to `out` for new scenes, with reusable results of earlier runs from it and from `out`.

    The folder is removed on success and stays after an interruption or error. `settings` is a digest of all settings
    of scenes.
    """
    folder = out.resolve()
    partial = folder.with_name(f".{folder.name}.partial")
    outputs.make_scratch(partial)
    try:
        if caches := _reusable(partial, settings=settings):
            log.info(f"{sum(map(len, caches))} scenes of an interrupted run are reused if their files are unchanged")
        yield partial, [*caches, SceneCache(folder, settings=settings)]
    except BaseException as error:
        is_full = isinstance(error, UserError) and getattr(error.__cause__, "errno", None) in NO_SPACE
        if not is_full and _reusable(partial, settings=settings):
            log.info(f"kept the scenes read so far in {partial} for the next run")
        else:
            outputs.remove(partial)
        raise
    outputs.remove(partial)


def _reusable(partial: Path, *, settings: str) -> list[SceneCache]:
    """Return results of earlier runs; remove folders that are empty or have other settings."""
    folders = [path for path in partial.iterdir() if path.is_dir()]
    for number, folder in enumerate(sorted(folders)):
        if not folder.name.startswith(EARLIER):
            folder.rename(partial / f"{EARLIER}{folder.stat().st_mtime_ns}-{number}")
    caches = [SceneCache(path, settings=settings) for path in sorted(partial.iterdir()) if path.is_dir()]
    for cache in caches:
        if not cache:
            outputs.remove(cache.folder)
    return [cache for cache in caches if cache]


def _parse_line(text: bytes) -> dict[str, Any] | None:
    lines, _ = load_checksummed_lines(text.decode(errors="replace"))
    return lines[0] if lines else None


def _read_array(path: Path, offset: int, shape: tuple[int, ...], dtype: str) -> Array:
    count = int(np.prod(shape))
    array = np.fromfile(path, dtype=dtype, count=count, offset=offset)
    if array.size != count:
        raise OSError(f"{path.name} is truncated")
    return array.reshape(shape)


def _digest(pixels: Array | Path, mask: Array | None, *, offset: int) -> str:
    digest = hashlib.sha256()
    if isinstance(pixels, Path):
        with pixels.open("rb") as file:
            file.seek(offset)
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
    else:
        digest.update(pixels.data)
    if mask is not None:
        digest.update(mask.data)
    return digest.hexdigest()


def _row(scene: Scene, folder: Path) -> dict[str, Any]:
    georeference = scene.place
    return {
        "scene_id": scene.scene_id,
        "status": "accepted",
        "path": scene_id(scene.path, folder),
        "sha256": scene.sha256,
        "label": scene.label,
        "height": scene.mask.shape[0],
        "width": scene.mask.shape[1],
        "gsd_m": georeference.gsd_m,
        "crs": georeference.crs,
        "crs_epsg": georeference.epsg,
        "transform": None if georeference.transform is None else list(georeference.transform),
        "valid_frac": float((scene.mask != 0).mean()),
        "notes": " ".join(scene.notes),
        **scene.properties,
    }


def rejected_row(rejection: Rejection, folder: Path) -> dict[str, Any]:
    """Return the row of a rejected scene; like all rows, it does not contain the location of the source folder."""
    error = rejection.error
    path = scene_id(rejection.path, folder)
    fields = {
        name: printable(getattr(error, name).replace(str(rejection.path), path).replace(f"{folder}{os.sep}", ""))
        for name in ("problem", "got", "expected", "fix")
    }
    return {"scene_id": rejection.scene_id, "status": "rejected", "path": path, "reason": str(error.reason), **fields}
