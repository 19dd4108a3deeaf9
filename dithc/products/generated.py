"""Generated images of an evaluation, read back in the units of their data set.

Legend: N images, C bands, H, W image.
"""

import re
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dithc.data import Rows, Tiles, products
from dithc.log import problem
from dithc.products.inputs import needed_input
from dithc.products.lazy import Joined
from dithc.runs import Manifest
from dithc.sealed import documents

PICTURES = re.compile(r"sd-vae-|[a-z]+-display-")  # ids of codecs that see and give the display bands as they are shown


class Generated:
    """The samples of a manifest.

    Args:
        path: path of the manifest.
        tiles: path of the tiles' manifest, if it is known.

    Attributes:
        path: of the manifest.
        tiles: path of the manifest of the tiles.
        manifest: of the stage `sample`.
        info: of the data set (dataset.json) whose scaling they have.
        stretch: the data set's fixed maps.
        bands: theirs.
        shape: (N, C, H, W).
        count: N.

    Raises:
        UserError: the manifest, or the tiles that it was made with, are missing or damaged, or contradict each other.
    """

    def __init__(self, path: Path, *, tiles: Path | None = None) -> None:
        self.path, self.manifest = path, Manifest.read(path, stage="sample")
        self.tiles, _ = needed_input(path, self.manifest, stage="tiles", at=tiles)
        data = Tiles(self.tiles.parent)
        self.info, self.stretch = data.info, data.stretch
        self._pictures = PICTURES.match(str(self.manifest.numbers.get("codec", ""))) is not None
        self.bands = products.Bands.displayed(self.info) if self._pictures else products.Bands.of(self.info)
        names = self._named(".npy")
        if not names:
            raise problem(
                f"{path} lists no images in the units of its data set",
                got=f"{len(self.manifest.files)} other files",
                expected="shard-00000.npy and so on",
                fix="run `dithc sample` again",
            )
        self._paths = [path.parent / name for name in names]
        self._joined = Joined(self._paths)
        self.shape, self.count = self._joined.shape, self._joined.shape[0]
        if self.shape[1] != len(self.bands.names):
            raise problem(
                f"the images of {path} are of other bands than their data set",
                got=f"{self.shape[1]} bands",
                expected=f"{len(self.bands.names)} ({', '.join(self.bands.names)})",
                fix="run `dithc sample` again",
            )

    @property
    def are_scenes(self) -> bool:
        """Whether they are larger than the tiles of their data set, and are read by rows."""
        return self.manifest.numbers.get("windows") is not None

    def physical(self, rows: Rows, lines: slice | None = None) -> npt.NDArray[np.float32]:
        """Images (n, C, H, W), or some lines of them, in the units of the data set.

        That is the inverse of its scaling to [-1, 1]; of a picture, of its display. Beyond [-1, 1], which the scaling clips on
        the way in, it goes on as a straight line.
        """
        if lines is None:
            scaled = self._joined.read(rows, ())
        else:  # mapped anew each time, so that what was read of a scene does not stay
            scaled = Joined(self._paths).read(rows, (slice(None), lines))
        if self._pictures:
            return self.bands.physical(scaled.astype(np.float32) * np.float32(127.5) + np.float32(127.5))
        return self.stretch.unscale(scaled)

    @cached_property
    def labels(self) -> npt.NDArray[np.int32]:
        """Class of each image (N,)."""
        sidecars = [documents.read(Manifest.whole(self.path.parent / name)) for name in self._named(".json")]
        return np.concatenate([np.array(sidecar["labels"], np.int32) for sidecar in sidecars])

    def _named(self, suffix: str) -> list[str]:
        names = [entry["path"] for entry in self.manifest.files]
        return sorted(name for name in names if name.startswith("shard-") and name.endswith(suffix))
