"""The stage `scenes`: every file of a source read once, checked, and stacked with scenes of its shape; a row for each."""

import json
import os
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dithc.config import datasets
from dithc.data.files import printable
from dithc.data.npy import SHARD_BYTES, NpyWriter, whole_folder
from dithc.data.readers import Scenes, read_scenes
from dithc.data.readers.listing import scene_id
from dithc.data.scene import Reason, Refused, Rejection, Scene
from dithc.data.table import Kind, TableWriter
from dithc.log import UserError, logger, problem, progress
from dithc.runs import atomic_write, outcome

SCHEMA_VERSION = 1
TABLE_FILE, INDEX_FILE = "scenes.parquet", "scenes.json"
OWN_FILES = (TABLE_FILE, INDEX_FILE, "stack-*.npy")
SCENES_PER_STACK = 4096
OPEN_STACKS = 16
"""Shapes that grow at once; a data set where every scene has its own shape must not hold a file open for each."""
EXAMPLES_PER_REASON = 2
SAME_GSD = 0.01
COLUMNS: dict[str, Kind] = {
    "scene_id": "text",
    "status": "text",
    "reason": "text",
    "what": "text",
    "got": "text",
    "expected": "text",
    "remedy": "text",
    "stack": "int",
    "row": "int",
    "path": "text",
    "sha256": "text",
    "label": "int",
    "n_bands": "int",
    "height": "int",
    "width": "int",
    "gsd_m": "float",
    "crs": "text",
    "crs_epsg": "int",
    "transform": "floats",
    "valid_frac": "float",
    "product_id": "text",
    "satellite": "text",
    "sensor": "text",
    "sensing_time": "text",
    "baseline": "text",
    "level": "text",
    "offset_source": "text",
    "offsets": "floats",
    "notes": "text",
}
log = logger(__name__)


def stage_scenes(dataset: datasets.Dataset, folder: Path, *, out: Path) -> outcome.Stage:
    """Reads all scenes of a source and writes stacks, `scenes.parquet` and `scenes.json`; one scene is in memory at a time.

    Args:
        dataset: the data set; its `source` says what the files are, its `max_rejected` how many may be refused.
        folder: folder (or file) of the source.
        out: folder to make; what it held before is replaced when all is well, and untouched otherwise.

    Returns:
        Numbers for the manifest: scenes, accepted, rejected by reason, notes, bands.

    Raises:
        UserError: there are no scenes, too many were refused, one contradicts what is declared, or the disk is full.
    """
    scenes = read_scenes(dataset.source, folder)
    with whole_folder(out, own=OWN_FILES) as temporary:
        tally = Tally()
        with (
            TableWriter(temporary / TABLE_FILE, columns=COLUMNS | scenes.columns) as table,
            Stacks(temporary) as stacks,
            progress(total=len(scenes), label="scenes", unit="scene") as bar,
        ):
            for scene in _consistent(scenes, tally):
                if isinstance(scene, Rejection):
                    tally.refuse(scene)
                    table.add(**_rejected_row(scene, folder))
                else:
                    tally.accept(scene)
                    table.add(**_accepted_row(scene, folder, *stacks.append(scene)))
                bar.update(1, rejected=str(tally.rejected))
        if dataset.source.kind == "sentinel2-array":
            _check_declared(folder, tally)
        if not tally.accepted or tally.rejected > dataset.max_rejected * len(scenes):
            raise _too_many(folder, tally, len(scenes), dataset.max_rejected)
        atomic_write(temporary / INDEX_FILE, json.dumps(_index(dataset, scenes, stacks, tally), indent=1) + "\n")
    for reason, count in tally.reasons.items():
        log.warning(f"{count} of {len(scenes)} scenes rejected: {reason}, such as {tally.examples[reason][0]}")
    return tally.numbers()


