"""Settings of data sets: where scenes come from, how they become tiles, how tiles are split, scaled and shown."""

from collections import Counter
from datetime import date
from typing import Annotated, Literal, get_args

from pydantic import Field, SerializeAsAny, model_validator

from dithc.config.base import Address, Band, Fraction, Metres, Name, Place, Positive, Settings, Size, Title
from dithc.config.installed import Installed as Installed
from dithc.config.installed import InstalledConditions as InstalledConditions
from dithc.config.installed import InstalledSource as InstalledSource
from dithc.config.installed import kinds_of as kinds_of
from dithc.config.installed import taking
from dithc.config.tiling import Rendering as Rendering
from dithc.config.tiling import Scaling
from dithc.config.tiling import Split as Split
from dithc.config.tiling import Tiles as Tiles

# In the units of the data set, digital numbers or reflectances: far beyond both, and far from what fp32 cannot tell apart.
Coefficient = Annotated[float, Field(ge=-(10.0**6), le=10.0**6)]
Above0 = Annotated[float, Field(gt=0.0, le=10.0**6)]
Pattern = Annotated[str, Field(min_length=1, max_length=500)]
MaskValue = Annotated[int, Field(ge=-(2**31), lt=2**32)]
Wavelength = Annotated[float, Field(ge=100.0, le=20_000.0)]
PUBLISHED_BANDS = 4  # of the multispectral cameras of Gaofen-1, -2 and -6
SHARPENED_GSD_M = 2.0  # half of a multispectral pixel of Gaofen-2 and more: nothing is left to sharpen


Sentinel2Band = Literal["B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B10", "B11", "B12"]
SENTINEL2_BANDS = get_args(Sentinel2Band)
NOT_OF_LEVEL_2A = "B10"  # cirrus, which that level has used up


class Synthetic(Settings):
    """A generated input instead of files of the user's (`dithc synthesize`)."""

    scenes: Positive = 2
    """Number of scenes; for an image folder, images per class."""
    size: Size = 768
    """Side of a scene in pixels at its finest resolution, a multiple of 6 for Sentinel-2; for an image folder, an image's
    typical side."""
    classes: Size = 4
    """Classes of an image folder; ignored by satellite scenes."""


class _Source(Settings):
    path: Place | None = None
    """Folder with the user's files, relative to the working folder; exactly one of `path` and `synthetic` is given."""
    synthetic: Synthetic | None = None
    """Generate the input instead; a stand-in of the same structure for machines without data."""
    include: list[Pattern] = Field(default=[], max_length=1000)
    """Patterns of names, or of paths below `path`, of the only files, products and folders that are read: `*_SR_*.tif`, `2023/*`.
    Case does not matter, and `*` matches `/` too. Only a pattern that names a mask (`*_udm2.tif`) makes scenes of masks."""
    exclude: list[Pattern] = Field(default=[], max_length=1000)
    """Patterns, as in `include`, of files, products and folders that are not read."""

    @model_validator(mode="after")
    def _one_origin(self) -> "_Source":
        if (self.path is None) == (self.synthetic is None):
            raise ValueError("give exactly one of `path` (where your files are) and `synthetic` (generate them)")
        return self


class MaskFile(Settings):
    """A mask raster in the folder of each scene, on the pixels of the scene, as `.tif`, `.jp2` or `.npy`."""

    names: Annotated[Pattern, Field(pattern=r"\*")] = "*_mask.*"
    """Pattern of the names of masks, such as `*_udm2*.tif` or `*_QA_PIXEL.TIF`. The first `*` stands for the start of the scene's
    name. Each scene must have one mask."""
    band: Positive = 1
    """Band of the mask, counted from 1."""
    clear: list[MaskValue] = Field(default=[0], max_length=1000)
    """Values of clear pixels: `[1]` for band 1 of PlanetScope's udm2."""
    cloud: list[MaskValue] | Literal["others"] = Field(default=[1, 1024, 2048, 3072])
    """Values of cloudy or unusable pixels, by default 1 and QA60; `others` stands for all outside `clear` and `no_data`."""
    no_data: list[MaskValue] = Field(default=[255], max_length=1000)
    """Values of pixels without data. A value in none of the three lists rejects the scene."""

    @model_validator(mode="after")
    def _one_meaning(self) -> "MaskFile":
        lists = [self.clear, self.no_data, [] if self.cloud == "others" else self.cloud]
        twice = [value for value, count in Counter(value for one in lists for value in set(one)).items() if count > 1]
        if twice:
            raise ValueError(f"`clear`, `cloud` and `no_data` share the value {twice[0]}")
        return self


