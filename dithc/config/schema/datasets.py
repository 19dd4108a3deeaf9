"""Settings of datasets: sources of scenes, and cutting, split, scaling and rendering of tiles."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field, SerializeAsAny

from dithc.config.schema.base import Address, Band, Fraction, Meters, Name, Place, Positive, Settings, Size, Title
from dithc.config.schema.layers import CloudsConfig as CloudsConfig
from dithc.config.schema.layers import Coefficient, FieldBand, Pattern
from dithc.config.schema.layers import FieldLayer as FieldLayer
from dithc.config.schema.layers import Layer as Layer
from dithc.config.schema.layers import MaskFileConfig as MaskFileConfig
from dithc.config.schema.layers import ProductCloudsConfig as ProductCloudsConfig
from dithc.config.schema.layers import RasterLayer as RasterLayer
from dithc.config.schema.plugins import REGISTERED as REGISTERED
from dithc.config.schema.plugins import PluginConditions as PluginConditions
from dithc.config.schema.plugins import PluginSettings as PluginSettings
from dithc.config.schema.plugins import PluginSource as PluginSource
from dithc.config.schema.plugins import kinds_of, plugin_field
from dithc.config.schema.tiling import RenderingConfig as RenderingConfig
from dithc.config.schema.tiling import SplitConfig as SplitConfig
from dithc.config.schema.tiling import TilesConfig as TilesConfig

Above0 = Annotated[float, Field(gt=0.0, le=10.0**6)]
Wavelength = Annotated[float, Field(ge=100.0, le=20_000.0)]
PUBLISHED_BANDS = 4  # of the multispectral cameras of Gaofen-1, -2 and -6
SHARPENED_GSD_M = 2.0  # half of a multispectral pixel of Gaofen-2 and more: nothing is left to sharpen


Sentinel2Band = Literal["B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B10", "B11", "B12"]
SENTINEL2_BANDS = get_args(Sentinel2Band)
SENTINEL2_GSD_M = {
    **dict.fromkeys(("B02", "B03", "B04", "B08"), 10.0),
    **dict.fromkeys(("B05", "B06", "B07", "B8A", "B11", "B12"), 20.0),
    **dict.fromkeys(("B01", "B09", "B10"), 60.0),
}
"""Native pixel size of each band in meters."""
NOT_OF_LEVEL_2A = "B10"  # cirrus band, which level 2A does not contain
SENTINEL2_SIDE = 10_980  # pixels per side of a complete product on the 10 m grid


class SyntheticConfig(Settings):
    """A generated input instead of the user's files (`dithc synthesize`)."""

    scenes: Positive = 2
    """Number of scenes; for an image folder, images per class."""
    size: Size = 768
    """Side of a scene in pixels at its finest resolution, a multiple of 6 for Sentinel-2; typical side of an image."""
    classes: Size = 4
    """Classes of an image folder; ignored by satellite scenes."""


class _Source(Settings):
    is_generated: ClassVar[bool] = True  # `synthetic` is available
    path: Place | None = None
    """Folder with the user's files, relative to the working folder. Give exactly one of `path` and `synthetic`."""
    synthetic: SyntheticConfig | None = None
    """Generate the input instead: data of the same structure for machines without data."""
    include: list[Pattern] = Field(default=[], max_length=1000)
    """Patterns of names, or of paths below `path`. Only matches are read: `*_SR_*.tif`, `2023/*`. Case does not matter,
    and `*` also matches `/`. Masks are scenes only if a pattern names one (`*_udm2.tif`)."""
    exclude: list[Pattern] = Field(default=[], max_length=1000)
    """Patterns, as in `include`, of files, products and folders that are not read."""

    def _faults(self) -> Iterator[str]:
        if (self.path is None) == (self.synthetic is None):
            yield "give exactly one of `path` (where your files are) and `synthetic` (generate them)"
        if self.synthetic is not None and not self.is_generated:
            yield "`synthetic` is available for sentinel2, gaofen2 and image-folder only; give `path`"


class _Files(_Source):
    is_generated: ClassVar[bool] = False
    clouds: CloudsConfig = CloudsConfig()
    """Selection of cloudy pixels; no pixels without `mask`."""

    def _faults(self) -> Iterator[str]:
        yield from super()._faults()
        if self.clouds.buffer_m and self.clouds.mask is None:
            yield "`clouds.buffer_m` has no effect without masks: set `clouds.mask` too"


