"""Names, metadata and manifest of synthetic Sentinel-2 products of level 2A, by ESA's naming rules."""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from dithc.data.grids import reproject_points
from dithc.runs import atomic_write
from dithc.sealed import plain

BANDS_BY_RESOLUTION: dict[int, tuple[str, ...]] = {
    10: ("B02", "B03", "B04", "B08"),
    20: ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B8A", "B11", "B12"),
    60: ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B8A", "B09", "B11", "B12"),
}
"""Bands of each resolution folder (metres). Level 2A has no B10."""
# Squares of 100 km inside MGRS latitude band T (40 to 48 degrees north) and well inside each of three UTM zones.
ZONES = (50, 51, 52)
EASTINGS_KM = (300, 400, 500, 600)
NORTHINGS_KM = tuple(range(4500, 5300, 100))
MAX_PRODUCTS = len(ZONES) * len(EASTINGS_KM) * len(NORTHINGS_KM)
FIRST_PASS = datetime(2022, 4, 1, 3, 5, 51)
PROCESSING = timedelta(seconds=15_103)
GRID_M = 60
BASELINE, RELATIVE_ORBIT = "04.00", 75
QUANTIFICATION, OFFSET = 10_000, -1000
"""Reflectance is (digital number + offset) / quantification."""
NODATA, SATURATED = 0, 65_535
MASKS = ("MSK_CLDPRB_20m.jp2", "MSK_CLDPRB_60m.jp2")
SCHEMA = "https://psd-14.sentinel2.eo.esa.int/PSD"
# Physical name, native resolution in metres, shortest, longest and central wavelength in nm (of Sentinel-2A).
SPECTRAL_BANDS = (
    ("B1", 60, 412, 456, 442.7),
    ("B2", 10, 456, 533, 492.7),
    ("B3", 10, 538, 583, 559.8),
    ("B4", 10, 646, 684, 664.6),
    ("B5", 20, 695, 714, 704.1),
    ("B6", 20, 731, 749, 740.5),
    ("B7", 20, 769, 797, 782.8),
    ("B8", 10, 760, 907, 832.8),
    ("B8A", 20, 837, 881, 864.7),
    ("B9", 60, 932, 958, 945.1),
    ("B10", 60, 1337, 1412, 1373.5),
    ("B11", 20, 1539, 1682, 1613.7),
    ("B12", 20, 2078, 2320, 2202.4),
)
# Name of a scene class in the product's metadata, and of its share in the statistics.
SCENE_CLASSES = {
    "SC_NODATA": "NODATA_PIXEL",
    "SC_SATURATED_DEFECTIVE": "SATURATED_DEFECTIVE_PIXEL",
    "SC_DARK_FEATURE_SHADOW": "DARK_FEATURES",
    "SC_CLOUD_SHADOW": "CLOUD_SHADOW",
    "SC_VEGETATION": "VEGETATION",
    "SC_NOT_VEGETATED": "NOT_VEGETATED",
    "SC_WATER": "WATER",
    "SC_UNCLASSIFIED": "UNCLASSIFIED",
    "SC_CLOUD_MEDIUM_PROBA": "MEDIUM_PROBA_CLOUDS",
    "SC_CLOUD_HIGH_PROBA": "HIGH_PROBA_CLOUDS",
    "SC_THIN_CIRRUS": "THIN_CIRRUS",
    "SC_SNOW_ICE": "SNOW_ICE",
}


