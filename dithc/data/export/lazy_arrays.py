"""Arrays that xarray reads from files on access, in any process that receives them.

Legend: n requested images.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from dithc.data.export.shards import Array, Key, Read, taken


@dataclass(eq=False)
class LazyArray(BackendArray):
    """Array with images along its first axis.

    Pickles and copies contain paths and settings, not pixels. `opener` is an importable function, called at the first
    read in each process with the absolute path of the manifest, the manifest and `arguments`. Another digest of the
    manifest is an error.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    path: Path
    digest: str
    opener: Callable[..., Read]
    arguments: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return LazyArray, (self.shape, self.dtype, self.path, self.digest, self.opener, self.arguments)

    @cached_property
    def _reader(self) -> Read:
        """Open the files. Raise UserError if the manifest was moved or replaced, or if a file is missing or damaged."""
        got = "no such file"
        if self.path.exists():
            manifest = Manifest.read(self.path)
            if manifest.digest == self.digest:
                return self.opener(self.path, manifest, *self.arguments)
            got = f"digest {manifest.digest}"
        raise user_error(
            f"{self.path} was moved or replaced after it was opened",
            got=got,
            expected=f"the manifest with digest {self.digest}",
            fix="open the manifest again, at its current path",
        )

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._index)

    def _index(self, key: tuple[Key, ...]) -> Array:
        images, *keys = (slice(axis, axis + 1) if isinstance(axis, int | np.integer) else axis for axis in key)
        rows, empty = np.arange(self.shape[0], dtype=np.int64)[images], np.empty((0, *self.shape[1:]), self.dtype)
        block = self._reader(rows, tuple(keys)) if len(rows) else taken(empty, tuple(keys))
        return block[tuple(0 if isinstance(axis, int | np.integer) else slice(None) for axis in key)]


def variable(
    dims: Sequence[str],
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    manifest: tuple[Path, Manifest],
    opener: Callable[..., Read],
    *arguments: Any,
) -> xarray.Variable:
    """Return an xarray variable of `LazyArray`; `manifest` is path and content."""
    array = LazyArray(shape, np.dtype(dtype), manifest[0].absolute(), manifest[1].digest, opener, arguments)
    return xarray.Variable(dims, indexing.LazilyIndexedArray(array))