class _Sentinel2Bands(_Source):
    gsd_m: Meters = 10.0
    """Pixel size of the common grid in meters. Of a band at several sizes, the file of this size is read, or else the
    next finer file. A band is resampled to a finer grid only from its native size."""
    resampling: Literal["bilinear", "nearest"] = "bilinear"
    """Resampling of coarser bands to the common grid. nearest repeats the measured pixels, as `coarse` of a restoration
    requires."""
    bands: list[Sentinel2Band] | None = Field(default=None, min_length=1, max_length=13)
    """Bands to read, in this order. If unset, all bands of the product's level in the order B01 to B12."""
    clouds: ProductCloudsConfig = ProductCloudsConfig()
    """Selection of cloudy pixels."""

    def _faults(self) -> Iterator[str]:
        yield from super()._faults()
        if self.bands is not None and len(set(self.bands)) < len(self.bands):
            yield f"`bands` names a band twice: {', '.join(self.bands)}"

    def coarse_faults(self, key: str, dataset: str, coarse: Mapping[str, int], *, is_hidden: bool) -> Iterator[str]:
        """Yield the faults of `coarse` of the restoration `key` by native pixel sizes; `is_hidden` with `hide`."""
        sizes = {band: SENTINEL2_GSD_M[band] for band in coarse if band in SENTINEL2_GSD_M}
        finer = [band for band, size in sizes.items() if size > self.gsd_m]
        if is_hidden and finer:
            yield (
                f"{key}.hide compares {', '.join(finer)} with interpolated pixels: set `source.gsd_m: "
                f"{max(sizes.values()):g}` of datasets.{dataset}, and restore from a coarser grid (Wald's protocol)"
            )
        if coarse and not is_hidden and self.resampling != "nearest":
            yield (
                f"{key}.coarse requires measured pixels, and ingestion interpolates them: set `source.resampling: nearest` of "
                f"datasets.{dataset}"
            )
        for band, size in sizes.items():
            factor = size / self.gsd_m
            if not is_hidden and coarse[band] != factor:
                fix = f"use {factor:g}" if factor >= 2 and factor.is_integer() else "leave it out, or set `hide`"
                yield f"{key}.coarse.{band} is {coarse[band]}, and {band} is {size:g} m: on a grid of {self.gsd_m:g} m, {fix}"


class Sentinel2Source(_Sentinel2Bands):
    """Sentinel-2 products as delivered by ESA: `.SAFE` folders or zip files of them, L1C or L2A."""

    kind: Literal["sentinel2"]
    """Selects this reader."""
    checksum: Literal["verify", "skip"] = "verify"
    """Compare every file with the checksum in manifest.safe. `skip` trusts the disk."""
    optional_files: list[Title] = Field(default=[], max_length=1000)
    """Optional files of manifest.safe, as patterns of their paths in the product: `*/QI_DATA/*`, or `*` for partially
    downloaded products. The file of a band's native pixel size is always required."""

    def _faults(self) -> Iterator[str]:
        yield from super()._faults()
        if self.synthetic is not None and (side := self.synthetic.size) % 6:
            smaller = side // 6 * 6
            yield (
                f"`synthetic.size` is {side}, which is not a multiple of 6, so the grids of 10 m, 20 m and 60 m have different "
                f"extents: use {smaller} or {smaller + 6}"
            )


