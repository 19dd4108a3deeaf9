"""Feature shards on disk: written whole, described by a sidecar written after them, checked before they are used again.

A folder holds `shard-00000.npy` (float32 (n, d)) with its sidecar `shard-00000.json`, `stats.npz`, and `features.json`, which is
written last of all.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.evaluate.statistics import Origin
from dithc.log import problem
from dithc.runs import Manifest, atomic_write, replacing, sha256_file
from dithc.sealed import documents, parse, seal

INDEX_FILE = "features.json"
STATISTICS_FILE = "stats.npz"
SCHEMA_VERSION = 1
Clipped = tuple[int, int]
"""Of some images, how many pixels a band of which was beyond the ends of the stretch to uint8, and how many there are."""
NOT_COUNTED: Clipped = (0, 0)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which rows go into which shard, and what every shard must say of itself."""

    folder: Path
    total: int
    shard_size: int
    num_features: int
    origin: Origin

    @property
    def num_shards(self) -> int:
        return -(-self.total // self.shard_size)

    def rows(self, shard: int) -> int:
        """Number of rows of a shard; the last one may be shorter."""
        return min(self.shard_size, self.total - shard * self.shard_size)

    def array(self, shard: int) -> Path:
        """Path of a shard's array."""
        return self.folder / f"shard-{shard:05d}.npy"

    def sidecar(self, shard: int) -> Path:
        """Path of a shard's description."""
        return self.array(shard).with_suffix(".json")

    def files(self, shard: int) -> tuple[Path, Path]:
        """Return the paths of a shard's array and of its description."""
        return self.array(shard), self.sidecar(shard)

    def identity(self, shard: int) -> dict[str, Any]:
        """What the sidecar of a usable shard says, apart from the hash of the bytes."""
        origin = asdict(self.origin)
        return {
            "schema": SCHEMA_VERSION,
            "first": shard * self.shard_size,
            "n": self.rows(shard),
            "num_features": self.num_features,
            **{name: origin[name] for name in ("kind", "sha256", "resize", "set_hash", "stretch")},
        }


def write_shard(plan: Plan, shard: int, features: NDArray[np.float32], *, clipped: Clipped = NOT_COUNTED) -> None:
    """Writes an array, then its sidecar, which says too how many pixels were clipped."""
    plan.sidecar(shard).unlink(missing_ok=True)
    with replacing(plan.array(shard)) as temporary, temporary.open("wb") as file:
        np.save(file, features)
    entry = {**plan.identity(shard), "file_sha256": sha256_file(plan.array(shard)), "clipped": list(clipped)}
    atomic_write(plan.sidecar(shard), seal(entry))


def fault(plan: Plan, shard: int) -> str | None:
    """Why a shard cannot be used as it lies there; None where it can."""
    array, sidecar = plan.array(shard), plan.sidecar(shard)
    if not sidecar.exists() or not array.exists():
        return "it is not there" if not array.exists() else "it has no sidecar: its writing was interrupted"
    try:
        found = documents.read(sidecar)
    except ValueError:
        return "its sidecar is damaged"
    for name, wanted in plan.identity(shard).items():
        if found.get(name) != wanted:
            return f"its {name} is {found.get(name)!r}, wanted {wanted!r}"
    if found.get("file_sha256") != sha256_file(array):
        return "its bytes do not have the sha256 of its sidecar"
    return None


def clipped_share(plan: Plan) -> float | None:
    """The share of pixels that were clipped on the way to uint8, of all shards; None where one does not say it."""
    counts = [documents.read(plan.sidecar(shard)).get("clipped", NOT_COUNTED) for shard in range(plan.num_shards)]
    if not all(of for _, of in counts):
        return None
    return sum(int(clipped) for clipped, _ in counts) / sum(int(of) for _, of in counts)


def write_index(plan: Plan) -> None:
    """Writes the document that makes the folder complete."""
    files = [documents.read(plan.sidecar(shard))["file_sha256"] for shard in range(plan.num_shards)]
    index = {
        "schema": SCHEMA_VERSION,
        "total": plan.total,
        "shard_size": plan.shard_size,
        "num_features": plan.num_features,
        "origin": asdict(plan.origin),
        "shard_sha256": files,
    }
    atomic_write(plan.folder / INDEX_FILE, json.dumps(index, indent=1) + "\n")


def read_plan(folder: Path) -> Plan:
    """Return the plan of a folder after verification of every shard; raise UserError if the folder is incomplete or damaged."""
    fix = "run the features stage again; it extracts only what is missing or damaged"
    try:
        index = parse(Manifest.whole(folder / INDEX_FILE).read_text())
        plan = Plan(
            folder=folder,
            total=index["total"],
            shard_size=index["shard_size"],
            num_features=index["num_features"],
            origin=Origin(**index["origin"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise problem(
            f"feature folder {folder} is not complete",
            got=f"{type(error).__name__}: {error}",
            expected=f"a readable {INDEX_FILE}, which is written last",
            fix=fix,
        ) from error
    for shard in range(plan.num_shards):
        if reason := fault(plan, shard):
            raise problem(
                f"feature shard {plan.array(shard)} cannot be used",
                got=reason,
                expected="a whole shard of the set that features.json describes",
                fix=fix,
            )
    return plan


def blocks(plan: Plan) -> Sequence[NDArray[np.float32]]:
    """The shards as memory-mapped arrays (n, d), in order."""
    return [np.load(plan.array(shard), mmap_mode="r") for shard in range(plan.num_shards)]
