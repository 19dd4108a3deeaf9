"""Arrays that xarray reads from files on access, in any process that receives them.

Legend: n requested images.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray
from xarray.backends import BackendArray
from xarray.core import indexing

from dithc.core.artifacts import Manifest
from dithc.core.logging import user_error
from dithc.data import Rows, products

Array = npt.NDArray[Any]
Key = int | slice | Array
Read = Callable[[Rows, tuple[Key, ...]], Array]
"""(numbers of images (n), index of each other axis) -> (n, ...)."""


class LazyArray(BackendArray):
    """Array with images along its first axis.

    Pickles and copies contain paths and settings, not pixels. `opener` is an importable function, called at the first
    read in each process with the absolute path of the manifest, the manifest and `arguments`. Another digest of the
    manifest is an error.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: npt.DTypeLike,
        path: Path,
        digest: str,
        opener: Callable[..., Read],
        *arguments: Any,
    ) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._path, self._digest, self._opener, self._arguments = path, digest, opener, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return LazyArray, (self.shape, self.dtype, self._path, self._digest, self._opener, *self._arguments)

    @cached_property
    def _read(self) -> Read:
        """Open the files. Raise UserError if the manifest was moved or replaced, or if a file is missing or damaged."""
        got = "no such file"
        if self._path.exists():
            manifest = Manifest.read(self._path)
            if manifest.digest == self._digest:
                return self._opener(self._path, manifest, *self._arguments)
            got = f"digest {manifest.digest}"
        raise user_error(
            f"{self._path} was moved or replaced after it was opened",
            got=got,
            expected=f"the manifest with digest {self._digest}",
            fix="open the manifest again, at its current path",
        )

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._index)

    def _index(self, key: tuple[Key, ...]) -> Array:
        first, *rest = (slice(one, one + 1) if isinstance(one, int | np.integer) else one for one in key)
        rows = np.arange(self.shape[0], dtype=np.int64)[first]
        block = (
            self._read(rows, tuple(rest))
            if len(rows)
            else taken(np.empty((0, *self.shape[1:]), self.dtype), tuple(rest))
        )
        return block[tuple(0 if isinstance(one, int | np.integer) else slice(None) for one in key)]


def variable(
    dims: Sequence[str],
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    manifest: tuple[Path, Manifest],
    opener: Callable[..., Read],
    *arguments: Any,
) -> xarray.Variable:
    """Return an xarray variable of `LazyArray`; `manifest` is path and content."""
    array = LazyArray(shape, dtype, manifest[0].absolute(), manifest[1].digest, opener, *arguments)
    return xarray.Variable(dims, indexing.LazilyIndexedArray(array))


def taken(block: Array, rest: tuple[Key, ...]) -> Array:
    for axis, key in enumerate(rest, start=1):
        block = block[(slice(None),) * axis + (key,)]
    return block


class ConcatenatedArrays:
    """Concatenation of arrays in several files along the first axis.

    The first read of a file compares its bytes with the manifest.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths, self._parts = paths, [products.open_npy(path) for path in paths]
        self._ends = np.cumsum([len(part) for part in self._parts])
        self.shape = (int(self._ends[-1]), *self._parts[0].shape[1:])
        self.dtype = self._parts[0].dtype

    def read(self, rows: Rows, rest: tuple[Key, ...]) -> Array:
        """Return images in the requested order, indexed by `rest` along the other axes."""
        places = np.searchsorted(self._ends, rows, side="right")
        for place in np.unique(places):
            Manifest.whole(self._paths[place])
        starts = [end - len(part) for end, part in zip(self._ends, self._parts, strict=True)]
        blocks = [
            taken(self._parts[place][row - starts[place]][None], rest) for place, row in zip(places, rows, strict=True)
        ]
        return np.concatenate(blocks) if blocks else taken(np.empty((0, *self.shape[1:]), self.dtype), rest)