class Clouds(Settings):
    """Which pixels of a scene count as cloud; `tiles.max_cloud` says how many a tile may have."""

    mask: MaskFile | None = None
    """Mask rasters next to scenes; `{}` for `NAME_mask.tif` or `NAME_mask.npy` with 0 clear, 255 no data, and 1 or QA60 cloud."""
    buffer_m: float = Field(default=0.0, ge=0.0, le=10_000.0)
    """Metres around each cloudy pixel, to all four sides and corners, that count as cloud too."""


class ProductClouds(Clouds):
    """Which pixels of a product count as cloud, by any of its own masks or a mask raster of the user."""

    classes: list[Annotated[int, Field(ge=2, le=11)]] = Field(default=[3, 8, 9, 10], max_length=10)
    """Classes of the scene classification (SCL, L2A) that count as cloud: by default cloud shadow (3), clouds of medium and high
    probability (8, 9) and thin cirrus (10); 2 is dark ground, 11 snow."""
    probability: int | None = Field(default=None, ge=1, le=100)
    """Percent of cloud probability (MSK_CLDPRB, L2A) from which on a pixel counts as cloud; the mask is not read if not given."""
    classi: bool = False
    """Count opaque clouds and cirrus of MSK_CLASSI as cloud, the raster mask of L1C products from baseline 04.00 on."""


class _Files(_Source):
    clouds: Clouds = Clouds()
    """Which pixels count as cloud; none without `mask`."""

    @model_validator(mode="after")
    def _buffer_has_clouds(self) -> "_Files":
        if self.clouds.buffer_m and self.clouds.mask is None:
            raise ValueError("`clouds.buffer_m` has no effect without masks: set `clouds.mask` too")
        return self


class _Sentinel2Bands(_Source):
    gsd_m: Metres = 10.0
    """Pixel size of the common grid in metres. Where a product has a band at several sizes, the file of this size is read, or the
    next finer one; a band is brought to a finer grid from its own pixel size alone, never from a coarser copy."""
    bands: list[Sentinel2Band] | None = Field(default=None, min_length=1, max_length=13)
    """Bands to read, in this order; all of the product's level in the order B01 to B12 if not given."""
    clouds: ProductClouds = ProductClouds()
    """Which pixels count as cloud."""

    @model_validator(mode="after")
    def _bands_once(self) -> "_Sentinel2Bands":
        if self.bands is not None and len(set(self.bands)) < len(self.bands):
            raise ValueError(f"`bands` names a band twice: {', '.join(self.bands)}")
        return self


class Sentinel2(_Sentinel2Bands):
    """Sentinel-2 products as ESA delivers them: `.SAFE` folders or zip files of them, L1C or L2A."""

    kind: Literal["sentinel2"]
    """Selects this reader."""
    checksum: Literal["verify", "skip"] = "verify"
    """Compare every file with the checksum in manifest.safe; `skip` trusts the disk."""
    may_lack: list[Title] = Field(default=[], max_length=1000)
    """Files that manifest.safe lists and that need not be there, as patterns of their paths in the product: `*/QI_DATA/*`, or `*`
    for products of which a part was downloaded. The file of a band's own pixel size is needed in any case."""

    @model_validator(mode="after")
    def _grids_end_together(self) -> "Sentinel2":
        if self.synthetic is not None and (side := self.synthetic.size) % 6:
            below = side // 6 * 6
            raise ValueError(
                f"`synthetic.size` is {side}, no multiple of 6, in which the grids of 10 m, 20 m and 60 m end together: "
                f"use {below} or {below + 6}"
            )
        return self


