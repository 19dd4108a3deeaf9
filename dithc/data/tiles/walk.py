"""Iteration over the tiles of all scenes, by parts of stacks: placed, cut, measured and filtered."""

from collections.abc import Iterator
from math import prod

from dithc.config import datasets
from dithc.data.npy import release
from dithc.data.places import Placed, Splitter, place_tiles
from dithc.data.scene import Reason
from dithc.data.scenes import Scenes
from dithc.data.tiles.windows import Cut, Measured, covered_length, cuts, measure


class Walk:
    """Iterator over the tiles of scenes by the sections `tiles` and `split`.

    Attributes:
        pixels: Pixels of all scenes so far.
        outside: Pixels that no tile of the lattice covers.
        moved: Tiles that were moved into one split.
    """

    def __init__(self, settings: datasets.Tiles, source: Scenes, splitter: Splitter) -> None:
        self.settings, self.source, self.splitter = settings, source, splitter
        self.stride = settings.stride or settings.size
        self.pixels = self.outside = self.moved = 0

    def stack(self, number: int) -> Iterator[tuple[Cut, Measured]]:
        """Yield the tiles of a stack; none if its scenes are smaller than a tile."""
        pixels, mask = self.source.stack(number)
        size = self.settings.size
        covered = prod(covered_length(side, size=size, stride=self.stride) for side in mask.shape[1:])
        self.pixels += mask.size
        self.outside += mask.size - len(mask) * covered
        if covered:
            first = self.source.firsts[number]
            places = (self._placed(first + row, mask.shape[1:]) for row in range(len(pixels)))
            for cut in cuts(pixels, mask, places, size=size, stride=self.stride):
                measured = measure(cut)
                release(pixels)
                yield cut, measured

    def _placed(self, position: int, shape: tuple[int, int]) -> Placed:
        columns = self.source.columns
        transform = columns["transform"][position]
        placed = place_tiles(
            self.splitter,
            shape,
            size=self.settings.size,
            stride=self.stride,
            place=columns["scene_id"][position] if transform is None else columns["crs"][position],
            transform=transform and tuple(transform),
        )
        self.moved += placed.moved
        return placed

    def reason(self, measured: Measured, i: int) -> Reason | None:
        """Return the reason why a tile is rejected in any split, or None."""
        settings = self.settings
        if measured.valid_frac[i] < settings.min_valid or not measured.valid_frac[i]:
            return Reason.TOO_LITTLE_VALID
        if measured.cloud_frac[i] > settings.max_cloud:
            return Reason.TOO_CLOUDY
        return Reason.CONSTANT if measured.std[i].max() <= settings.min_std else None
