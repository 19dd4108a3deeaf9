"""Shards of generated images on disk: two arrays and a sidecar that describes them, validated before use.

Legend: n images of a shard; C bands, H, W image.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dithc.core.artifacts import Manifest, atomic_replace, atomic_write, sha256_file
from dithc.core.integrity import dump_checksummed, load_checksummed, require_regular_file
from dithc.core.logging import UserError, unwritten, user_error

# Small enough that ranks share a few hundred images evenly and a killed job loses minutes; 50,000 images are 782
# shards.
SHARD_IMAGES = 64
LARGEST_FP16 = 65504.0


@dataclass(frozen=True, kw_only=True)
class ImageShards:
    """Shards of one sampling run."""

    folder: Path
    total: int  # number of images
    identity: str  # digest of all settings that determine image i
    each: int = SHARD_IMAGES  # images per shard; 1 for scenes

    @property
    def count(self) -> int:
        return -(-self.total // self.each)

    def indices(self, shard: int) -> range:
        return range(shard * self.each, min((shard + 1) * self.each, self.total))

    def path(self, shard: int, *, kind: str = "shard") -> Path:
        """Return the array path of a shard: `shard` holds scaled units, `rgb` the display."""
        return self.folder / f"{kind}-{shard:05d}.npy"

    def sidecar(self, shard: int) -> Path:
        return self.path(shard).with_suffix(".json")

    def read_sidecar(self, shard: int) -> dict[str, Any]:
        return load_checksummed(require_regular_file(self.sidecar(shard)).read_text())

    def fault(self, shard: int) -> str | None:
        """Return the reason why a shard is invalid, "" if it does not exist, or None if it is valid."""
        if not self.sidecar(shard).exists():
            return "" if not self.path(shard).exists() else "it has no sidecar: its writing was interrupted"
        try:
            sidecar = self.read_sidecar(shard)
            if sidecar["identity"] != self.identity:
                return "it has other settings, weights or tiles"
            if (sidecar["first"], sidecar["images"]) != (self.indices(shard).start, len(self.indices(shard))):
                return f"it holds {sidecar['images']} images from {sidecar['first']}, but another number is requested"
            for entry in sidecar["files"]:
                path = self.folder / entry["path"]
                if not path.exists() or sha256_file(path) != entry["sha256"]:
                    return f"{path.name} is missing, cut short or altered"
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"its sidecar is damaged ({error})"
        return None

    def write(
        self,
        shard: int,
        *,
        images: npt.NDArray[np.float32],
        rgb: npt.NDArray[np.uint8],
        labels: list[int],
        seconds: float,
        **more: Any,
    ) -> None:
        """Write images (n, C, H, W) in scaled units and their display (n, 3, H, W), then the sidecar with `seconds` and `more`.

        Raises UserError if an image is not finite or the disk is full; finished shards stay intact.
        """
        self.check(shard, images)
        try:
            self.sidecar(shard).unlink(missing_ok=True)
            for kind, array in (("shard", as_stored(images)), ("rgb", rgb)):
                with atomic_replace(self.path(shard, kind=kind)) as temporary, temporary.open("wb") as file:
                    np.save(file, array)
            self.finish(shard, shape=images.shape[1:], labels=labels, seconds=seconds, **more)
        except OSError as error:
            raise self.unwritten(shard, error) from error

    def check(self, shard: int, images: npt.NDArray[np.float32]) -> None:
        """Raise UserError if images (n, C, rows, W) of a shard, or rows of them, are not finite."""
        if not np.isfinite(images).all():
            index = self.indices(shard)[int(np.argmin(np.isfinite(images).all(axis=(1, 2, 3))))]
            raise user_error(
                f"image {index} is not finite",
                got="NaN or infinity from the network or the decoder",
                expected="finite numbers",
                fix="increase the steps or lower the guidance; check the last training losses",
            )

    def finish(self, shard: int, *, shape: Sequence[int], labels: list[int], seconds: float, **more: Any) -> None:
        """Write the sidecar of a shard with finished arrays: image shape (C, H, W), labels and further entries."""
        arrays = [self.path(shard), self.path(shard, kind="rgb")]
        entries = {
            "identity": self.identity,
            "first": self.indices(shard).start,
            "images": len(self.indices(shard)),
            "shape": list(shape),
            "labels": labels,
            "seconds": round(seconds, 3),
            **more,
            "files": Manifest.entries(self.folder, arrays),
        }
        atomic_write(self.sidecar(shard), dump_checksummed(entries))

    def unwritten(self, shard: int, error: OSError) -> UserError:
        return unwritten(f"shard {shard}", self.folder, error, kept="finished shards are kept")

    def files(self) -> list[Path]:
        shards = range(self.count)
        arrays = [self.path(shard, kind=kind) for shard in shards for kind in ("shard", "rgb")]
        return [*arrays, *map(self.sidecar, shards)]


def as_stored(images: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    return np.clip(images, -LARGEST_FP16, LARGEST_FP16).astype(np.float16)


def batches(indices: Sequence[int], size: int) -> list[Sequence[int]]:
    return [indices[start : start + size] for start in range(0, len(indices), size)]