class Search(Settings):
    """Which scenes of a catalogue `dithc fetch` brings into `path`."""

    catalog: Address
    """Root of a STAC API with item search: `https://earth-search.aws.element84.com/v1`."""
    collection: Title
    """Its name there: `sentinel-2-c1-l2a`."""
    bbox: tuple[float, float, float, float] | None = None
    """West, south, east and north of the area in degrees; exactly one of `bbox` and `area` is given."""
    area: Place | None = None
    """GeoJSON file with one polygon, in degrees; scenes that touch it are taken."""
    first_day: date
    """Of acquisition, `2024-04-01` (UTC)."""
    last_day: date
    """Of acquisition, itself included."""
    max_cloud: Fraction = 1.0
    """Scenes with a larger cloudy share, as the catalogue says, are left out."""
    limit: Positive = 100
    """Most scenes, the first in the order of the catalogue."""
    sign: Address | None = None
    """Gives the signed form of an address for `?href=`, where files are not to be had without:
    `https://planetarycomputer.microsoft.com/api/sas/v1/sign` for Planetary Computer."""

    @model_validator(mode="after")
    def _one_area(self) -> "Search":
        if (self.bbox is None) == (self.area is None):
            raise ValueError("give exactly one of `bbox` (west, south, east, north) and `area` (a GeoJSON file)")
        if self.bbox is not None:
            west, south, east, north = self.bbox
            if not (-180 <= west < east <= 180 and -90 <= south < north <= 90):
                raise ValueError(
                    f"`bbox` {list(self.bbox)} is not west, south, east, north in degrees, each pair rising; an area across "
                    "180 degrees of longitude takes an `area` of two polygons"
                )
        if self.first_day > self.last_day:
            raise ValueError(f"`first_day` {self.first_day} is after `last_day` {self.last_day}")
        return self


class Sentinel2Stac(_Sentinel2Bands):
    """Sentinel-2 scenes as catalogues have them: STAC items beside the GeoTIFF (or JPEG 2000) file of each band, L1C or L2A."""

    kind: Literal["sentinel2-stac"]
    """Selects this reader."""
    search: Search | None = None
    """Which scenes `dithc fetch` searches and brings into `path`; staging takes these alone and never goes to a network."""
    checksum: Literal["verify", "skip"] = "verify"
    """Compare every file with its size and checksum in the item and in lock.json; `skip` trusts the disk."""
    offset: float | None = Field(default=None, ge=-(10.0**6), le=10.0**6)
    """Added to digital numbers in the place of what items say, for catalogues that say it wrongly: 0 or -1000."""
    check_offset: bool = True
    """Reject a scene whose values the offset cannot belong to; switch off where a scene is truly that bright."""

    @model_validator(mode="after")
    def _from_files(self) -> "Sentinel2Stac":
        if self.synthetic is not None:
            raise ValueError(
                "a sentinel2-stac is not generated with an experiment: `dithc synthesize --kind sentinel2-stac`, and `path`"
            )
        if self.clouds.classi:
            raise ValueError("`clouds.classi` has no effect: catalogues do not have MSK_CLASSI as a file")
        return self


class Sentinel2Array(_Files):
    """Sentinel-2 pixels without their product: plain GeoTIFF or .npy files that say nothing of themselves."""

    kind: Literal["sentinel2-array"]
    """Selects this reader."""
    bands: list[Band] = Field(min_length=1, max_length=64)
    """Names of the bands in the files' order, such as B02; extra trailing bands of a file are refused."""
    units: Literal["dn", "reflectance"]
    """What a stored number is: a digital number, or reflectance 0 to 1."""
    offset: float | None = Field(default=None, ge=-(10.0**6), le=10.0**6)
    """Added to a digital number before it is divided by `quantification`: -1000 from processing baseline 04.00, 0 before.
    Must be given for `units: dn`: the files do not tell and a guess would be silently wrong."""
    check_offset: bool = True
    """Reject a file whose values the declared offset cannot belong to; switch off where a scene is truly that bright."""
    quantification: float = Field(default=10000.0, gt=0.0, le=10.0**9)
    """Digital numbers per unit of reflectance."""
    layout: Literal["chw", "hwc"] = "chw"
    """Order of axes in .npy files; GeoTIFF is always chw."""
    nodata: float | None = None
    """Stored value that means no data, in addition to the no-data value, mask and alpha band of the file."""
    gsd_m: Metres = 10.0
    """Pixel size in metres of files without georeference."""

    @model_validator(mode="after")
    def _not_generated(self) -> "Sentinel2Array":
        if self.synthetic is not None:
            raise ValueError(
                "a sentinel2-array is never generated; use kind sentinel2 with `synthetic`, or give `path`"
            )
        return self

    @model_validator(mode="after")
    def _offset_declared(self) -> "Sentinel2Array":
        if self.units == "dn" and self.offset is None:
            raise ValueError(
                "`offset` must be declared for `units: dn`: -1000 for processing baseline 04.00 and later, 0 before"
            )
        return self


