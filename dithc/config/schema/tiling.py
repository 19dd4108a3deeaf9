"""Settings of tiles: grid, splits, scaling and rendering."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from dithc.config.schema.base import Band, Fraction, Settings, Size

Shown = Annotated[float, Field(ge=-(10.0**9), le=10.0**9)]


class TilesConfig(Settings):
    """Size, distance and rejection of tiles."""

    size: Size = 256
    """Side of a tile in pixels of the common grid."""
    stride: Size | None = None
    """Distance of neighboring tiles in pixels; the tile size if unset (no overlap). A smaller stride gives more,
    overlapping tiles. Tiles of two splits never share a location."""
    min_valid_fraction: Fraction = 0.95
    """Smallest share of valid pixels. Other tiles are rejected."""
    max_cloud_fraction: Fraction = 0.1
    """Largest share of cloudy pixels, if the product has a cloud mask. Other tiles are rejected."""
    min_std: float = Field(default=0.0, ge=0.0, le=10.0**9)
    """Smallest standard deviation in stored units. A tile is rejected as constant if no band exceeds it."""
    clip_fraction: float = Field(default=0.01, ge=0.0, le=0.1)
    """Share of the training values of a band below -1, and above 1, after scaling. These values are clipped, so that no model
    generates them. 0 scales from the minimum to the maximum, for bands without outliers and for rare extremes."""
    masks: bool = False
    """Store the clear pixels of each tile (neither cloudy nor without data), for `runs.*.masked_training`. Statistics, and
    with them the scaling, then cover clear pixels only, and tiles without a clear pixel are rejected. A smaller
    `min_valid_fraction` and a larger `max_cloud_fraction` admit incomplete tiles."""


class SplitConfig(Settings):
    """Assignment of tiles to splits by location. All dates and overlapping tiles of a location are in one split."""

    train_fraction: Fraction = 0.9
    """Share of cells for training."""
    val_fraction: Fraction = 0.05
    """Share of cells for validation; the remaining cells are for test."""
    cell_size_tiles: Size = 4
    """Side of a geographic cell in tiles. A cell belongs to one split; a tile across two splits is rejected. With
    `cell_size_m`, this applies to scenes without georeference only."""
    cell_size_m: float | None = Field(default=None, ge=10.0, le=1_000_000.0)
    """Side of a geographic cell in meters. The cells then form one grid over the Earth for all zones, pixel sizes and
    dates. A tile across two splits is moved into one of them, by at most half its side."""
    buffer_m: float = Field(default=0.0, ge=0.0, le=100_000.0)
    """Smallest distance in meters between tiles of two splits; requires `cell_size_m`."""
    duplicates: Literal["exact", "near"] = "exact"
    """Tiles that are assigned to one split at any location. exact: tiles with the same pixels; near: also tiles that
    differ in brightness or compression. With `near`, the cells of these tiles are merged."""

    def _faults(self) -> Iterator[str]:
        if self.train_fraction + self.val_fraction > 1.0:
            yield f"train + val is {self.train_fraction + self.val_fraction}, more than 1"
        if self.buffer_m and self.cell_size_m is None:
            yield "`buffer_m` has no effect without cells in meters: set `cell_size_m` too"


class RenderingConfig(Settings):
    """Fixed stretch to 8-bit RGB for real and generated images. Scores use rendered images, so other bands or limits
    change the FID of the same images."""

    bands: tuple[Band, Band, Band]
    """Bands displayed as red, green and blue."""
    low: Shown | tuple[Shown, Shown, Shown]
    """Value in the units of the dataset that becomes 0; one, or one for each of red, green and blue."""
    high: Shown | tuple[Shown, Shown, Shown]
    """Value that becomes 255; one, or one for each of red, green and blue. Higher values are clipped in images and
    scores (`clipped` of a score is their share), so another `high` changes the FID of the same images."""

    def _faults(self) -> Iterator[str]:
        ends = [end if isinstance(end, tuple) else (end,) * 3 for end in (self.low, self.high)]
        if any(low >= high for low, high in zip(*ends, strict=True)):
            yield f"`low` {self.low} is not below `high` {self.high}"
