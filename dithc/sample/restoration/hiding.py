"""Pixels withheld from a restoration: generated shapes, or the shapes of real gaps.

Legend: H, W image, h, w window.
"""

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter
from scipy.special import ndtri

from dithc.config import evaluations
from dithc.core.logging import user_error
from dithc.data import products
from dithc.sample.seeds import noise_by_place

Array = npt.NDArray[Any]
BLOB_SIGMA = 8.0  # pixels; standard deviation of the filter of generated gaps, which are some 40 pixels wide
TRIES = 2000  # random crops with another share than requested
MEASURED = 256  # rows and columns that determine the share of a larger image


class Hiding:
    """Hidden pixels of images; (seed, number of the image, place) determines them."""

    def __init__(self, settings: evaluations.HideConfig, *, seed: int, masks: Path | None) -> None:
        """Open the scenes with the gaps that hide pixels; None generates shapes."""
        self._settings, self._seed, self._folder = settings, seed, masks
        self._scenes = None if masks is None else products.Scenes(masks)
        self._crop = lru_cache(maxsize=256)(self._draw)

    def window(self, number: int, shape: tuple[int, int], rows: slice, columns: slice) -> Array:
        """Return a mask (h, w) of the hidden pixels in a window of an image (H, W); the window may exceed the image."""
        places = [np.arange(part.start, part.stop) for part in (rows, columns)]
        if self._scenes is not None:
            scene, *starts = self._crop(number, shape)
            return self._gaps(scene, starts, places)
        pad = math.ceil(4 * BLOB_SIGMA) + 1
        size = 1, len(places[0]) + 2 * pad, len(places[1]) + 2 * pad
        noise = noise_by_place(self._seed, [number], size, origin=(rows.start, columns.start))(0)[0, 0].numpy()
        smooth = gaussian_filter(noise.astype(np.float64), BLOB_SIGMA)[pad:-pad, pad:-pad]
        return np.asarray(smooth * 2 * BLOB_SIGMA * math.sqrt(math.pi) > -ndtri(self._settings.share))

    def _gaps(self, scene: int, starts: list[int], places: list[Array]) -> Array:
        """Return the gaps (h, w) of a scene at places of an image, continued by reflection from `starts`."""
        assert self._scenes is not None
        mask = self._scenes.mask_of(scene)
        found = []
        for start, place, side in zip(starts, places, mask.shape, strict=True):
            position = (start + place) % (2 * side)
            found.append(np.minimum(position, 2 * side - 1 - position))
        return np.asarray(mask[np.ix_(*found)] != products.Mask.VALID)

    def _draw(self, number: int, shape: tuple[int, int]) -> tuple[int, int, int]:
        """Draw a scene and the first row and column of a crop with a hidden share in the range.

        Starts in the second half of the period of the reflection mirror the crop. A crop of an image that fits into the
        scene does not cross its border.

        Raises:
            UserError: No crop has a share in the range.
        """
        assert self._scenes is not None
        low, high = self._settings.dataset_share
        places = [np.linspace(0, side - 1, min(side, MEASURED)).round().astype(int) for side in shape]
        for attempt in range(TRIES):
            sequence = np.random.SeedSequence([self._seed, number], spawn_key=(attempt,))
            first, *words = (int(word) for word in sequence.generate_state(3, np.uint64))
            scene = first % self._scenes.count
            starts = []
            for word, side, length in zip(words, self._scenes.mask_of(scene).shape, shape, strict=True):
                choices = side - length + 1 if length <= side else side
                half, start = divmod(word % (2 * choices), choices)
                starts.append(start + half * side)
            if low <= self._gaps(scene, starts, places).mean() <= high:
                return scene, starts[0], starts[1]
        raise user_error(
            f"the gaps of the scenes in {self._folder} have no matching crop",
            got=f"{self._scenes.count} scenes, {TRIES} crops of {shape[1]} x {shape[0]} pixels",
            expected=f"a crop with a hidden share from {low:g} to {high:g}",
            fix="set `hide.dataset` to a dataset with other gaps, or widen `hide.dataset_share`",
        )