class Coefficients(Settings):
    """A calibration of the user's own, in the place of the published one: one number for each of `bands`."""

    gain: list[Above0] = Field(min_length=1, max_length=64)
    """Radiance (W m-2 sr-1 um-1) of a digital number."""
    offset: list[Coefficient] | None = Field(default=None, min_length=1, max_length=64)
    """Radiance of the digital number 0; 0 where it is not given."""
    irradiance: list[Above0] | None = Field(default=None, min_length=1, max_length=64)
    """Sunlight above the air at one astronomical unit (W m-2 um-1), for reflectance; the published where it is not given."""


class Gaofen2(_Source):
    """Gaofen-2 scenes: orthorectified 4-band GeoTIFF (with its XML), .npy cut from one, or products of level 1A."""

    kind: Literal["gaofen2"]
    """Selects this reader."""
    bands: list[Band] = Field(default=["B", "G", "R", "NIR"], min_length=1, max_length=64)
    """Names of the bands in the files' order."""
    units: Literal["dn", "byte"] = "dn"
    """What a stored number is: a 10-bit digital number (uint16), or an already stretched byte (uint8)."""
    layout: Literal["chw", "hwc"] = "chw"
    """Order of axes in .npy files; GeoTIFF is always chw."""
    gsd_m: Metres = 4.0
    """Pixel size in metres of files without georeference, and that to which products of level 1A are brought; recorded with every
    tile."""
    height_m: float | None = Field(default=None, ge=-1000.0, le=9000.0)
    """Takes products of level 1A, folders or .tar.gz with their .rpb, and brings them to the ground at this height in metres
    above the WGS84 ellipsoid; where `dem` is given too, it is added to its heights (most DEMs count from the geoid)."""
    dem: Place | None = None
    """Takes products of level 1A and brings them to the ground that this GeoTIFF of heights in metres describes."""
    calibrate: Literal["none", "radiance", "reflectance"] = "none"
    """What is stored: digital numbers as they are, radiance (W m-2 sr-1 um-1), or reflectance above the air, by the coefficients
    that the producer published for satellite, camera and year."""
    coefficients: Coefficients | None = None
    """Calibration in the place of the published one."""
    pansharpen: Literal["none", "gsa"] = "none"
    """`gsa`: sharpens the bands of a product of level 1A with its panchromatic image, at `gsd_m` (adaptive Gram-Schmidt)."""
    max_shift: float = Field(default=1.0, gt=0.0, le=100.0)
    """Pixels of the multispectral image by which the panchromatic one may lie beside it; by more, it is rejected."""

    @property
    def takes_raw(self) -> bool:
        """Whether products of level 1A are scenes: not before it is said how high the ground is."""
        return self.height_m is not None or self.dem is not None

    @model_validator(mode="after")
    def _calibrated_alike(self) -> "Gaofen2":
        given = self.coefficients
        if self.calibrate == "none":
            if given is not None:
                raise ValueError("`coefficients` have no effect: set `calibrate: radiance` or `reflectance`")
            return self
        if self.units != "dn":
            raise ValueError(
                f"`calibrate: {self.calibrate}` needs digital numbers (`units: dn`): a stretched byte has lost them"
            )
        lists = {} if given is None else given.model_dump(exclude_none=True)
        wrong = next((name for name, values in lists.items() if len(values) != len(self.bands)), None)
        if wrong is not None:
            raise ValueError(f"`coefficients.{wrong}` has not one number for each of the {len(self.bands)} `bands`")
        if len(self.bands) != PUBLISHED_BANDS and {"gain", "irradiance"} - lists.keys():
            raise ValueError(
                f"coefficients are published for 4 bands, and `bands` has {len(self.bands)}: give all `coefficients`"
            )
        return self

    @model_validator(mode="after")
    def _raw_or_not(self) -> "Gaofen2":
        if self.synthetic is not None and self.takes_raw:
            raise ValueError(
                "`height_m` and `dem` have no effect on generated scenes, which lie on the ground already; "
                "`dithc synthesize --kind gaofen2-raw` writes products of level 1A, for `path`"
            )
        if self.pansharpen == "none":
            return self
        if not self.takes_raw:
            raise ValueError("`pansharpen` takes products of level 1A: say how high the ground is (`height_m`, `dem`)")
        if self.units != "dn":
            raise ValueError("`pansharpen` takes products of level 1A, whose numbers are `units: dn`")
        if self.gsd_m > SHARPENED_GSD_M:
            raise ValueError(
                f"`pansharpen` has no effect at `gsd_m: {self.gsd_m:g}`: choose {SHARPENED_GSD_M:g} or less, "
                "the panchromatic pixel is 0.8 m"
            )
        return self