@dataclass(kw_only=True)
class Tally:
    """What was counted while reading.

    Attributes:
        first: the first accepted scene (without its pixels), with which all others must agree.
        reasons: refused scenes by reason.
        examples: some texts for each reason.
        notes: accepted scenes by note, such as `grayscale`.
    """

    first: dict[str, Any] = field(default_factory=dict)
    accepted: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    notes: Counter[str] = field(default_factory=Counter)

    @property
    def rejected(self) -> int:
        """Refused scenes of all reasons."""
        return self.reasons.total()

    def accept(self, scene: Scene) -> None:
        """Counts an accepted scene."""
        self.accepted += 1
        self.notes.update(scene.notes)
        if not self.first:
            names = ("units", "scale", "offset", "gsd_m")
            self.first = {name: scene.pixels.attrs[name] for name in names}
            self.first |= {"bands": scene.pixels.band.values.tolist(), "dtype": str(scene.pixels.dtype)}

    def refuse(self, rejection: Rejection) -> None:
        """Counts a refused scene."""
        reason = str(rejection.refused.reason)
        self.reasons[reason] += 1
        if len(self.examples[reason]) < EXAMPLES_PER_REASON:
            refused = rejection.refused
            text = f"{rejection.path}: {refused.what}; got {refused.got}; expected {refused.expected}; {refused.remedy}"
            self.examples[reason].append(printable(text))

    def numbers(self) -> outcome.Stage:
        """What goes into the manifest."""
        return {
            "scenes": self.accepted + self.rejected,
            "accepted": self.accepted,
            "rejected": dict(self.reasons),
            "notes": dict(self.notes),
            "bands": self.first["bands"],
        }


class Stacks:
    """Writes scenes of one shape behind each other: `stack-00000.npy` (n, C, H, W) and `stack-00000.mask.npy` (n, H, W)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: list[dict[str, Any]] = []
        self._open: OrderedDict[tuple[int, ...], tuple[int, NpyWriter, NpyWriter]] = OrderedDict()

    def append(self, scene: Scene) -> tuple[int, int]:
        """Appends a scene; returns (stack, row)."""
        shape = scene.pixels.shape
        if shape in self._open and self._full(shape):
            self._close(shape)
        if shape not in self._open:
            self._start(shape, scene.pixels.dtype)
        self._open.move_to_end(shape)
        number, pixels, mask = self._open[shape]
        pixels.append(scene.pixels.values[np.newaxis])
        mask.append(scene.mask.values[np.newaxis])
        return number, pixels.count - 1

    def _full(self, shape: tuple[int, ...]) -> bool:
        pixels = self._open[shape][1]
        bytes_each = int(np.prod(shape)) * pixels.dtype.itemsize
        return pixels.count >= SCENES_PER_STACK or (pixels.count + 1) * bytes_each > SHARD_BYTES

    def _start(self, shape: tuple[int, ...], dtype: Any) -> None:
        if len(self._open) == OPEN_STACKS:
            self._close(next(iter(self._open)))
        number = len(self.entries)
        stem = f"stack-{number:05d}"
        self.entries.append({"file": f"{stem}.npy", "mask": f"{stem}.mask.npy", "count": 0})
        self._open[shape] = (
            number,
            NpyWriter(self.folder / f"{stem}.npy", shape=shape, dtype=dtype),
            NpyWriter(self.folder / f"{stem}.mask.npy", shape=shape[1:], dtype=np.uint8),
        )

    def _close(self, shape: tuple[int, ...]) -> None:
        number, pixels, mask = self._open.pop(shape)
        pixels.close()
        mask.close()
        self.entries[number]["count"] = pixels.count

    def __enter__(self) -> "Stacks":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        while self._open:
            shape = next(iter(self._open))
            if kind is None:
                self._close(shape)
            else:
                for writer in self._open.pop(shape)[1:]:
                    writer.discard()


def _consistent(scenes: Iterable[Scene | Rejection], tally: Tally) -> Iterable[Scene | Rejection]:
    """Passes scenes on; one whose bands, type or pixel size differ from the first accepted one becomes a rejection."""
    for scene in scenes:
        refused = _contradiction(scene, tally.first) if isinstance(scene, Scene) and tally.first else None
        if refused is not None:
            yield Rejection(scene_id=scene.scene_id, path=scene.path, refused=refused)
        else:
            yield scene


def _contradiction(scene: Scene, first: dict[str, Any]) -> Refused | None:
    bands, gsd_m = scene.pixels.band.values.tolist(), scene.pixels.attrs["gsd_m"]
    assert str(scene.pixels.dtype) == first["dtype"], "a reader gave two types"
    remedy = "keep files of one kind in a data set; make another data set for the others"
    if bands != first["bands"]:
        what, got, expected = "the bands differ from those of the scenes before", ", ".join(bands), first["bands"]
        return Refused(Reason.MISSING_BAND, what, got=got, expected=", ".join(expected), remedy=remedy)
    if abs(gsd_m - first["gsd_m"]) > SAME_GSD * first["gsd_m"]:
        what, got, expected = "the pixel size differs from that of the scenes before", gsd_m, first["gsd_m"]
        remedy += ", or resample them (gdalwarp -tr)"
        return Refused(Reason.RESOLUTION_MISMATCH, what, got=f"{got:g} m", expected=f"{expected:g} m", remedy=remedy)
    return None


def _accepted_row(scene: Scene, folder: Path, stack: int, row: int) -> dict[str, Any]:
    place = scene.place
    return {
        "scene_id": scene.scene_id,
        "status": "accepted",
        "stack": stack,
        "row": row,
        "path": scene_id(scene.path, folder),
        "sha256": scene.sha256,
        "label": scene.label,
        "n_bands": scene.pixels.sizes["band"],
        "height": scene.pixels.sizes["y"],
        "width": scene.pixels.sizes["x"],
        "gsd_m": place.gsd_m,
        "crs": place.crs,
        "crs_epsg": place.epsg,
        "transform": None if place.transform is None else list(place.transform),
        "valid_frac": float((scene.mask.values != 0).mean()),
        "notes": " ".join(scene.notes),
        **scene.facts,
    }


def _rejected_row(rejection: Rejection, folder: Path) -> dict[str, Any]:
    """The row of a refused scene; like all rows it does not say where the source's folder stands."""
    refused = rejection.refused
    path = scene_id(rejection.path, folder)
    told = {
        name: printable(getattr(refused, name).replace(str(rejection.path), path).replace(f"{folder}{os.sep}", ""))
        for name in ("what", "got", "expected", "remedy")
    }
    return {
        "scene_id": rejection.scene_id,
        "status": "rejected",
        "path": path,
        "reason": str(refused.reason),
        **told,
    }