class SearchConfig(Settings):
    """Selection of catalog scenes that `dithc fetch` downloads into `path`."""

    catalog: Address
    """Root of a STAC API with item search: `https://earth-search.aws.element84.com/v1`."""
    collection: Title
    """Name of the collection in the catalog: `sentinel-2-c1-l2a`."""
    bbox: tuple[float, float, float, float] | None = None
    """West, south, east and north of the area in degrees. Give exactly one of `bbox` and `area_file`."""
    area_file: Place | None = None
    """GeoJSON file with one polygon, in degrees. Scenes that touch it are included."""
    start_date: date
    """First day of acquisition, `2024-04-01` (UTC)."""
    end_date: date
    """Last day of acquisition, inclusive."""
    max_cloud_cover: Fraction = 1.0
    """Largest cloudy share of a scene, according to the catalog. Other scenes are excluded."""
    max_items: Positive = 100
    """Largest number of scenes, in the order of the catalog."""
    signing_url: Address | None = None
    """Service that returns the signed form of an address for `?href=`, if files require signed addresses:
    `https://planetarycomputer.microsoft.com/api/sas/v1/sign` for Planetary Computer."""

    def _faults(self) -> Iterator[str]:
        if (self.bbox is None) == (self.area_file is None):
            yield "give exactly one of `bbox` (west, south, east, north) and `area_file` (a GeoJSON file)"
        if self.bbox is not None:
            west, south, east, north = self.bbox
            if not (-180 <= west < east <= 180 and -90 <= south < north <= 90):
                yield (
                    f"`bbox` {list(self.bbox)} is not west, south, east, north in degrees, each pair ascending; use an "
                    "`area_file` of two polygons for an area across 180 degrees of longitude"
                )
        if self.start_date > self.end_date:
            yield f"`start_date` {self.start_date} is after `end_date` {self.end_date}"


class Sentinel2StacSource(_Sentinel2Bands):
    """Sentinel-2 scenes from catalogs: STAC items with the GeoTIFF (or JPEG 2000) file of each band, L1C or L2A."""

    is_generated: ClassVar[bool] = False
    kind: Literal["sentinel2-stac"]
    """Selects this reader."""
    search: SearchConfig | None = None
    """Selection of scenes that `dithc fetch` downloads into `path`. Ingestion uses these scenes only, without a
    network."""
    checksum: Literal["verify", "skip"] = "verify"
    """Compare every file with its size and checksum in the item and in lock.json. `skip` trusts the disk."""
    offset: float | None = Field(default=None, ge=-(10.0**6), le=10.0**6)
    """Value added to digital numbers instead of the items' offset, for catalogs with wrong offsets: 0 or -1000."""
    check_offset: bool = True
    """Reject a scene if its values contradict the offset. Disable this check for scenes that are truly that bright."""

    def _faults(self) -> Iterator[str]:
        yield from super()._faults()
        if self.clouds.use_msk_classi:
            yield "`clouds.use_msk_classi` has no effect, because catalogs do not provide MSK_CLASSI as a file"


class Sentinel2ArraySource(_Files):
    """Sentinel-2 pixels without their product: plain GeoTIFF or .npy files without metadata."""

    kind: Literal["sentinel2-array"]
    """Selects this reader."""
    bands: list[Band] = Field(min_length=1, max_length=64)
    """Names of the bands in the files' order, such as B02. Files with extra trailing bands are rejected."""
    units: Literal["dn", "reflectance"]
    """Unit of stored numbers: a digital number, or reflectance 0 to 1."""
    offset: float | None = Field(default=None, ge=-(10.0**6), le=10.0**6)
    """Value added to a digital number before the division by `quantification`: -1000 from processing baseline 04.00, 0
    before. Required for `units: dn`, because the files do not contain it and a guess would be silently wrong."""
    check_offset: bool = True
    """Reject a file if its values contradict the declared offset. Disable it for scenes that are truly that bright."""
    quantification: float = Field(default=10000.0, gt=0.0, le=10.0**9)
    """Digital numbers per unit of reflectance."""
    axis_order: Literal["chw", "hwc"] = "chw"
    """Order of axes in .npy files; GeoTIFF is always chw."""
    nodata: float | None = None
    """Stored value of pixels without data, in addition to the no-data value, mask and alpha band of the file."""
    gsd_m: Meters = 10.0
    """Pixel size in meters of files without georeference."""

    def _faults(self) -> Iterator[str]:
        yield from super()._faults()
        if self.units == "dn" and self.offset is None:
            yield "`offset` must be declared for `units: dn`: -1000 from baseline 04.00 on, 0 before"


class CoefficientsConfig(Settings):
    """A user-defined calibration instead of the published calibration: one number for each of `bands`."""

    gain: list[Above0] = Field(min_length=1, max_length=64)
    """Radiance (W m-2 sr-1 um-1) of a digital number."""
    offset: list[Coefficient] | None = Field(default=None, min_length=1, max_length=64)
    """Radiance of the digital number 0; 0 if unset."""
    irradiance: list[Above0] | None = Field(default=None, min_length=1, max_length=64)
    """Solar irradiance at the top of the atmosphere at one astronomical unit (W m-2 um-1), for reflectance; as
    published if unset."""


