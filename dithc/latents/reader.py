"""Reader of latents: memory-mapped fp16 shards with one index, verified before use.

Legend: N rows, Z latent channels, h, w latent; M stored channels (2 Z for mean and log-variance, Z for mean alone).
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from dithc.config import training
from dithc.core.artifacts import Manifest, sha256_file
from dithc.core.integrity import parse_json
from dithc.core.logging import UserError, user_error
from dithc.data import Rows, Tiles
from dithc.latents.encode import INDEX_FILE, SCHEMA_VERSION, apply_view, encode_tiles

FIX = "rerun the latents stage of this dataset (`dithc latents`)"

Split = Literal["train", "val", "test", "all"]


class Latents:
    """Latents of a dataset, in the order of its accepted tiles.

    Opening reads the index and compares sizes, which is cheap for any number of rows. The first access to a shard maps
    it and compares its SHA-256.

    Args:
        folder: Output folder of `Latents.encode`.
        codec_id: Id of the decoding codec, if available.
        tiles_digest: Digest of the tiles' manifest, if available.

    Attributes:
        info: Content of index.json.
        count: Number of rows (N).
        shape: Shape of one latent (Z, h, w).
        num_views: Encoded views per tile, 2 or 8.
        num_classes: Number of classes, without the null class of guidance.
        scale: Factor that gives latents about unit variance.
        has_logvar: True if a row holds mean and log-variance (an autoencoder), False for the mean only (pixels).
        condition_widths: Numbers of each condition of the tiles, by name.
        labels: int32 (N,), at least 0 and below `num_classes`.

    Raises:
        UserError: The index is missing, a shard is missing or truncated, labels are out of range, or codec or tiles
            differ from the expected ones.
    """

    encode = staticmethod(encode_tiles)

    def __init__(self, folder: Path, *, codec_id: str | None = None, tiles_digest: str | None = None) -> None:
        self.folder = folder
        self._opened: dict[tuple[int, int], npt.NDArray[np.float16]] = {}  # by shard and view
        self.info = self._index()
        self.count, self.num_classes, self.scale = (self.info[name] for name in ("count", "num_classes", "scale"))
        self.shape: tuple[int, int, int] = self.info["z"], self.info["h"], self.info["w"]
        self.num_views = min((len(_views(shard)) for shard in self.info["shards"]), default=2)
        self._ends = np.cumsum([shard["rows"] for shard in self.info["shards"]], dtype=np.int64)
        self._starts = np.concatenate([[0], self._ends[:-1]]).astype(np.int64)
        self.has_logvar: bool = self.info["moments"] == "mean_logvar"
        self._check_equal("made by another codec", self.info["codec"], codec_id)
        self._check_equal("made of other tiles", self.info["tiles_digest"], tiles_digest)
        self._check_sizes()
        self.labels = self._column("labels", np.int32)  # (N,)
        self._splits = self._column("splits", np.uint8)  # (N,)
        self.condition_widths: dict[str, int] = self.info.get("condition_widths", {})
        num_columns = sum(self.condition_widths.values())
        self._conditions = self._column("conditions", np.float32, num_columns) if num_columns else None
        row_bytes = -(-self.shape[1] * self.shape[2] // 8)
        self._masks = self._column("masks", np.uint8, row_bytes) if "masks" in self.info else None
        if self.count and (self.labels.min() < 0 or self.labels.max() >= self.num_classes):
            expected = f"0 to {self.num_classes - 1} ({self.num_classes} classes)"
            raise self._damaged("labels.npy", f"labels {self.labels.min()} to {self.labels.max()}", expected)

    def rows(self, split: Split) -> Rows:
        """Return the rows of a split in ascending order, int64."""
        if split == "all":
            return np.arange(self.count, dtype=np.int64)
        return np.flatnonzero(self._splits == Tiles.SPLITS.index(split)).astype(np.int64)

    def moments(self, rows: Rows, *, views: Rows | None = None) -> npt.NDArray[np.float16]:
        """Return stored rows (n,), float16 (n, M, h, w), in the requested order.

        `views` (n,) selects the encoded view of each, by default 0. Odd views are mirror images. View v is also rotated
        by v // 2 quarter turns.
        """
        channels, height, width = self.shape
        out = np.empty((len(rows), channels * (1 + self.has_logvar), height, width), np.float16)
        shard_of = np.searchsorted(self._ends, rows, side="right")
        view_of = np.zeros(len(rows), np.int64) if views is None else views
        inside = rows - self._starts[shard_of]
        places = zip(shard_of.tolist(), view_of.tolist(), inside.tolist(), strict=True)
        for place, (shard, view, row) in enumerate(places):
            stored = self._opened.get((shard, view))
            out[place] = (self._open_shard(shard, view) if stored is None else stored)[row]
        return out

    def widths(self, names: Sequence[str]) -> tuple[tuple[str, int], ...]:
        """Return conditions with their numbers; UserError if the tiles do not have a condition."""
        widths = self.condition_widths | {"view": Tiles.NUM_VIEWS}
        if absent := [name for name in names if name not in widths]:
            raise user_error(
                f"latents in {self.folder} lack conditions",
                got=", ".join(absent),
                expected=f"some of {', '.join(widths)}",
                fix="correct `conditions` of the run; `cloud` requires `tiles.masks: true`. Rerun the stages of a dataset "
                "that an earlier version prepared",
            )
        return tuple((name, widths[name]) for name in names)

    def channels(self, groups: Mapping[str, training.BandGroupConfig]) -> tuple[training.BandGroup, ...]:
        """Return name, channels and role of groups of bands; UserError if a band is missing or no band is in the main group."""
        names: list[str] = self.info.get("bands", [])
        listed = [band for group in groups.values() for band in group.bands]
        if groups and not set(listed) < set(names):
            raise user_error(
                f"`band_groups` for the latents in {self.folder}",
                got=", ".join(listed),
                expected=f"some of {', '.join(names) or 'no bands'}, and at least one band without a group",
                fix="correct `band_groups` of the run; the bands to restore in all cases belong to no group",
            )
        return tuple((name, tuple(map(names.index, group.bands)), group.role) for name, group in groups.items())

    def conditions(self, rows: Rows, names: Sequence[str], *, views: Rows) -> list[npt.NDArray[np.float32]]:
        """Return named conditions (n, k) of views of rows (n,); the azimuth of the sun turns with the image."""
        groups = {"view": np.eye(Tiles.NUM_VIEWS, dtype=np.float32)[views]}
        if self._conditions is not None:
            stops = np.cumsum(list(self.condition_widths.values()))[:-1]
            groups |= zip(self.condition_widths, np.split(self._conditions[rows], stops, axis=1), strict=True)
        if "sun" in groups:
            elevation, east, north = groups["sun"].T
            direction = (north + 1j * east).astype(np.complex64)  # clockwise from north
            turned = np.where(views % 2, direction.conj(), direction) * np.complex64(-1j) ** (views // 2)
            groups["sun"] = np.stack([elevation, turned.imag, turned.real], axis=1).astype(np.float32)
        return [groups[name] for name in names]

    def clear(self, rows: Rows, *, views: Rows) -> npt.NDArray[np.bool_]:
        """Return the clear pixels of views of rows (n,), (n, 1, h, w); UserError if the latents have no masks."""
        if self._masks is None:
            raise user_error(
                f"latents in {self.folder} have no masks of clear pixels",
                got="tiles without masks, or a codec without pixels as latents",
                expected="masks, for `masked_training`",
                fix="set `tiles.masks: true` of the dataset and use a codec of kind pixel, then rerun its stages",
            )
        _, height, width = self.shape
        bits = np.unpackbits(self._masks[rows], axis=1, count=height * width).reshape(-1, 1, height, width)
        clear = torch.from_numpy(bits.astype(np.bool_))
        for view in np.unique(views).tolist():
            selected = torch.from_numpy(views == view)
            clear[selected] = apply_view(clear[selected], view)
        return clear.numpy()

    def _check_sizes(self) -> None:
        """Check the size of every file in the index without opening it."""
        for view in (view for shard in self.info["shards"] for view in _views(shard)):
            try:
                size = os.stat(self.folder / view["path"]).st_size
            except FileNotFoundError:
                raise self._damaged(view["path"], "no such file", f"{view['bytes']} bytes") from None
            if size != view["bytes"]:
                raise self._damaged(view["path"], f"{size} bytes", f"{view['bytes']} bytes")

    def _open_shard(self, shard: int, view: int) -> npt.NDArray[np.float16]:
        """Return the file of a shard and view on first access: hashed, then mapped."""
        entry = _views(self.info["shards"][shard])[view]
        digest = sha256_file(self.folder / entry["path"])
        if digest != entry["sha256"]:
            raise self._damaged(entry["path"], f"bytes with SHA-256 {digest[:12]}...", entry["sha256"][:12] + "...")
        channels, height, width = self.shape
        shape = (self.info["shards"][shard]["rows"], channels * (1 + self.has_logvar), height, width)
        stored = self._opened[shard, view] = self._open(entry["path"], shape, np.float16)
        return stored

    def _index(self) -> dict[str, Any]:
        path = self.folder / INDEX_FILE
        try:
            info: dict[str, Any] = parse_json(Manifest.verified(path).read_text())
            version = info["schema_version"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(INDEX_FILE, repr(error), "the index, which is written last of all") from error
        if version != SCHEMA_VERSION:
            raise self._damaged(INDEX_FILE, f"schema version {version}", f"schema version {SCHEMA_VERSION}")
        return info

    def _check_equal(self, problem: str, got: object, expected: object) -> None:
        if expected is not None and got != expected:
            raise user_error(f"latents in {self.folder} are {problem}", got=got, expected=expected, fix=FIX)

    def _column(self, name: str, dtype: npt.DTypeLike, *shape: int) -> npt.NDArray[Any]:
        Manifest.verified(self.folder / f"{name}.npy")
        return self._open(f"{name}.npy", (self.count, *shape), dtype)

    def _open(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Map a file as a plain array, because reading a row of numpy's memmap type takes twice as long."""
        expected = f"{np.dtype(dtype)} {shape}, complete"
        try:
            array: npt.NDArray[Any] = np.asarray(np.load(self.folder / name, mmap_mode="r"))
        except (OSError, ValueError, EOFError) as error:
            raise self._damaged(name, error, expected) from error
        if array.shape != shape or array.dtype != dtype:
            raise self._damaged(name, f"{array.dtype} {array.shape}", expected)
        return array

    def _damaged(self, name: str, got: object, expected: str) -> UserError:
        return user_error(f"{self.folder / name} cannot be used", got=got, expected=expected, fix=FIX)


def _views(shard: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of a shard's files, by view."""
    return [shard, shard["flip"], *shard.get("dihedral", [])]
