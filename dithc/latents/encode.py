"""The latents stage: encoding of views of accepted tiles into fp16 shards, resumable by shard.

Legend: N tiles, C bands, H, W tile; Z latent channels, h, w latent; M stored channels (2 Z, or Z without log-variance).
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dithc.core.artifacts import Manifest, atomic_replace, atomic_write, outputs
from dithc.core.integrity import dump_checksummed, load_checksummed, require_regular_file
from dithc.core.logging import get_logger, progress, unwritten, user_error
from dithc.data import Rows, Tiles
from dithc.latents.clusters import cluster_labels, draw_clusters
from dithc.latents.codecs import LARGEST_FP16, Codec

INDEX_FILE = "index.json"
SCHEMA_VERSION = 1
STEMS = ("shard", "flip", *(f"dihedral{view}" for view in range(2, Tiles.NUM_VIEWS)))  # file names of each view
GRID_FILE = "grid.png"
log = get_logger(__name__)


def apply_view(images: Tensor, view: int) -> Tensor:
    """Return view 0 to 7 of square images (..., H, W), with gradients: odd views mirrored, v // 2 quarter turns."""
    mirrored = images.flip(-1) if view % 2 else images
    return torch.rot90(mirrored, view // 2, dims=(-2, -1))


def encode_tiles(
    tiles: Tiles,
    codec: Codec,
    folder: Path,
    *,
    tiles_digest: str,
    views: Literal[2, 8] = 2,
    clusters: int | None = None,
    shard_size: int = 4096,
    batch: int = 32,
) -> dict[str, Any]:
    """Write the latents of all accepted tiles, then the index; a shard with a valid sidecar is kept.

    The codec encodes views of a tile, because an autoencoder is not equivariant.

    Args:
        tiles_digest: Digest of the tiles' manifest; shards of other tiles are encoded again.
        views: 2 for tiles and mirror images, 8 with quarter turns; shards of 2 views are part of 8.
        clusters: Number of classes assigned to tiles without classes, see `cluster_labels`.
        shard_size: Rows per shard, the unit of resumption.

    Returns the shape, moments, scale, mean and standard deviation per channel for the manifest.

    Raises:
        UserError: There are no tiles, `clusters` are impossible, a latent is not finite or beyond fp16, or the disk is
            full. Finished shards stay.
    """
    if not tiles.count:
        raise user_error(
            "the dataset has no tiles to encode",
            got="0 accepted tiles",
            expected="at least 1",
            fix="see the reasons of rejection in tiles.parquet, then change the section `tiles` or the source",
        )
    codec.check_tiles(tiles)
    labels = tiles.labels if clusters is None else cluster_labels(tiles, clusters)
    classes = list(tiles.info["classes"]) if clusters is None else [f"cluster {number}" for number in range(clusters)]
    encoder = _ShardEncoder(tiles, codec, folder, labels, tiles_digest, STEMS[:views], shard_size, batch)
    files = encoder.files() + ([folder / GRID_FILE] if clusters is not None else [])
    try:
        output = outputs.OutputFolder(folder)
        output.plan(files)
        shards = encoder.shards()
        columns = encoder.columns()
        index = _description(tiles, codec, classes) | {"tiles_digest": tiles_digest, "shards": shards} | columns
        index |= _statistics(folder, shards, tiles.rows("train"), has_logvar=codec.has_logvar)
        if clusters is not None:
            draw_clusters(tiles, labels, folder / GRID_FILE)
        atomic_write(folder / INDEX_FILE, json.dumps(index, indent=1) + "\n")
        output.prune(files)
    except OSError as error:
        raise unwritten("latents", folder, error, kept="finished shards are kept") from error
    keys = ("count", "z", "h", "w", "num_classes", "moments", "scale", "mean", "std")
    return {name: index[name] for name in keys} | {"shape": [index[name] for name in "zhw"]}


@dataclass
class _ShardEncoder:
    tiles: Tiles
    codec: Codec
    folder: Path
    labels: npt.NDArray[np.int32]
    tiles_digest: str
    stems: tuple[str, ...]
    shard_size: int
    batch: int

    def files(self) -> list[Path]:
        """Return the paths of all files: shards and sidecars of each view, labels, splits, index."""
        numbers = range(-(-self.tiles.count // self.shard_size))
        stems = [f"{stem}-{number:05d}" for stem in self.stems for number in numbers]
        columns = [f"{name}.npy" for name in self._columns()]
        names = [*(f"{stem}.{suffix}" for stem in stems for suffix in ("npy", "json")), *columns, INDEX_FILE]
        return [self.folder / name for name in names]

    def shards(self) -> list[dict[str, Any]]:
        """Encode missing shards; return the entries of all shards, each with its other views."""
        entries = []
        with progress(total=len(self.stems) * self.tiles.count, label="latents", unit="tile") as bar:
            for number, start in enumerate(range(0, self.tiles.count, self.shard_size)):
                rows = np.arange(start, min(start + self.shard_size, self.tiles.count), dtype=np.int64)
                plain, flip, *turned = (
                    self._shard(f"{stem}-{number:05d}", rows, view=view, bar=bar)
                    for view, stem in enumerate(self.stems)
                )
                entry = {**plain, "first": start, "rows": len(rows), "flip": flip}
                entries.append(entry | {"dihedral": turned} if turned else entry)
        return entries

    def _shard(self, stem: str, rows: Rows, *, view: int, bar: progress) -> dict[str, Any]:
        """Encode one shard file or reuse it; return its entry."""
        path, sidecar = self.folder / f"{stem}.npy", self.folder / f"{stem}.json"
        identity = {"codec": self.codec.id, "tiles_digest": self.tiles_digest}
        origin = {**identity, "first": int(rows[0]), "rows": len(rows)}
        entry = _read_entry(path, sidecar, origin)
        if entry is not None:
            log.info(f"reusing {path.name}: its checksum matches")
            bar.update(len(rows))
            return entry
        for stale in (self.folder / INDEX_FILE, sidecar):  # neither may describe bytes that are being replaced
            stale.unlink(missing_ok=True)
        with atomic_replace(path) as temporary:
            self._encode(temporary, rows, path=path, view=view, bar=bar)
        (entry,) = Manifest.entries(self.folder, [path])
        atomic_write(sidecar, dump_checksummed({"entry": entry, "origin": origin}))
        return entry

    def _encode(self, temporary: Path, rows: Rows, *, path: Path, view: int, bar: progress) -> None:
        """Stream the latents of `rows` into one .npy file, so that memory holds a batch instead of a shard."""
        with temporary.open("wb") as file:
            for start in range(0, len(rows), self.batch):
                batch_rows = rows[start : start + self.batch]
                x = apply_view(self.codec.input(self.tiles, batch_rows), view)  # (n, C, H, W)
                mean, logvar = self.codec.encode(x.contiguous())  # (n, Z, h, w) each
                # With numpy, because sharing this small sum among PyTorch's threads costs more than the sum.
                parts = [part.numpy() for part in (mean, logvar) if part is not None]
                moments = np.concatenate(parts, axis=1)  # (n, M, h, w)
                _check(moments, batch_rows, path)
                if start == 0:
                    header = {"descr": "<f2", "fortran_order": False, "shape": (len(rows), *moments.shape[1:])}
                    np.lib.format.write_array_header_1_0(file, header)
                file.write(moments.astype("<f2").tobytes())
                bar.update(len(batch_rows))

    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of the tiles by name, with masks if tiles have them and latents are their pixels."""
        columns = {"labels": self.labels, "splits": self.tiles.column("split")}
        if "mask" in self.tiles.info.get("columns", ()) and self.codec.keeps_pixels:
            columns["masks"] = self.tiles.column("mask")
        if self.conditions:
            columns["conditions"] = np.concatenate(list(self.conditions.values()), axis=1)  # (N, K)
        return columns

    @cached_property
    def conditions(self) -> dict[str, npt.NDArray[np.float32]]:
        return self.tiles.conditions()

    def columns(self) -> dict[str, Any]:
        """Write the columns; return their entries, and the clear share of the pixels of train tiles if there are masks."""
        entries: dict[str, Any] = {}
        columns = self._columns()
        if "masks" in columns:
            train = self.tiles.rows("train")
            clear = sum(int(np.bitwise_count(columns["masks"][row]).sum()) for row in train)
            entries["clear_fraction"] = clear / max(len(train) * self.tiles.info["size"] ** 2, 1)
        if self.conditions:
            entries["condition_widths"] = {name: values.shape[1] for name, values in self.conditions.items()}
        for name, column in columns.items():
            path = self.folder / f"{name}.npy"
            with atomic_replace(path) as temporary, temporary.open("wb") as file:
                np.save(file, column)
            (entries[name],) = Manifest.entries(self.folder, [path])
        return entries


def _description(tiles: Tiles, codec: Codec, classes: list[str]) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "count": tiles.count,
        "moments": "mean_logvar" if codec.has_logvar else "mean",
        "scale": codec.scale,
        "codec": codec.id,
        **({"bands": list(tiles.info["bands"])} if codec.keeps_pixels else {}),
        "classes": classes,
        "num_classes": max(1, len(classes)),
    }


def _read_entry(path: Path, sidecar: Path, origin: dict[str, Any]) -> dict[str, Any] | None:
    """Return the entry of a sidecar if its origin and the checksum of its file match."""
    try:
        document = load_checksummed(require_regular_file(sidecar).read_text())
        same = document["origin"] == origin and [document["entry"]] == Manifest.entries(path.parent, [path])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not same:
        log.info(f"encoding {path.name} again: it has other tiles, another codec, or is damaged")
    return document["entry"] if same else None


def _check(moments: npt.NDArray[np.float32], rows: Rows, path: Path) -> None:
    """Raise UserError for a latent that fp16 cannot represent."""
    largest = np.abs(moments).max(axis=(1, 2, 3))  # (n,), NaN if any value is NaN
    bad = np.flatnonzero(~(largest < LARGEST_FP16))
    if len(bad):
        first = int(bad[0])
        raise user_error(
            f"the latent of tile {rows[first]} for {path} cannot be stored",
            got=f"a largest magnitude of {float(largest[first])}",
            expected=f"finite numbers below {LARGEST_FP16:.0f} (fp16)",
            fix="check that row of the accepted tiles and the codec's weights; retrain the codec if it diverged, or "
            "set another `scaling_factor` of an external codec",
        )


def _statistics(folder: Path, shards: list[dict[str, Any]], train: Rows, *, has_logvar: bool) -> dict[str, Any]:
    """Return the shape of a latent, and mean and standard deviation of each channel of sampled, unscaled train latents.

    Streams in float64: variance of the means plus the mean of the posterior variances.
    """
    count, total, squares = 0, np.zeros(1), np.zeros(1)
    shape: tuple[int, ...] = ()
    for shard in shards:
        stored = np.load(folder / shard["path"], mmap_mode="r")  # (N, M, h, w)
        channels = stored.shape[1] // (1 + has_logvar)
        shape = (channels, *stored.shape[2:])
        inside = train[(train >= shard["first"]) & (train < shard["first"] + shard["rows"])] - shard["first"]
        for start in range(0, len(inside), 64):
            moments = stored[inside[start : start + 64]].astype(np.float64)  # (n, M, h, w)
            mean = moments[:, :channels]
            variance = np.exp(moments[:, channels:]) if has_logvar else 0.0
            total = total + mean.sum(axis=(0, 2, 3))  # (Z,)
            squares = squares + (mean**2 + variance).sum(axis=(0, 2, 3))
            count += mean.size // channels
    average: npt.NDArray[np.float64] = np.broadcast_to(total / max(count, 1), shape[:1])
    spread = np.sqrt(np.maximum(np.broadcast_to(squares / max(count, 1), shape[:1]) - average**2, 0.0))
    return {**dict(zip("zhw", shape, strict=True)), "mean": average.tolist(), "std": spread.tolist()}