@dataclass(frozen=True)
class SafeProduct:
    """A product of one granule; `index` decides place and date, `size` is its side in pixels of 10 m."""

    index: int
    size: int

    @property
    def zone(self) -> int:
        return ZONES[self.index // (len(EASTINGS_KM) * len(NORTHINGS_KM))]

    @property
    def _corner_km(self) -> tuple[int, int]:
        row, column = divmod(self.index, len(EASTINGS_KM))
        return EASTINGS_KM[column], NORTHINGS_KM[row % len(NORTHINGS_KM)]

    @property
    def tile(self) -> str:
        """MGRS name: column letters repeat every three zones, row letters every 2,000 km, shifted in even zones."""
        east, north = (kilometres // 100 for kilometres in self._corner_km)
        column = ("STUVWXYZ", "ABCDEFGH", "JKLMNPQR")[self.zone % 3][east - 1]
        row = "ABCDEFGHJKLMNPQRSTUV"[(north + (5 if self.zone % 2 == 0 else 0)) % 20]
        return f"{self.zone}T{column}{row}"

    @property
    def left_top(self) -> tuple[float, float]:
        """Outer upper-left corner in UTM metres, on the 60 m lattice, as ESA places its tiles."""
        east, north = (kilometres * 1000 for kilometres in self._corner_km)
        return math.floor(east / GRID_M) * float(GRID_M), math.ceil((north + 100_000) / GRID_M) * float(GRID_M)

    @property
    def epsg(self) -> int:
        return 32600 + self.zone

    @property
    def satellite(self) -> str:
        return ("S2A", "S2B")[self.index % 2]

    @property
    def sensed(self) -> datetime:
        return FIRST_PASS + timedelta(days=5 * self.index)

    @property
    def absolute_orbit(self) -> int:
        return 35_389 + 71 * self.index

    @property
    def name(self) -> str:
        return (
            f"{self.satellite}_MSIL2A_{stamp(self.sensed)}_N{BASELINE.replace('.', '')}_R{RELATIVE_ORBIT:03d}_T{self.tile}"
            f"_{stamp(self.sensed + PROCESSING)}.SAFE"
        )

    @property
    def granule(self) -> str:
        """Path of the granule's folder inside the product."""
        return f"GRANULE/L2A_T{self.tile}_A{self.absolute_orbit:06d}_{stamp(self.sensed)}"

    def image(self, layer: str, resolution: int) -> str:
        """Path of an image inside the product, without its extension; `layer` is a band, SCL, AOT, WVP or TCI."""
        name = f"T{self.tile}_{stamp(self.sensed)}_{layer}_{resolution}m"
        return f"{self.granule}/IMG_DATA/R{resolution}m/{name}"

    def quality(self, file: str) -> str:
        """Path of a file of the quality folder inside the product."""
        return f"{self.granule}/QI_DATA/{file}"

    @property
    def preview(self) -> str:
        """Path of the quick look inside the product."""
        return self.quality(f"T{self.tile}_{stamp(self.sensed)}_PVI.jp2")


def stamp(moment: datetime) -> str:
    """Format a time for a file name."""
    return moment.strftime("%Y%m%dT%H%M%S")


def _utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S}.024Z"


def write_metadata(root: Path, product: SafeProduct, *, percent: Iterable[float], sun: tuple[float, float]) -> None:
    """Write the XML of product and granule below `root`, with shares of scene classes and sun zenith and azimuth in degrees."""
    shares = dict(zip(SCENE_CLASSES.values(), percent, strict=True))
    cloudy = sum(shares[name] for name in ("MEDIUM_PROBA_CLOUDS", "HIGH_PROBA_CLOUDS", "THIN_CIRRUS"))
    content = "".join(f"<{name}_PERCENTAGE>{share:.6f}</{name}_PERCENTAGE>" for name, share in shares.items())
    strip = f"{stamp(product.sensed + PROCESSING)}_A{product.absolute_orbit:06d}_T{product.tile}_N{BASELINE}"
    identity = f"{product.satellite}_OPER_MSI_L2A_TL_DITHC_{strip}"
    atomic_write(root / "MTD_MSIL2A.xml", _product_document(product, identity, f"{cloudy:.6f}", content))
    atomic_write(
        root / product.granule / "MTD_TL.xml", _tile_document(product, identity, f"{cloudy:.6f}", content, sun)
    )


def _product_document(product: SafeProduct, identity: str, cloudy: str, content: str) -> str:
    layers = {
        r: (*bands, *(("SCL",) if r > 10 else ()), "AOT", "WVP", "TCI") for r, bands in BANDS_BY_RESOLUTION.items()
    }
    images = [f"<IMAGE_FILE>{product.image(one, r)}</IMAGE_FILE>" for r in layers for one in layers[r]]
    left, top = product.left_top
    side = product.size * 10.0
    xs, ys = [left, left + side, left + side, left, left], [top, top, top - side, top - side, top]
    longitudes, latitudes = reproject_points(xs, ys, source_epsg=product.epsg, target_epsg=4326)
    outline = " ".join(f"{lat:.9f} {lon:.9f}" for lat, lon in zip(latitudes, longitudes, strict=True))
    sensed, generated = _utc(product.sensed), product.sensed + PROCESSING
    datatake = f"G{product.satellite}_{stamp(product.sensed)}_{product.absolute_orbit:06d}_N{BASELINE}"
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<n1:Level-2A_User_Product xmlns:n1="{SCHEMA}/User_Product_Level-2A.xsd">
 <n1:General_Info>
  <Product_Info>
   <PRODUCT_START_TIME>{sensed}</PRODUCT_START_TIME>
   <PRODUCT_STOP_TIME>{sensed}</PRODUCT_STOP_TIME>
   <PRODUCT_URI>{product.name}</PRODUCT_URI>
   <PROCESSING_LEVEL>Level-2A</PROCESSING_LEVEL>
   <PRODUCT_TYPE>S2MSI2A</PRODUCT_TYPE>
   <PROCESSING_BASELINE>{BASELINE}</PROCESSING_BASELINE>
   <GENERATION_TIME>{_utc(generated)}</GENERATION_TIME>
   <Datatake datatakeIdentifier="{datatake}">
    <SPACECRAFT_NAME>Sentinel-{product.satellite[1:]}</SPACECRAFT_NAME>
    <DATATAKE_TYPE>INS-NOBS</DATATAKE_TYPE>
    <DATATAKE_SENSING_START>{sensed}</DATATAKE_SENSING_START>
    <SENSING_ORBIT_NUMBER>{RELATIVE_ORBIT}</SENSING_ORBIT_NUMBER>
    <SENSING_ORBIT_DIRECTION>DESCENDING</SENSING_ORBIT_DIRECTION>
   </Datatake>
   <Query_Options completeSingleTile="true"><PRODUCT_FORMAT>SAFE_COMPACT</PRODUCT_FORMAT></Query_Options>
   <Product_Organisation><Granule_List>
    <Granule datastripIdentifier="{product.satellite}_OPER_MSI_L2A_DS_DITHC_{stamp(generated)}_N{BASELINE}"
     granuleIdentifier="{identity}" imageFormat="JPEG2000">{"".join(images)}</Granule>
   </Granule_List></Product_Organisation>
  </Product_Info>
{_characteristics()} </n1:General_Info>
 <n1:Geometric_Info>
  <Product_Footprint><Product_Footprint><Global_Footprint><EXT_POS_LIST>{outline}</EXT_POS_LIST></Global_Footprint>
  </Product_Footprint></Product_Footprint>
  <Coordinate_Reference_System><GEO_TABLES version="1">EPSG</GEO_TABLES><HORIZONTAL_CS_TYPE>GEOGRAPHIC</HORIZONTAL_CS_TYPE>
  </Coordinate_Reference_System>
 </n1:Geometric_Info>
 <n1:Quality_Indicators_Info>
  <Cloud_Coverage_Assessment>{cloudy}</Cloud_Coverage_Assessment>
  <Image_Content_QI>{content}</Image_Content_QI>
 </n1:Quality_Indicators_Info>
</n1:Level-2A_User_Product>
"""


def _characteristics() -> str:
    """Return the part of the product's metadata that is the same in every product."""
    special = [
        f"<Special_Values><SPECIAL_VALUE_TEXT>{name}</SPECIAL_VALUE_TEXT>"
        f"<SPECIAL_VALUE_INDEX>{value}</SPECIAL_VALUE_INDEX></Special_Values>"
        for name, value in (("NODATA", NODATA), ("SATURATED", SATURATED))
    ]
    numbers = (("BOA", QUANTIFICATION, "none"), ("AOT", 1000.0, "none"), ("WVP", 1000.0, "cm"))
    quantifications = [
        f'<{name}_QUANTIFICATION_VALUE unit="{unit}">{value}</{name}_QUANTIFICATION_VALUE>'
        for name, value, unit in numbers
    ]
    offsets = [f'<BOA_ADD_OFFSET band_id="{index}">{OFFSET}</BOA_ADD_OFFSET>' for index, _ in enumerate(SPECTRAL_BANDS)]
    spectral = [
        f'<Spectral_Information bandId="{index}" physicalBand="{name}"><RESOLUTION>{gsd}</RESOLUTION><Wavelength>'
        f'<MIN unit="nm">{least}</MIN><MAX unit="nm">{most}</MAX><CENTRAL unit="nm">{central}</CENTRAL></Wavelength>'
        "</Spectral_Information>"
        for index, (name, gsd, least, most, central) in enumerate(SPECTRAL_BANDS)
    ]
    classes = [
        f"<Scene_Classification_ID><SCENE_CLASSIFICATION_TEXT>{name}</SCENE_CLASSIFICATION_TEXT>"
        f"<SCENE_CLASSIFICATION_INDEX>{index}</SCENE_CLASSIFICATION_INDEX></Scene_Classification_ID>"
        for index, name in enumerate(SCENE_CLASSES)
    ]
    return f"""  <Product_Image_Characteristics>
   {"".join(special)}
   <QUANTIFICATION_VALUES_LIST>{"".join(quantifications)}</QUANTIFICATION_VALUES_LIST>
   <BOA_ADD_OFFSET_VALUES_LIST>{"".join(offsets)}</BOA_ADD_OFFSET_VALUES_LIST>
   <Spectral_Information_List>{"".join(spectral)}</Spectral_Information_List>
   <Scene_Classification_List>{"".join(classes)}</Scene_Classification_List>
  </Product_Image_Characteristics>
"""


def _tile_document(product: SafeProduct, identity: str, cloudy: str, content: str, sun: tuple[float, float]) -> str:
    left, top = map(round, product.left_top)
    grids = "".join(
        f'<Size resolution="{r}"><NROWS>{product.size * 10 // r}</NROWS><NCOLS>{product.size * 10 // r}</NCOLS></Size>'
        for r in BANDS_BY_RESOLUTION
    ) + "".join(
        f'<Geoposition resolution="{r}"><ULX>{left}</ULX><ULY>{top}</ULY><XDIM>{r}</XDIM><YDIM>-{r}</YDIM></Geoposition>'
        for r in BANDS_BY_RESOLUTION
    )
    masks = "".join(f'<MASK_FILENAME type="{name[:10]}">{product.quality(name)}</MASK_FILENAME>' for name in MASKS)
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<n1:Level-2A_Tile_ID xmlns:n1="{SCHEMA}/S2_PDI_Level-2A_Tile_Metadata.xsd">
 <n1:General_Info>
  <TILE_ID metadataLevel="Brief">{identity}</TILE_ID>
  <SENSING_TIME metadataLevel="Standard">{_utc(product.sensed)}</SENSING_TIME>
 </n1:General_Info>
 <n1:Geometric_Info>
  <Tile_Geocoding metadataLevel="Brief">
   <HORIZONTAL_CS_NAME>WGS84 / UTM zone {product.zone}N</HORIZONTAL_CS_NAME>
   <HORIZONTAL_CS_CODE>EPSG:{product.epsg}</HORIZONTAL_CS_CODE>{grids}
  </Tile_Geocoding>
  <Tile_Angles metadataLevel="Standard"><Mean_Sun_Angle>
   <ZENITH_ANGLE unit="deg">{sun[0]}</ZENITH_ANGLE><AZIMUTH_ANGLE unit="deg">{sun[1]}</AZIMUTH_ANGLE>
  </Mean_Sun_Angle></Tile_Angles>
 </n1:Geometric_Info>
 <n1:Quality_Indicators_Info metadataLevel="Standard">
  <Image_Content_QI><CLOUDY_PIXEL_PERCENTAGE>{cloudy}</CLOUDY_PIXEL_PERCENTAGE>{content}</Image_Content_QI>
  <Pixel_Level_QI geometry="FULL_RESOLUTION">{masks}</Pixel_Level_QI>
  <PVI_FILENAME>{product.preview}</PVI_FILENAME>
 </n1:Quality_Indicators_Info>
</n1:Level-2A_Tile_ID>
"""


def write_manifest(root: Path, *, checksum: str = "SHA3-256") -> None:
    """Write `manifest.safe` of a complete product below `root`, with `SHA3-256` or `MD5` checksums."""
    rows = []
    for path in sorted(path for path in root.rglob("*") if path.is_file() and path.name != "manifest.safe"):
        content = plain(path).read_bytes()
        identity = f"{path.stem}_{path.parent.name}_Data" if path.suffix == ".jp2" else f"{path.stem}_Metadata"
        mime = "text/xml" if path.suffix == ".xml" else "application/octet-stream"
        digest = hashlib.new(checksum.lower().replace("-", "_"), content, usedforsecurity=False).hexdigest()
        rows.append(
            f'<dataObject ID="{identity}"><byteStream mimeType="{mime}" size="{len(content)}">'
            f'<fileLocation locatorType="URL" href="./{path.relative_to(root).as_posix()}"/>'
            f'<checksum checksumName="{checksum}">{digest}</checksum></byteStream></dataObject>\n'
        )
    atomic_write(
        root / "manifest.safe",
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<xfdu:XFDU xmlns:xfdu="urn:ccsds:schema:xfdu:1" version="esa/safe/sentinel/1.1/sentinel-2/msi/user_product">\n'
        f"<informationPackageMap/><dataObjectSection>\n{''.join(rows)}</dataObjectSection></xfdu:XFDU>\n",
    )
