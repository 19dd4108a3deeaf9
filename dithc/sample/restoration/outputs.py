"""Files of a restoration: parts of blocks while it runs, and the images of each scene, assembled by rows.

A part file has the restored values of some members, float32 (k, n + 1), in the order (row, band, column) of a block's extent,
with the error of the solver last, and a hash of them and of the identity of the request. A part with another hash is
sampled again.
Legend: k members of a part, K members, C bands, H, W scene, n restored values.
"""

import hashlib
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dithc.core.artifacts import Manifest, atomic_replace, atomic_write, digest, sha256_file
from dithc.core.image_quality import ensemble_quantile, ensemble_variance
from dithc.core.integrity import dump_checksummed, load_checksummed, require_regular_file
from dithc.data import products
from dithc.sample.restoration.blocks import Block, Span
from dithc.sample.restoration.scenes import Flag, RestorableScenes

Values = npt.NDArray[np.float32]
STRIP_VALUES = 1 << 25  # most values of all members in memory
RECORD_FILE = "scene.json"
NAME_LENGTH = 100  # most characters of a scene id in the name of its folder
GEOREFERENCE = "scene_id", "sensing_time", "crs", "transform"  # columns in the record
STATISTICS: dict[str, Callable[[Values], npt.NDArray[Any]]] = {
    "mean": lambda members: members.mean(0, dtype=np.float64),
    "deviation": lambda members: np.sqrt(ensemble_variance(members)),
    "q05": lambda members: ensemble_quantile(members, 0.05),
    "q95": lambda members: ensemble_quantile(members, 0.95),
}
"""Images computed from the members (K, n). A pixel that was observed has its value, and the deviation 0."""


@dataclass(frozen=True, kw_only=True)
class ComparedPart:
    """Part of a restored scene with a context on each side; `inner` are the rows and columns of the part in it."""

    block: Block  # place of part and context
    inner: tuple[slice, slice]
    members: Values  # (K, C, h, w), in the units of the dataset
    flags: npt.NDArray[np.uint8]  # (C, h, w)
    gaps: npt.NDArray[np.bool_]  # (h, w), pixels that no band observes at any resolution
    has_truth: npt.NDArray[np.bool_]  # (C, h, w)

    @property
    def place(self) -> tuple[slice, slice]:
        """Rows and columns of part and context."""
        return self.block.rows.domain, self.block.columns.domain


def folder_name(scene_id: str) -> str:
    """Return the name of a scene's folder: its id, or a shortened ASCII form with a digest of the id."""
    name = re.sub(r"[^\w.-]+", "_", scene_id, flags=re.ASCII)[:NAME_LENGTH]
    return f"scene-{name}" if name == scene_id else f"scene-{name}-{digest(scene_id)}"


def write_part(path: Path, values: Values, *, identity: str) -> None:
    """Write the restored values and errors (k, n + 1) of a part."""
    content = io.BytesIO()
    np.save(content, values)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_replace(path) as temporary, temporary.open("wb") as file:
        file.write(content.getbuffer())
        file.write(_seal(content.getbuffer(), identity))


def is_part(path: Path, *, identity: str) -> bool:
    """Return True if a part exists, is intact and belongs to this request."""
    if not path.is_file():
        return False
    content = memoryview(path.read_bytes())
    return bytes(content[-32:]) == _seal(content[:-32], identity)


def _seal(content: memoryview, identity: str) -> bytes:
    seal = hashlib.sha256(identity.encode())
    seal.update(content)
    return seal.digest()


