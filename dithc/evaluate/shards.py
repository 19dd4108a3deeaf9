"""Feature shards on disk: written atomically, described by a sidecar written afterwards, verified before reuse.

A folder contains `shard-00000.npy` (float32 (n, d)), `thumbnails-00000.npy` (float32 (n, C, S, S), to search copies),
`structure-00000.npy` (float32 (n, s), statistics of `detectability`) and their sidecar `shard-00000.json`, `stats.npz`, and
`features.json`, which is written last.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.core.artifacts import Manifest, atomic_replace, atomic_write, sha256_file
from dithc.core.integrity import dump_checksummed, parse_json, read_document
from dithc.core.logging import user_error
from dithc.evaluate.statistics import FeatureOrigin

INDEX_FILE = "features.json"
STATISTICS_FILE = "stats.npz"
ORIGIN_KEYS = ("sha256", "resize", "set_hash", "rendering_digest")
HASH_KEYS = ("file_sha256", "thumbnails_sha256", "structure_sha256")
SIZES = ("total", "shard_size", "num_features")
SCHEMA_VERSION = 3
Clipped = tuple[int, int]
"""Number of pixels with a band beyond the ends of the stretch to uint8, and number of all pixels."""


@dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """Assignment of rows to shards, and the required identity of each shard."""

    folder: Path
    total: int
    shard_size: int
    num_features: int
    origin: FeatureOrigin

    @property
    def num_shards(self) -> int:
        return -(-self.total // self.shard_size)

    def rows(self, shard: int) -> int:
        """Return the number of rows of a shard; the last shard may be shorter."""
        return min(self.shard_size, self.total - shard * self.shard_size)

    def array(self, shard: int) -> Path:
        return self.folder / f"shard-{shard:05d}.npy"

    def thumbnails(self, shard: int) -> Path:
        return self.folder / f"thumbnails-{shard:05d}.npy"

    def structure(self, shard: int) -> Path:
        return self.folder / f"structure-{shard:05d}.npy"

    def sidecar(self, shard: int) -> Path:
        return self.array(shard).with_suffix(".json")

    def files(self, shard: int) -> tuple[Path, Path, Path, Path]:
        return self.array(shard), self.thumbnails(shard), self.structure(shard), self.sidecar(shard)

    def identity(self, shard: int) -> dict[str, Any]:
        """Return the sidecar content of a valid shard, except the hashes of the bytes."""
        return {
            "schema": SCHEMA_VERSION,
            "first": shard * self.shard_size,
            "n": self.rows(shard),
            "num_features": self.num_features,
            **{name: getattr(self.origin, name) for name in ("kind", *ORIGIN_KEYS)},
        }


def write_shard(plan: ShardPlan, shard: int, *arrays: NDArray[np.float32], clipped: Clipped) -> None:
    """Write features, thumbnails and structure of a shard, then their sidecar."""
    *paths, sidecar = plan.files(shard)
    sidecar.unlink(missing_ok=True)
    for path, array in zip(paths, arrays, strict=True):
        with atomic_replace(path) as temporary, temporary.open("wb") as file:
            np.save(file, array)
    hashes = dict(zip(HASH_KEYS, map(sha256_file, paths), strict=True))
    atomic_write(sidecar, dump_checksummed({**plan.identity(shard), **hashes, "clipped": clipped}))


def fault(plan: ShardPlan, shard: int) -> str | None:
    """Return the reason why a shard is unusable; None if it is valid."""
    *paths, sidecar = plan.files(shard)
    for path in paths:
        if not path.exists():
            return f"{path.name} does not exist"
    if not sidecar.exists():
        return "it has no sidecar: writing was interrupted"
    try:
        content = read_document(sidecar)
    except ValueError:
        return "its sidecar is damaged"
    for name, expected in plan.identity(shard).items():
        if content.get(name) != expected:
            return f"its {name} is {content.get(name)!r}, expected {expected!r}"
    if [content.get(name) for name in HASH_KEYS] != [sha256_file(path) for path in paths]:
        return "its bytes do not match the sha256 of its sidecar"
    return None


def clipped_share(plan: ShardPlan) -> float | None:
    """Return the share of pixels clipped by the conversion to uint8; None if a shard has no counts."""
    counts = [read_document(plan.sidecar(shard))["clipped"] for shard in range(plan.num_shards)]
    if not all(total for _, total in counts):
        return None
    return sum(int(clipped) for clipped, _ in counts) / sum(int(total) for _, total in counts)


def write_index(plan: ShardPlan) -> None:
    """Write the document that marks the folder as complete."""
    files = [read_document(plan.sidecar(shard))["file_sha256"] for shard in range(plan.num_shards)]
    sizes = {name: getattr(plan, name) for name in SIZES}
    index = {"schema": SCHEMA_VERSION, **sizes, "origin": asdict(plan.origin), "shard_sha256": files}
    atomic_write(plan.folder / INDEX_FILE, json.dumps(index, indent=1) + "\n")


def read_plan(folder: Path) -> ShardPlan:
    """Return the plan of a folder after verification of every shard."""
    fix = "rerun the features stage; it extracts only missing or damaged shards"
    try:
        index = parse_json(Manifest.verified(folder / INDEX_FILE).read_text())
        sizes = {name: index[name] for name in SIZES}
        plan = ShardPlan(folder=folder, **sizes, origin=FeatureOrigin(**index["origin"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise user_error(
            f"feature folder {folder} is incomplete",
            got=f"{type(error).__name__}: {error}",
            expected=f"a readable {INDEX_FILE}, which is written last",
            fix=fix,
        ) from error
    for shard in range(plan.num_shards):
        if reason := fault(plan, shard):
            raise user_error(
                f"feature shard {plan.array(shard)} cannot be used",
                got=reason,
                expected="an intact shard of the set in features.json",
                fix=fix,
            )
    return plan


def blocks(plan: ShardPlan) -> Sequence[NDArray[np.float32]]:
    """Return the shards as memory-mapped arrays (n, d), in order."""
    return [np.load(plan.array(shard), mmap_mode="r") for shard in range(plan.num_shards)]


def thumbnail_blocks(plan: ShardPlan) -> Sequence[NDArray[np.float32]]:
    """Return the thumbnails as memory-mapped arrays (n, C, S, S), in order."""
    return [np.load(plan.thumbnails(shard), mmap_mode="r") for shard in range(plan.num_shards)]


def structure_blocks(plan: ShardPlan) -> Sequence[NDArray[np.float32]]:
    """Return the statistics of `detectability` as memory-mapped arrays (n, s), in order."""
    return [np.load(plan.structure(shard), mmap_mode="r") for shard in range(plan.num_shards)]
