"""Settings of files besides the scenes of a dataset: layers, whose bands are appended to each scene, and masks of clouds."""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from dithc.config.schema.base import Band, Place, Positive, Settings, Title

# Limits in digital numbers or reflectance: far beyond valid values, and small enough for exact differences in fp32.
Coefficient = Annotated[float, Field(ge=-(10.0**6), le=10.0**6)]
Pattern = Annotated[str, Field(min_length=1, max_length=500)]
FieldBand = Annotated[Band, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*(@-?[0-9]+(\.[0-9]+)?)?$")]
MaskValue = Annotated[int, Field(ge=-(2**31), lt=2**32)]


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


class MaskFileConfig(Settings):
    """A mask raster in the folder of each scene, on the pixels of the scene, as `.tif`, `.jp2` or `.npy`."""

    names: Annotated[Pattern, Field(pattern=r"\*")] = "*_mask.*"
    """Pattern of the names of masks, such as `*_udm2*.tif` or `*_QA_PIXEL.TIF`. The first `*` matches the start of the
    scene's name. Each scene must have one mask."""
    band: Positive = 1
    """Band of the mask, counted from 1."""
    clear: list[MaskValue] = Field(default=[0], max_length=1000)
    """Values of clear pixels: `[1]` for band 1 of PlanetScope's udm2."""
    cloud: list[MaskValue] | Literal["others"] = Field(default=[1, 1024, 2048, 3072])
    """Values of cloudy or unusable pixels, by default 1 and QA60. `others`: all values outside `clear` and
    `no_data`."""
    no_data: list[MaskValue] = Field(default=[255], max_length=1000)
    """Values of pixels without data. A value in none of the three lists rejects the scene."""

    def _faults(self) -> Iterator[str]:
        lists = [self.clear, self.no_data, [] if self.cloud == "others" else self.cloud]
        counts = Counter(value for values in lists for value in set(values))
        if repeated := [value for value, count in counts.items() if count > 1]:
            yield f"`clear`, `cloud` and `no_data` share the value {repeated[0]}"


class CloudsConfig(Settings):
    """Selection of cloudy pixels in a scene. `tiles.max_cloud_fraction` limits their share in a tile."""

    mask: MaskFileConfig | None = None
    """Mask rasters next to scenes. `{}` selects `NAME_mask.tif` or `.npy` with 0 clear, 255 no data, 1 or QA60
    cloud."""
    buffer_m: float = Field(default=0.0, ge=0.0, le=10_000.0)
    """Meters around each cloudy pixel, to all four sides and corners, that also count as cloud."""


class ProductCloudsConfig(CloudsConfig):
    """Selection of cloudy pixels in a product, by the product's masks or a mask raster of the user."""

    scl_classes: list[Annotated[int, Field(ge=2, le=11)]] = Field(default=[3, 8, 9, 10], max_length=10)
    """Classes of the scene classification (SCL, L2A) that count as cloud. The default is cloud shadow (3), clouds of
    medium and high probability (8, 9) and thin cirrus (10). 2 is dark ground, 11 snow."""
    min_cloud_probability: int | None = Field(default=None, ge=1, le=100)
    """Lowest cloud probability (MSK_CLDPRB, L2A) in percent that counts as cloud. If unset, the mask is not read."""
    use_msk_classi: bool = False
    """Count opaque clouds and cirrus of MSK_CLASSI as cloud, the raster mask of L1C products from baseline 04.00 on."""