@dataclass(frozen=True, kw_only=True)
class RestoredScene:
    """A scene with its blocks and the members of each part; files are in `folder`."""

    scenes: RestorableScenes
    scene: int
    folder: Path
    blocks: Sequence[Block]
    parts: Sequence[Sequence[range]]  # members of each part, by block; empty if no pixel of a block is restored
    counts: Sequence[int]  # restored values of each block
    members: int
    identity: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (C, H, W)."""
        return len(self.scenes.info["bands"]), *self.scenes.shape(self.scene)

    def part(self, block: int, number: int) -> Path:
        """Return the path of a part."""
        members = self.parts[block][number]
        return self.folder / f"block-{block:05d}-{members.start:04d}-{members.stop:04d}.npy"

    def part_files(self) -> list[Path]:
        return [self.part(block, number) for block, parts in enumerate(self.parts) for number in range(len(parts))]

    def restored(self, block: int, sampled: Values) -> Values:
        """Return the restored values (k, n) of sampled members (k, C, h, w), in the units of the dataset."""
        rows, columns = self.blocks[block].stored()
        physical = self.scenes.scaling.unscale(sampled[:, :, rows, columns])  # (k, C, h, w)
        return np.asarray(physical.transpose(0, 2, 1, 3)[:, self._is_restored(block)])

    def part_bytes(self, missing: Sequence[tuple[int, int]]) -> int:
        """Return the bytes of parts, given as (block, part)."""
        return sum(4 * (self.counts[block] + 1) * len(self.parts[block][part]) for block, part in missing)

    def image_bytes(self) -> int:
        """Return the bytes of the uncompressed images."""
        return (4 * len(self.names) + 1) * math.prod(self.shape)

    def _is_restored(self, block: int) -> npt.NDArray[np.bool_]:
        """Return a mask (h, C, w) of the extent of a block."""
        extent = self.blocks[block].rows.extent, self.blocks[block].columns.extent
        return np.asarray(self.scenes.flags(self.scene, *extent) == Flag.RESTORED).transpose(1, 0, 2)

    # assembly

    @cached_property
    def _starts(self) -> list[npt.NDArray[np.int64]]:
        """Number of values before each row of each block's extent."""
        counts = (self._is_restored(block).sum((1, 2)) if parts else [] for block, parts in enumerate(self.parts))
        return [np.concatenate([[0], np.cumsum(count)]).astype(np.int64) for count in counts]

    def values(self, rows: slice, restored: npt.NDArray[np.bool_], members: range) -> Values:
        """Return members (k, n) of the restored pixels of complete rows, mask (C, rows, W), cross-faded between blocks."""
        blended = np.zeros((len(members), restored.shape[1], restored.shape[0], restored.shape[2]), np.float32)
        for number, (block, parts) in enumerate(zip(self.blocks, self.parts, strict=True)):
            extent, columns = block.rows.extent, block.columns.extent
            first, end = max(rows.start, extent.start), min(rows.stop, extent.stop)
            if first >= end or not parts:
                continue
            inside = slice(first - extent.start, end - extent.start)
            weight = block.rows.weight[inside, None, None] * block.columns.weight  # (rows, 1, w)
            target = blended[:, first - rows.start : end - rows.start, :, columns]  # (k, rows, C, w)
            where = restored[:, first - rows.start : end - rows.start, columns].transpose(1, 0, 2)
            weights = np.broadcast_to(weight, where.shape)[where]
            place = slice(*self._starts[number][[inside.start, inside.stop]])
            for index, member in enumerate(members):
                part, held = next((part, held) for part, held in enumerate(parts) if member in held)
                stored = np.load(self.part(number, part), mmap_mode="r")[member - held.start, place]
                target[index][where] += stored * weights
        return blended.transpose(0, 2, 1, 3)[:, restored]

    def _strips(self) -> Iterator[slice]:
        """Yield the rows of which all members fit into memory."""
        channels, height, width = self.shape
        count = max(1, STRIP_VALUES // (channels * width * self.members))
        for first in range(0, height, count):
            yield slice(first, min(height, first + count))

    def flags(self, rows: slice) -> npt.NDArray[np.uint8]:
        """Return the written state (C, rows, W) of the pixels of rows."""
        return np.asarray(products.read_window(self.folder / "flags.tif", rows, slice(0, self.shape[2])))

    def image(self, name: str) -> Iterator[Values]:
        """Yield the rows (C, rows, W) of an image in the units of the dataset: a statistic or `member-NN`."""
        statistic = STATISTICS.get(name)
        number = 0 if statistic else int(name.removeprefix("member-"))
        members = range(self.members) if statistic else range(number, number + 1)
        for rows in self._strips():
            flags = self.flags(rows)
            values = self.values(rows, flags == Flag.RESTORED, members)
            observed = self.scenes.physical(self.scene, rows, slice(0, self.shape[2]))
            if name == "deviation":
                observed[:] = 0
            observed[flags == Flag.OUTSIDE] = np.nan
            observed[flags == Flag.RESTORED] = statistic(values) if statistic else values[0]
            yield observed

    def flag_rows(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the rows (C, rows, W) of the state of the pixels."""
        for rows in self._strips():
            yield self.scenes.flags(self.scene, rows, slice(0, self.shape[2]))

    @property
    def names(self) -> list[str]:
        """Names of the images of values."""
        return [*STATISTICS, *(f"member-{number:02d}" for number in range(self.members))]

    def files(self) -> list[Path]:
        return [self.folder / f"{name}.tif" for name in (*self.names, "flags")] + [self.folder / RECORD_FILE]

    def write(self, *, tags: dict[str, str]) -> None:
        """Write the images and the record of a scene, then remove its parts; OSError for a full disk."""
        bands = products.Bands.of(self.scenes.info)
        ones = (1.0,) * len(bands.names)
        values = replace(bands, dtype="float32", scale=ones, offset=tuple(0.0 for _ in ones))
        flags = replace(values, dtype="uint8", units="0: outside; 1: observed; 2: restored")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write("flags", self.flag_rows(), flags, tags, categorical=True)
        for name in self.names:
            self._write(name, self.image(name), values, tags)
        counts, by_band = np.zeros(len(Flag), np.int64), np.zeros((2, self.shape[0]), np.int64)
        for rows in self._strips():
            state, is_clipped = self.flags(rows), self.scenes.clipped(self.scene, rows, slice(0, self.shape[2]))
            counts += np.bincount(state.ravel(), minlength=len(Flag))
            is_observed = state == Flag.OBSERVED
            by_band += [is_observed.sum((1, 2)), (is_observed & is_clipped).sum((1, 2))]
        errors = [float(np.load(path, mmap_mode="r")[:, -1].max()) for path in self.part_files()]
        *images, record = self.files()
        content = {
            "identity": self.identity,
            **{name: self.scenes.column(name, self.scene) for name in GEOREFERENCE},
            "shape": list(self.shape),
            "pixels": {flag.name.lower(): int(counts[flag]) for flag in Flag},
            "bands": dict(zip(("observed", "clipped"), by_band.tolist(), strict=True)),
            "solver_error": max(errors, default=0.0),
            "files": Manifest.entries(self.folder, images),
        }
        atomic_write(record, dump_checksummed(content))
        for path in self.part_files():
            path.unlink(missing_ok=True)

    def compared(self, *, side: int, context: int, first: int, step: int) -> Iterator[tuple[int, ComparedPart]]:
        """Yield number and content of each `step`-th part of a written scene, from `first` on; sides are about `side`."""
        multiple = math.lcm(*self.scenes.coarse.values())
        each, margin = (-(-length // multiple) * multiple for length in (side, context))
        _, height, width = self.shape
        places = list(product(range(0, height, each), range(0, width, each)))
        for number, starts in list(enumerate(places))[first::step]:
            spans = [
                Span.alone(start, min(length, start + each), margin, length)
                for start, length in zip(starts, (height, width), strict=True)
            ]
            wide = spans[0].domain, spans[1].domain
            flags, *members = (
                products.read_window(self.folder / f"{name}.tif", *wide)
                for name in ("flags", *self.names[len(STATISTICS) :])
            )
            yield (
                number,
                ComparedPart(
                    block=Block(*spans),
                    inner=Block(*spans).stored(),
                    members=np.stack(members),
                    flags=flags,
                    gaps=self.scenes.gaps(self.scene, *wide),
                    has_truth=self.scenes.truth(self.scene, *wide) & self.scenes.has_truth,
                ),
            )

    def _write(
        self, name: str, rows: Iterator[Any], bands: products.Bands, tags: dict[str, str], *, categorical: bool = False
    ) -> None:
        channels, height, width = self.shape
        own = {name: self.scenes.column(name, self.scene) for name in ("scene_id", "sensing_time")}
        is_small = channels * width * self.members * height <= STRIP_VALUES  # one strip
        image = products.Image(
            name=name,
            pixels=next(rows) if is_small else rows,
            tags={name: value for name, value in own.items() if value} | tags,
            shape=None if is_small else self.shape,
            categorical=categorical,
            crs=self.scenes.column("crs", self.scene),
            transform=self.scenes.column("transform", self.scene),
        )
        products.write_geotiff(self.folder, image, bands=bands)

    def entries(self) -> list[dict[str, Any]]:
        """Return the entries of the images of a finished scene for the manifest."""
        files = (self.record(is_verified=True) or {"files": []})["files"]
        return [{**entry, "path": f"{self.folder.name}/{entry['path']}"} for entry in files]

    def record(self, *, is_verified: bool = False) -> dict[str, Any] | None:
        """Return the record of a finished scene; None if it is missing, altered or of another request.

        Unless they are already verified, the images are hashed.
        """
        path = self.folder / RECORD_FILE
        try:
            content = load_checksummed(require_regular_file(path).read_text())
            files = [(self.folder / entry["path"], entry["sha256"]) for entry in content["files"]]
            is_intact = is_verified or all(sha256_file(file) == digest for file, digest in files)
            if content["identity"] == self.identity and is_intact:
                return content
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None
