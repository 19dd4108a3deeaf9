"""Generated images of an evaluation in the units of their dataset.

Legend: N images, C bands, H, W image.
"""

import re
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dithc.core.artifacts import Manifest
from dithc.core.integrity import read_document
from dithc.core.logging import user_error
from dithc.data import Rows, Tiles, products
from dithc.data.export.find_inputs import require_input
from dithc.data.export.shards import ConcatenatedArrays, shard_paths

DISPLAY_CODECS = re.compile(r"sd-vae-|[a-z]+-display-")  # ids of codecs that work on the displayed bands


class GeneratedImages:
    """Samples of a manifest.

    Attributes:
        path: Path of the manifest.
        tiles: Path of the manifest of the tiles; None searches for it.
        info: Content of dataset.json; it defines the scaling of the samples.
        stretch: Fixed maps of the dataset.
        shape: (N, C, H, W).
        are_scenes: True for images larger than the tiles of their dataset, read by rows.

    Raises:
        UserError: The manifest or the tiles are missing or damaged, or contradict each other.
    """

    def __init__(self, path: Path, *, tiles: Path | None = None) -> None:
        self.path, self.manifest = path, Manifest.read(path, stage="sample")
        self.tiles, _ = require_input(path, self.manifest, stage="tiles", hint=tiles)
        data = Tiles(self.tiles.parent)
        self.info, self.stretch = data.info, data.stretch
        self._is_display = DISPLAY_CODECS.match(str(self.manifest.summary.get("codec", ""))) is not None
        self.bands = products.Bands.of(self.info, displayed=self._is_display)
        self.are_scenes = self.manifest.summary.get("windows") is not None
        self._paths = shard_paths(path, self.manifest)
        if not self._paths:
            raise user_error(
                f"{path} lists no images in the units of its dataset",
                got=f"{len(self.manifest.files)} other files",
                expected="shard-00000.npy, shard-00001.npy, ...",
                fix="run `dithc sample` again",
            )
        self._array = ConcatenatedArrays(self._paths)
        self.shape, self.count = self._array.shape, self._array.shape[0]
        if self.shape[1] != len(self.bands.names):
            raise user_error(
                f"the images of {path} and their dataset have different bands",
                got=f"{self.shape[1]} bands",
                expected=f"{len(self.bands.names)} ({', '.join(self.bands.names)})",
                fix="run `dithc sample` again",
            )

    def physical(self, rows: Rows, lines: slice | None = None) -> npt.NDArray[np.float32]:
        """Return images (n, C, H, W), or some of their lines, in the units of the dataset.

        The conversion inverts the scaling of the dataset to [-1, 1], or the display stretch for codecs of displayed
        bands. It is linear beyond [-1, 1].
        """
        if lines is None:
            scaled = self._array.read(rows, ())
        else:  # map the files per call, so that memory does not keep the lines of a scene
            scaled = ConcatenatedArrays(self._paths).read(rows, (slice(None), lines))
        if self._is_display:
            return self.bands.physical(scaled.astype(np.float32) * np.float32(127.5) + np.float32(127.5))
        return self.stretch.unscale(scaled)

    @cached_property
    def labels(self) -> npt.NDArray[np.int32]:
        """Class of each image (N,)."""
        paths = shard_paths(self.path, self.manifest, suffix=".json")
        sidecars = [read_document(Manifest.verified(path)) for path in paths]
        return np.concatenate([np.array(sidecar["labels"], np.int32) for sidecar in sidecars])