def _index(dataset: datasets.Dataset, scenes: Scenes, stacks: Stacks, tally: Tally) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": dataset.source.kind,
        **tally.first,
        "classes": scenes.classes,
        "counts": tally.numbers(),
        "stacks": stacks.entries,
    }


def _check_declared(folder: Path, tally: Tally) -> None:
    """Refuses a data set some of whose files contradict the offset that is declared: the others are then as doubtful."""
    reason = str(Reason.OFFSET_CONTRADICTION)
    if not tally.reasons[reason]:
        return
    raise problem(
        f"{tally.reasons[reason]} of {tally.accepted + tally.rejected} files in {folder} contradict the declared offset",
        got="".join(f"\n    {text}" for text in tally.examples[reason]),
        expected="an offset that fits every file: where some contradict it, others may be wrong and not show it",
        remedy="do what each line says; files of two kinds belong in two data sets, and a single odd file out of the folder",
    )


def _too_many(folder: Path, tally: Tally, total: int, most: float) -> UserError:
    lines = [
        f"{count} x {reason}: {text}" for reason, count in tally.reasons.items() for text in tally.examples[reason]
    ]
    return problem(
        f"{tally.rejected} of {total} scenes in {folder} cannot be used",
        got="".join(f"\n    {line}" for line in lines),
        expected=f"at least one usable scene, and a share of rejected ones of at most {most:g} (`max_rejected`)",
        remedy="do what each line says; if the rejected files may be left out, raise `max_rejected` of the data set",
    )
