"""Settings of data sets: where scenes come from, how they become tiles, how tiles are split, scaled and shown."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dithc.config.base import Band, Fraction, Metres, Name, Place, Positive, Settings, Size, Title

# In the units of the data set, digital numbers or reflectances: far beyond both, and far from what fp32 cannot tell apart.
Shown = Annotated[float, Field(ge=-(10.0**9), le=10.0**9)]


Sentinel2Band = Literal["B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B10", "B11", "B12"]


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

    @model_validator(mode="after")
    def _one_origin(self) -> "_Source":
        if (self.path is None) == (self.synthetic is None):
            raise ValueError("give exactly one of `path` (where your files are) and `synthetic` (generate them)")
        return self


class Clouds(Settings):
    """Which pixels of a scene count as cloud; `tiles.max_cloud` says how many a tile may have."""

    beside: bool = False
    """Read a mask of your own for each scene: `NAME_mask.npy` or `NAME_mask.tif` beside `NAME.SAFE`, `NAME.npy` or `NAME.tif`, on
    the scene's pixels; 0 is clear, 255 no data, 1 or a number of QA60 (1024, 2048, 3072) cloud. Each scene must have one."""
    buffer_m: float = Field(default=0.0, ge=0.0, le=10_000.0)
    """Metres around each cloudy pixel, to all four sides and corners, that count as cloud too."""


class ProductClouds(Clouds):
    """Which pixels of a product count as cloud, by its own masks or by one of yours; what is said by any of them counts."""

    classes: list[Annotated[int, Field(ge=2, le=11)]] = Field(default=[3, 8, 9, 10], max_length=10)
    """Classes of the scene classification (SCL, L2A) that count as cloud: by default cloud shadow (3), clouds of medium and high
    probability (8, 9) and thin cirrus (10); 2 is dark ground, 11 snow."""
    probability: int | None = Field(default=None, ge=1, le=100)
    """Percent of cloud probability (MSK_CLDPRB, L2A) from which on a pixel counts as cloud; the mask is not read if not given."""
    classi: bool = False
    """Count opaque clouds and cirrus of MSK_CLASSI as cloud, the raster mask of L1C products from baseline 04.00 on."""


class Sentinel2(_Source):
    """Sentinel-2 products as ESA delivers them: `.SAFE` folders or zip files of them, L1C or L2A."""

    kind: Literal["sentinel2"]
    """Selects this reader."""
    checksum: Literal["verify", "skip"] = "verify"
    """Compare every file with the checksum in manifest.safe; `skip` trusts the disk."""
    may_lack: list[Title] = Field(default=[], max_length=1000)
    """Files that manifest.safe lists and that need not be there, as patterns of their paths in the product: `*/QI_DATA/*`, or `*`
    for products of which a part was downloaded. The file of a band's own pixel size is needed in any case."""
    gsd_m: Metres = 10.0
    """Pixel size of the common grid in metres. Where a product has a band at several sizes, the file of this size is read, or the
    next finer one; a band is brought to a finer grid from its own pixel size alone, never from a coarser copy."""
    bands: list[Sentinel2Band] | None = Field(default=None, min_length=1, max_length=13)
    """Bands to read, in this order; all of the product's level in the order B01 to B12 if not given."""
    clouds: ProductClouds = ProductClouds()
    """Which pixels count as cloud."""

    @model_validator(mode="after")
    def _bands_once(self) -> "Sentinel2":
        if self.bands is not None and len(set(self.bands)) < len(self.bands):
            raise ValueError(f"`bands` names a band twice: {', '.join(self.bands)}")
        return self

    @model_validator(mode="after")
    def _grids_end_together(self) -> "Sentinel2":
        if self.synthetic is not None and (side := self.synthetic.size) % 6:
            below = side // 6 * 6
            raise ValueError(
                f"`synthetic.size` is {side}, no multiple of 6, in which the grids of 10 m, 20 m and 60 m end together: "
                f"use {below} or {below + 6}"
            )
        return self


