"""How scenes become tiles: their grid, their splits, and the numbers and pictures that are made of their pixels."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dithc.config.base import Band, Fraction, Settings, Size

Shown = Annotated[float, Field(ge=-(10.0**9), le=10.0**9)]


class Tiles(Settings):
    """How scenes are cut."""

    size: Size = 256
    """Side of a tile in pixels of the common grid."""
    stride: Size | None = None
    """Distance of neighbouring tiles in pixels; the tile size if not given (no overlap). Smaller for more, shifted tiles; no
    pixel of a place is in tiles of two splits."""
    min_valid: Fraction = 0.95
    """A tile with a smaller valid share is rejected."""
    max_cloud: Fraction = 0.1
    """A tile with a larger cloudy share is rejected, where the product has a cloud mask."""
    min_std: float = Field(default=0.0, ge=0.0, le=10.0**9)
    """A tile none of whose bands varies by more than this (in stored units) is rejected as constant."""


class Split(Settings):
    """How tiles are split by place: all dates and overlaps of a place go together."""

    train: Fraction = 0.9
    """Share of cells for training."""
    val: Fraction = 0.05
    """Share of cells for validation; the rest is for test."""
    cell_tiles: Size = 4
    """Side of a geographic cell in tiles; a cell is never split, a tile across two splits is rejected. With `cell_m`, of scenes
    without georeference alone."""
    cell_m: float | None = Field(default=None, ge=10.0, le=1_000_000.0)
    """Side of a geographic cell in metres. Cells are then those of one grid over the Earth, the same for all zones, pixel sizes
    and dates, and a tile across two splits is moved, by half its side at most, to where it is in one."""
    buffer_m: float = Field(default=0.0, ge=0.0, le=100_000.0)
    """Metres that lie between tiles of two splits, at least; needs `cell_m`."""
    duplicates: Literal["exact", "near"] = "exact"
    """Tiles that go to one split wherever they are: of the same pixels, or also those that look the same, brighter or compressed
    otherwise; with `near`, the cells of such tiles are joined."""

    @model_validator(mode="after")
    def _at_most_all(self) -> "Split":
        if self.train + self.val > 1.0:
            raise ValueError(f"train + val is {self.train + self.val}, more than 1")
        return self

    @model_validator(mode="after")
    def _buffer_in_metres(self) -> "Split":
        if self.buffer_m and self.cell_m is None:
            raise ValueError("`buffer_m` has no effect without cells in metres: set `cell_m` too")
        return self


class Scaling(Settings):
    """The fixed affine map of each band to [-1, 1] that the codec sees; from train tiles only, never per image."""

    low_percentile: float = Field(default=1.0, ge=0.0, lt=50.0)
    """Percentile of the band that becomes -1."""
    high_percentile: float = Field(default=99.0, gt=50.0, le=100.0)
    """Percentile of the band that becomes +1."""


class Rendering(Settings):
    """The fixed stretch to 8-bit RGB, of real and generated images alike. Scores are of images that are rendered so: other bands
    or ends are another FID, of the same images."""

    bands: tuple[Band, Band, Band]
    """Bands shown as red, green and blue."""
    low: Shown | tuple[Shown, Shown, Shown]
    """Value (in the units of the data set) that becomes 0; one, or one for each of red, green and blue."""
    high: Shown | tuple[Shown, Shown, Shown]
    """Value that becomes 255; one, or one for each of red, green and blue. What is above it is cut off, in pictures and
    in all that is scored (`clipped` of a score says how much): another `high` is another FID of the same images."""

    @model_validator(mode="after")
    def _rises(self) -> "Rendering":
        ends = [end if isinstance(end, tuple) else (end,) * 3 for end in (self.low, self.high)]
        if any(low >= high for low, high in zip(*ends, strict=True)):
            raise ValueError(f"`low` {self.low} is not below `high` {self.high}")
        return self