class Gaofen2Source(_Source):
    """Gaofen-2 scenes: orthorectified 4-band GeoTIFF (with its XML), .npy cut from one, or products of level 1A."""

    kind: Literal["gaofen2"]
    """Selects this reader."""
    bands: list[Band] = Field(default=["B", "G", "R", "NIR"], min_length=1, max_length=64)
    """Names of the bands in the files' order."""
    units: Literal["dn", "byte"] = "dn"
    """Unit of stored numbers: a 10-bit digital number (uint16), or an already stretched byte (uint8)."""
    axis_order: Literal["chw", "hwc"] = "chw"
    """Order of axes in .npy files; GeoTIFF is always chw."""
    gsd_m: Meters = 4.0
    """Pixel size in meters of files without georeference, and of the grid for products of level 1A."""
    height_m: float | None = Field(default=None, ge=-1000.0, le=9000.0)
    """Read products of level 1A, folders or .tar.gz with their .rpb, and orthorectify them at this height in meters
    above the WGS84 ellipsoid. With `dem`, it is added to its heights (most DEMs count from the geoid)."""
    dem: Place | None = None
    """Read products of level 1A and orthorectify them with this GeoTIFF of heights in meters."""
    calibrate: Literal["none", "radiance", "reflectance"] = "none"
    """Stored quantity: unchanged digital numbers, radiance (W m-2 sr-1 um-1), or top-of-atmosphere reflectance. The
    conversion uses the coefficients that the producer published for satellite, camera and year."""
    coefficients: CoefficientsConfig | None = None
    """Calibration instead of the published calibration."""
    pansharpen: Literal["none", "gsa"] = "none"
    """`gsa`: sharpen the bands of a product of level 1A with its panchromatic image, at `gsd_m` (by GSA)."""
    max_shift: float = Field(default=1.0, gt=0.0, le=100.0)
    """Largest shift of the panchromatic image, in pixels of the multispectral image. Others are rejected."""

    @property
    def takes_raw(self) -> bool:
        """True if products of level 1A are read as scenes, which requires the height of the ground."""
        return self.height_m is not None or self.dem is not None

    def _faults(self) -> Iterator[str]:
        yield from super()._faults()
        yield from self._check_calibration()
        if self.synthetic is not None and self.takes_raw:
            yield (
                "`height_m` and `dem` have no effect on generated scenes, which are orthorectified already; "
                "omit both, or give `path`"
            )
        if self.pansharpen == "none":
            return
        if not self.takes_raw:
            yield "`pansharpen` requires products of level 1A: set the height (`height_m`, `dem`)"
        if self.units != "dn":
            yield "`pansharpen` requires products of level 1A, which have `units: dn`"
        if self.gsd_m > SHARPENED_GSD_M:
            yield (
                f"`pansharpen` has no effect at `gsd_m: {self.gsd_m:g}`: choose {SHARPENED_GSD_M:g} or less, "
                "the panchromatic pixel is 0.8 m"
            )

    def _check_calibration(self) -> Iterator[str]:
        coefficients = self.coefficients
        if self.calibrate == "none":
            if coefficients is not None:
                yield "`coefficients` have no effect: set `calibrate: radiance` or `reflectance`"
            return
        if self.units != "dn":
            yield f"`calibrate: {self.calibrate}` needs `units: dn`: a stretched byte has lost the numbers"
        lists = {} if coefficients is None else coefficients.model_dump(exclude_none=True)
        key = next((name for name, values in lists.items() if len(values) != len(self.bands)), None)
        if key is not None:
            yield f"`coefficients.{key}` has not one number for each of the {len(self.bands)} `bands`"
        if len(self.bands) != PUBLISHED_BANDS and {"gain", "irradiance"} - lists.keys():
            yield f"published coefficients have 4 bands, `bands` {len(self.bands)}: give all `coefficients`"


