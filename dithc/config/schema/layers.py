"""Settings of layers: bands of other rasters or fields that are appended to each scene of a dataset."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from dithc.config.schema.base import Band, Place, Settings, Title

# Limits in digital numbers or reflectance: far beyond valid values, and small enough for exact differences in fp32.
Coefficient = Annotated[float, Field(ge=-(10.0**6), le=10.0**6)]
Pattern = Annotated[str, Field(min_length=1, max_length=500)]
FieldBand = Annotated[Band, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*(@-?[0-9]+(\.[0-9]+)?)?$")]


class _Layer(Settings):
    path: Place
    """File, or folder with the files of the layer, relative to the working folder."""
    include: list[Pattern] = Field(default=[], max_length=1000)
    """Patterns of names, or of paths below `path`, as in a source. Only matches are read."""
    exclude: list[Pattern] = Field(default=[], max_length=1000)
    """Patterns of files that are not read."""
    match: Literal["place", "name"] = "place"
    """Files used for a scene. place: all files that overlap it, the first in the order of names where several have a value;
    name: only files with a name that contains the scene's name, or is contained in it."""
    resampling: Literal["bilinear", "nearest"] = "bilinear"
    """Resampling to the grid of the scene. nearest keeps classes."""
    nodata: float | None = None
    """Stored value of pixels without data, in addition to the fill values of a NetCDF file, instead of the no-data
    value of a raster."""


class RasterLayer(_Layer):
    """Bands of georeferenced rasters, such as radar backscatter, elevation or land cover."""

    kind: Literal["geotiff"]
    """Selects GeoTIFF and JPEG 2000 files, in any coordinate reference system."""
    bands: list[Band] = Field(min_length=1, max_length=64)
    """Names of the bands in the files' order."""
    units: Title
    """Unit of the values after `scale` and `offset`, such as dB or m."""
    scale: Coefficient = 1.0
    """Value per step of stored numbers."""
    offset: Coefficient = 0.0
    """Value of the stored number 0."""

    def _faults(self) -> Iterator[str]:
        if self.scale == 0.0:
            yield "`scale` is 0, which maps all numbers to `offset`: set another number"
        if ", " in self.units:
            yield "`units` is one unit for all bands of a layer: define a layer for each unit"


class FieldLayer(_Layer):
    """Variables of NetCDF files on another grid, such as coarse predictors. The time of the scene selects the step."""

    kind: Literal["netcdf"]
    """Selects NetCDF files by the CF conventions. Units are read from the files."""
    bands: list[FieldBand] = Field(min_length=1, max_length=64)
    """Variables in the order of the bands, with their level as `u@500`."""
    time: Title | None = None
    """Name of the dimension of time, if its metadata do not declare it. Files without it apply to every scene."""


Layer = Annotated[RasterLayer | FieldLayer, Field(discriminator="kind")]