class GeoTiff(_Files):
    """Rasters of any other sensor, which the configuration describes: Landsat, PlanetScope, Gaofen-1 and -6, aerial."""

    kind: Literal["geotiff"]
    """Selects this reader."""
    sensor: Title = ""
    """What took them, for the table of scenes."""
    bands: list[Band] = Field(min_length=1, max_length=64)
    """Names of the bands in the files' order."""
    suffixes: list[Title] | None = Field(default=None, min_length=1, max_length=64)
    """Where each band is a file of its own, how the names end, in the order of `bands`: `_SR_B4.TIF`. What stands before is the
    scene."""
    wavelengths_nm: list[Wavelength] | None = Field(default=None, min_length=1, max_length=64)
    """Middle of each band in nanometres, for the table of scenes."""
    units: Literal["dn", "byte", "reflectance", "radiance"]
    """What a number is, after `scale` and `offset`: a digital number (uint16 alone), a byte (uint8 alone), reflectance 0 to 1, or
    radiance (W m-2 sr-1 um-1)."""
    scale: Coefficient | list[Coefficient] = 1.0
    """Reflectance or radiance of a step of the stored numbers; one, or one for each band. 2.75e-5 for Landsat's Collection 2."""
    offset: Coefficient | list[Coefficient] = 0.0
    """Reflectance or radiance of the stored number 0; one, or one for each band. -0.2 for Landsat's Collection 2."""
    nodata: float | None = None
    """Stored value that means no data. It replaces the no-data value of a file; a mask or an alpha band still applies."""
    gsd_m: Metres | None = None
    """Pixel size in metres of files without georeference; where it is not given, they are rejected."""

    @model_validator(mode="after")
    def _not_generated(self) -> "GeoTiff":
        if self.synthetic is not None:
            raise ValueError(
                "a geotiff is not generated with an experiment: `dithc synthesize --kind geotiff`, and `path`"
            )
        return self

    @model_validator(mode="after")
    def _one_for_each_band(self) -> "GeoTiff":
        for name in ("suffixes", "wavelengths_nm", "scale", "offset"):
            values = getattr(self, name)
            if isinstance(values, list) and len(values) != len(self.bands):
                raise ValueError(f"`{name}` has {len(values)} values, and there are {len(self.bands)} `bands`")
        if self.suffixes is not None and len({suffix.lower() for suffix in self.suffixes}) < len(self.suffixes):
            raise ValueError("two bands have the same end in `suffixes`")
        if not all(suffix.lower().endswith((".tif", ".tiff", ".jp2")) for suffix in self.suffixes or []):
            raise ValueError("each of `suffixes` ends with .tif, .tiff or .jp2, such as `_SR_B4.TIF`")
        if self.units in ("dn", "byte") and (self.scale != 1.0 or self.offset != 0.0):
            raise ValueError(
                f"`scale` and `offset` have no effect on `units: {self.units}`, which are kept as they are stored"
            )
        steps = self.scale if isinstance(self.scale, list) else [self.scale]
        if 0.0 in steps:
            raise ValueError("`scale` is 0, which leaves nothing of the numbers")
        return self