class GeoTiffSource(_Files):
    """Rasters of any other sensor, described by the configuration: Landsat, PlanetScope, Gaofen-1 and -6, aerial."""

    kind: Literal["geotiff"]
    """Selects this reader."""
    sensor: Title = ""
    """Sensor of the scenes, for the table of scenes."""
    bands: list[Band] = Field(min_length=1, max_length=64)
    """Names of the bands in the files' order."""
    suffixes: list[Title] | None = Field(default=None, min_length=1, max_length=64)
    """Ends of the file names in the order of `bands`, if each band is a file: `_SR_B4.TIF`. The rest is the scene."""
    wavelengths_nm: list[Wavelength] | None = Field(default=None, min_length=1, max_length=64)
    """Central wavelength of each band in nanometers, for the table of scenes."""
    units: Literal["dn", "byte", "reflectance", "radiance"]
    """Unit of a number after `scale` and `offset`: a digital number (uint16 only), a byte (uint8 only), reflectance 0
    to 1, or radiance (W m-2 sr-1 um-1)."""
    scale: Coefficient | list[Coefficient] = 1.0
    """Reflectance or radiance per step of stored numbers; one, or one per band. 2.75e-5 for Landsat's Collection 2."""
    offset: Coefficient | list[Coefficient] = 0.0
    """Reflectance or radiance of the stored number 0; one value, or one per band. -0.2 for Landsat's Collection 2."""
    nodata: float | None = None
    """Stored value of pixels without data. It replaces the value in a file; masks and alpha bands still apply."""
    gsd_m: Meters | None = None
    """Pixel size in meters of files without georeference. If unset, these files are rejected."""

    def _faults(self) -> Iterator[str]:
        yield from super()._faults()
        for name in ("suffixes", "wavelengths_nm", "scale", "offset"):
            values = getattr(self, name)
            if isinstance(values, list) and len(values) != len(self.bands):
                yield f"`{name}` has {len(values)} values, and there are {len(self.bands)} `bands`"
        if self.suffixes is not None and len({suffix.lower() for suffix in self.suffixes}) < len(self.suffixes):
            yield "two bands have the same end in `suffixes`"
        if not all(suffix.lower().endswith((".tif", ".tiff", ".jp2")) for suffix in self.suffixes or []):
            yield "each of `suffixes` ends with .tif, .tiff or .jp2, such as `_SR_B4.TIF`"
        if self.units in ("dn", "byte") and (self.scale != 1.0 or self.offset != 0.0):
            yield f"`scale` and `offset` have no effect on `units: {self.units}`, which are not converted"
        steps = self.scale if isinstance(self.scale, list) else [self.scale]
        if 0.0 in steps:
            yield "`scale` is 0, which maps all numbers to `offset`: set another number"


class NetcdfSource(_Source):
    """Fields of NetCDF files by the CF conventions, such as reanalyses and climate models; a time step is a scene."""

    is_generated: ClassVar[bool] = False
    kind: Literal["netcdf"]
    """Selects this reader."""
    bands: list[FieldBand] = Field(min_length=1, max_length=64)
    """Variables in the order of the bands: `tasmax`; with a value of their vertical or other dimension, `u@500`."""
    time: Title | None = None
    """Name of the dimension of the scenes, if its metadata do not declare a time. Every band without this
    dimension is the same in all scenes of its file."""
    nodata: float | None = None
    """Value of missing cells in the variable's units, in addition to the fill values that the file declares."""

    def _faults(self) -> Iterator[str]:
        yield from super()._faults()
        if len(set(self.bands)) < len(self.bands):
            yield f"`bands` names a band twice: {', '.join(self.bands)}"


class ImageFolderSource(_Source):
    """Images with classes, as in ImageNet: in folders, tar archives, WebDataset or parquet shards."""

    kind: Literal["image-folder"]
    """Selects this reader."""
    size: Size = 256
    """Side of the center crop in pixels. Smaller images are enlarged and counted."""
    classes: Literal["folders", "one"] = "folders"
    """`folders`: each sub-folder, or archive in an archive, is a class, in sorted order; shards contain their labels.
    `one`: all images have one class, and labels are ignored."""
    layout: Literal["auto", "folders", "tar", "webdataset", "parquet"] = "auto"
    """Packing of the images: class folders, tar archives of classes (ImageNet's archive, or a folder of class
    archives), WebDataset or parquet shards. `auto` detects it and rejects ambiguous folders. Nothing is unpacked."""