class Sentinel2Array(_Source):
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
    """Stored value that means no data; none when the file itself says or there is none."""
    gsd_m: Metres = 10.0
    """Pixel size in metres of files without georeference."""
    clouds: Clouds = Clouds()
    """Which pixels count as cloud; without a mask beside the files, none."""

    @model_validator(mode="after")
    def _buffer_has_clouds(self) -> "Sentinel2Array":
        if self.clouds.buffer_m and not self.clouds.beside:
            raise ValueError("`clouds.buffer_m` has no effect without masks: set `clouds.beside` too")
        return self

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


class Gaofen2(_Source):
    """Gaofen-2 multispectral scenes: orthorectified 4-band GeoTIFF (with its XML), or .npy cut from one."""

    kind: Literal["gaofen2"]
    """Selects this reader."""
    bands: list[Band] = Field(default=["B", "G", "R", "NIR"], min_length=1, max_length=64)
    """Names of the bands in the files' order."""
    units: Literal["dn", "byte"] = "dn"
    """What a stored number is: a 10-bit digital number (uint16), or an already stretched byte (uint8)."""
    layout: Literal["chw", "hwc"] = "chw"
    """Order of axes in .npy files; GeoTIFF is always chw."""
    gsd_m: Metres = 4.0
    """Pixel size in metres of files without georeference; recorded with every tile."""


class ImageFolder(_Source):
    """Pictures in class folders, as ImageNet has them."""

    kind: Literal["image-folder"]
    """Selects this reader."""
    size: Size = 256
    """Side of the centre crop in pixels; smaller pictures are enlarged and counted."""
    classes: Literal["folders", "one"] = "folders"
    """`folders`: each sub-folder is a class, in sorted order; `one`: all pictures are of one class."""


Source = Annotated[Sentinel2 | Sentinel2Array | Gaofen2 | ImageFolder, Field(discriminator="kind")]


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
    """Side of a geographic cell in tiles; a cell is never split, a tile across two splits is rejected."""

    @model_validator(mode="after")
    def _at_most_all(self) -> "Split":
        if self.train + self.val > 1.0:
            raise ValueError(f"train + val is {self.train + self.val}, more than 1")
        return self


class Scaling(Settings):
    """The fixed affine map of each band to [-1, 1] that the codec sees; from train tiles only, never per image."""

    low_percentile: float = Field(default=1.0, ge=0.0, lt=50.0)
    """Percentile of the band that becomes -1."""
    high_percentile: float = Field(default=99.0, gt=50.0, le=100.0)
    """Percentile of the band that becomes +1."""


class Display(Settings):
    """The fixed stretch to 8-bit RGB, the same for real and generated images; features are computed on it."""

    bands: tuple[Band, Band, Band]
    """Bands shown as red, green and blue."""
    low: Shown | tuple[Shown, Shown, Shown]
    """Value (in the units of the data set) that becomes 0; one, or one for each of red, green and blue."""
    high: Shown | tuple[Shown, Shown, Shown]
    """Value that becomes 255; one, or one for each of red, green and blue."""

    @model_validator(mode="after")
    def _rises(self) -> "Display":
        ends = [end if isinstance(end, tuple) else (end,) * 3 for end in (self.low, self.high)]
        if any(low >= high for low, high in zip(*ends, strict=True)):
            raise ValueError(f"`low` {self.low} is not below `high` {self.high}")
        return self


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
    display: Display
    """How tiles are shown as RGB."""
    codec: Name
    """Name of the codec (section `codecs`) that makes latents of the tiles."""
    views: Literal[2, 8] = 2
    """Views of a tile that are encoded: itself and its mirror image, or all quarter turns of both, which `augment: dihedral` of a
    run needs and which take four times the disk; 2 views that are there already are not encoded again, but finished runs of this
    data set train again where this is changed."""
    max_rejected: Fraction = 0.5
    """If a larger share of scene files cannot be used, staging ends with an error; for a file that contradicts a declared offset
    it ends in any case."""

    @property
    def one_class(self) -> bool:
        """Whether all tiles have one class, as far as it is known before a scene is read: only folders of pictures have more."""
        source = self.source
        if source.kind != "image-folder" or source.classes == "one":
            return True
        return source.synthetic is not None and source.synthetic.classes == 1
