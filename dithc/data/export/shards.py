"""Arrays in several files, read by image.

Legend: n requested images.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dithc.core.artifacts import Manifest
from dithc.data import Rows, products

Array = npt.NDArray[Any]
Key = int | slice | Array
Read = Callable[[Rows, tuple[Key, ...]], Array]
"""(numbers of images (n), index of each other axis) -> (n, ...)."""


def taken(block: Array, keys: tuple[Key, ...]) -> Array:
    for axis, key in enumerate(keys, start=1):
        block = block[(slice(None),) * axis + (key,)]
    return block


def shard_paths(path: Path, manifest: Manifest, *, suffix: str = ".npy") -> list[Path]:
    """Return the shards that a manifest lists, in order."""
    names = sorted(entry["path"] for entry in manifest.files)
    return [path.parent / name for name in names if name.startswith("shard-") and name.endswith(suffix)]


class ConcatenatedArrays:
    """Concatenation of arrays in several files along the first axis.

    The first read of a file compares its bytes with the manifest.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths, self._arrays = paths, [products.open_npy(path) for path in paths]
        self._ends = np.cumsum([len(array) for array in self._arrays])
        self.shape = (int(self._ends[-1]), *self._arrays[0].shape[1:])
        self.dtype = self._arrays[0].dtype

    def read(self, rows: Rows, keys: tuple[Key, ...]) -> Array:
        """Return images in the requested order, indexed by `keys` along the other axes."""
        parts = np.searchsorted(self._ends, rows, side="right")
        for part in np.unique(parts):
            Manifest.verified(self._paths[part])
        starts = [end - len(array) for end, array in zip(self._ends, self._arrays, strict=True)]
        blocks = [taken(self._arrays[i][row - starts[i]][None], keys) for i, row in zip(parts, rows, strict=True)]
        return np.concatenate(blocks) if blocks else taken(np.empty((0, *self.shape[1:]), self.dtype), keys)