BuiltInSource = Annotated[
    Sentinel2Source
    | Sentinel2StacSource
    | Sentinel2ArraySource
    | Gaofen2Source
    | GeoTiffSource
    | NetcdfSource
    | ImageFolderSource,
    Field(discriminator="kind"),
]
Source = Annotated[
    BuiltInSource | SerializeAsAny[PluginSource], plugin_field(PluginSource, kinds_of(BuiltInSource), BuiltInSource)
]
Conditions = Annotated[SerializeAsAny[PluginConditions], plugin_field(PluginConditions, (), PluginConditions)]


class DatasetConfig(Settings):
    """One dataset from its source to its latents."""

    title: Title
    """Name in the report."""
    source: Source
    """Origin of the scenes."""
    layers: dict[Name, Layer] = Field(default={}, max_length=16)
    """Bands of other rasters or fields, appended to each scene after resampling to its grid. Scenes need a georeference.
    Pixels that lack a value of a layer have no data."""
    tiles: TilesConfig = TilesConfig()
    """Cutting of scenes into tiles."""
    split: SplitConfig = SplitConfig()
    """Assignment of tiles to splits."""
    rendering: RenderingConfig
    """Conversion of tiles to 8-bit images, for display and for every score."""
    codec: Name
    """Name of the codec (section `codecs`) that encodes the tiles."""
    conditions: list[Conditions] = Field(default=[], max_length=64)
    """Conditions from installed packages for each tile, in addition to the built-in conditions (place, day, sun)."""
    views: Literal[2, 8] = 2
    """Number of encoded views of a tile. 2: the tile and its mirror image. 8: all quarter turns of both, required for
    `augment: dihedral` of a run, with four times the disk space. Existing 2 views are not encoded again. If this value changes,
    finished runs of this dataset are trained again."""
    clusters: Annotated[int, Field(ge=2, le=4096)] | None = None
    """Number of classes assigned to tiles without classes, a power of two: groups of equal size with similar color, texture
    and share of parallel edges. Images are drawn from each with equal probability. Mean colors and shares of kinds of images
    are then closer to the real ones. If this value changes, latents are not encoded again, but finished runs of this dataset
    are trained again."""
    max_rejected_fraction: Fraction = 0.5
    """Largest share of unusable scene files; ingestion fails beyond it. A `sentinel2-array` file that contradicts the
    declared offset always fails ingestion."""

    def _faults(self) -> Iterator[str]:
        if self.split.cell_size_m is not None and self.source.kind == "image-folder":
            yield "`split.cell_size_m` has no effect on an image-folder, because its images have no location"
        if self.clusters is not None:
            if self.clusters.bit_count() != 1:
                yield f"`clusters` is {self.clusters}, and each halving doubles their number: choose a power of two"
            if self.tiles.masks:
                yield "`clusters` would depend on the gaps of incomplete tiles: choose `tiles.masks: false`, or remove it"
            if not self.one_class:
                yield "`clusters` replace the classes of a dataset: remove it, or ignore the classes (`source.classes: one`)"
        if self.layers and self.source.kind == "image-folder":
            yield "`layers` require scenes with a georeference, which an image-folder does not have"
        if self.layers and getattr(self.source, "bands", ()) is None:
            yield "`layers` require `source.bands`, the bands before the layers"
        counts = Counter([*(getattr(self.source, "bands", None) or []), *self.layer_bands])
        if repeated := [band for band in self.layer_bands if counts[band] > 1]:
            yield f"`layers` name the band {repeated[0]} twice, or as `source.bands` does"

    @property
    def layer_bands(self) -> list[str]:
        """Bands of the layers, which follow the bands of the source."""
        return [band for layer in self.layers.values() for band in layer.bands]

    @property
    def band_names(self) -> list[str] | None:
        """Bands of the tiles; None if the Sentinel-2 products decide."""
        if self.source.kind == "image-folder":
            return ["R", "G", "B"]
        listed: list[str] | None = getattr(self.source, "bands", None)
        is_made = listed is None and self.source.synthetic is not None  # products of level 2A
        listed = [band for band in SENTINEL2_BANDS if band != NOT_OF_LEVEL_2A] if is_made else listed
        return None if listed is None else [*listed, *self.layer_bands]

    @property
    def one_class(self) -> bool:
        """True if all tiles have one class, as far as known before a scene is read."""
        source = self.source
        if isinstance(source, PluginSource):
            return not source.labeled
        if not isinstance(source, ImageFolderSource) or source.classes == "one":
            return True
        return source.synthetic is not None and source.synthetic.classes == 1