class ImageFolder(_Source):
    """Pictures of classes, as ImageNet has them: in folders, tar archives, WebDataset or parquet shards."""

    kind: Literal["image-folder"]
    """Selects this reader."""
    size: Size = 256
    """Side of the centre crop in pixels; smaller pictures are enlarged and counted."""
    classes: Literal["folders", "one"] = "folders"
    """`folders`: each sub-folder, or archive in an archive, is a class, in sorted order, and shards say their own labels; `one`:
    all pictures are of one class, whatever is said."""
    layout: Literal["auto", "folders", "tar", "webdataset", "parquet"] = "auto"
    """How the pictures are packed: in class folders, in tar archives of classes (ImageNet's own, or a folder of class archives),
    in WebDataset or parquet shards; `auto` finds out and refuses what may be meant in two ways. Nothing is unpacked."""


BuiltInSource = Annotated[
    Sentinel2 | Sentinel2Stac | Sentinel2Array | Gaofen2 | GeoTiff | ImageFolder, Field(discriminator="kind")
]
Source = Annotated[
    BuiltInSource | SerializeAsAny[InstalledSource], taking(InstalledSource, kinds_of(BuiltInSource), BuiltInSource)
]
Conditions = Annotated[SerializeAsAny[InstalledConditions], taking(InstalledConditions, (), InstalledConditions)]


class Dataset(Settings):
    """One data set from its source to its latents."""

    title: Title
    """How the report calls it."""
    source: Source
    """Where scenes come from."""
    tiles: Tiles = Tiles()
    """How they are cut."""
    split: Split = Split()
    """How tiles are split."""
    scaling: Scaling = Scaling()
    """How bands are mapped to [-1, 1]."""
    rendering: Rendering
    """How tiles become pictures, for the eye and for every score."""
    codec: Name
    """Name of the codec (section `codecs`) that makes latents of the tiles."""
    conditions: list[Conditions] = Field(default=[], max_length=64)
    """Conditions of installed packages that are computed for each tile, beside those that every tile has (place, day, sun)."""
    views: Literal[2, 8] = 2
    """Views of a tile that are encoded: itself and its mirror image, or all quarter turns of both, which `augment: dihedral` of a
    run needs and which take four times the disk; 2 views that are there already are not encoded again, but finished runs of this
    data set train again where this is changed."""
    max_rejected: Fraction = 0.5
    """If a larger share of scene files cannot be used, staging ends with an error; for a file that contradicts a declared offset
    it ends in any case."""

    @model_validator(mode="after")
    def _cells_have_places(self) -> "Dataset":
        if self.split.cell_m is not None and self.source.kind == "image-folder":
            raise ValueError("`split.cell_m` has no effect on an image-folder, whose pictures have no place")
        return self

    @property
    def band_names(self) -> list[str] | None:
        """Bands of its tiles; None where the products decide, which are of Sentinel-2."""
        if self.source.kind == "image-folder":
            return ["R", "G", "B"]
        named: list[str] | None = getattr(self.source, "bands", None)
        is_made = named is None and self.source.synthetic is not None  # products of level 2A
        return [band for band in SENTINEL2_BANDS if band != NOT_OF_LEVEL_2A] if is_made else named

    @property
    def one_class(self) -> bool:
        """Whether all tiles have one class, as far as it is known before a scene is read: only folders of pictures have more."""
        source = self.source
        if isinstance(source, InstalledSource):
            return not source.labelled
        if not isinstance(source, ImageFolder) or source.classes == "one":
            return True
        return source.synthetic is not None and source.synthetic.classes == 1
