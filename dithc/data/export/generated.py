"""Generated images of an evaluation in the units of their dataset.

Legend: N images, C bands, H, W image.
"""

import re
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dithc.core.artifacts import Manifest
from dithc.core.integrity import json_documents
from dithc.core.logging import user_error
from dithc.data import Rows, Tiles, products
from dithc.data.export.find_inputs import needed_input
from dithc.data.export.lazy_arrays import ConcatenatedArrays

PICTURES = re.compile(r"sd-vae-|[a-z]+-display-")  # ids of codecs that work on the displayed bands


class GeneratedImages:
    """Samples of a manifest.

    Attributes:
        path: Path of the manifest.
        tiles: Path of the manifest of the tiles; None searches for it.
        info: Content of dataset.json; it defines the scaling of the samples.
        stretch: Fixed maps of the dataset.
        shape: (N, C, H, W).

    Raises:
        UserError: The manifest or the tiles are missing or damaged, or contradict each other.
    """

    def __init__(self, path: Path, *, tiles: Path | None = None) -> None:
        self.path, self.manifest = path, Manifest.read(path, stage="sample")
        self.tiles, _ = needed_input(path, self.manifest, stage="tiles", at=tiles)
        data = Tiles(self.tiles.parent)
        self.info, self.stretch = data.info, data.stretch
        self._pictures = PICTURES.match(str(self.manifest.numbers.get("codec", ""))) is not None
        self.bands = products.Bands.of(self.info, displayed=self._pictures)
        names = self._named(".npy")
        if not names:
            raise user_error(
                f"{path} lists no images in the units of its dataset",
                got=f"{len(self.manifest.files)} other files",
                expected="shard-00000.npy, shard-00001.npy, ...",
                fix="run `dithc sample` again",
            )
        self._paths = [path.parent / name for name in names]
        self._joined = ConcatenatedArrays(self._paths)
        self.shape, self.count = self._joined.shape, self._joined.shape[0]
        if self.shape[1] != len(self.bands.names):
            raise user_error(
                f"the images of {path} and their dataset have different bands",
                got=f"{self.shape[1]} bands",
                expected=f"{len(self.bands.names)} ({', '.join(self.bands.names)})",
                fix="run `dithc sample` again",
            )

    @property
    def are_scenes(self) -> bool:
        """True for images larger than the tiles of their dataset, read by rows."""
        return self.manifest.numbers.get("windows") is not None

    def physical(self, rows: Rows, lines: slice | None = None) -> npt.NDArray[np.float32]:
        """Return images (n, C, H, W), or some of their lines, in the units of the dataset.

        The conversion inverts the scaling of the dataset to [-1, 1], or the display stretch for codecs of displayed
        bands. It is linear beyond [-1, 1].
        """
        if lines is None:
            scaled = self._joined.read(rows, ())
        else:  # map the files per call, so that memory does not keep the lines of a scene
            scaled = ConcatenatedArrays(self._paths).read(rows, (slice(None), lines))
        if self._pictures:
            return self.bands.physical(scaled.astype(np.float32) * np.float32(127.5) + np.float32(127.5))
        return self.stretch.unscale(scaled)

    @cached_property
    def labels(self) -> npt.NDArray[np.int32]:
        """Class of each image (N,)."""
        sidecars = [json_documents.read(Manifest.whole(self.path.parent / name)) for name in self._named(".json")]
        return np.concatenate([np.array(sidecar["labels"], np.int32) for sidecar in sidecars])

    def _named(self, suffix: str) -> list[str]:
        names = [entry["path"] for entry in self.manifest.files]
        return sorted(name for name in names if name.startswith("shard-") and name.endswith(suffix))
