"""Names, metadata and manifest of synthetic Sentinel-2 products of level 2A, by ESA's naming rules."""

import hashlib
import math
from datetime import datetime, timedelta
from pathlib import Path

from dithc.core.artifacts import atomic_write
from dithc.core.integrity import require_regular_file

BANDS_BY_RESOLUTION: dict[int, tuple[str, ...]] = {
    10: ("B02", "B03", "B04", "B08"),
    20: ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B8A", "B11", "B12"),
    60: ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B8A", "B09", "B11", "B12"),
}
"""Bands of each resolution folder (meters). Level 2A has no B10."""
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
SATURATED = 65_535
MASKS = ("MSK_CLDPRB_20m", "MSK_CLDPRB_60m")
SCHEMA = "https://psd-14.sentinel2.eo.esa.int/PSD"
SPECTRAL_BANDS = ("B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B8A", "B9", "B10", "B11", "B12")
SCL_CLASSES = (
    *("NODATA", "SATURATED_DEFECTIVE", "DARK_FEATURE_SHADOW", "CLOUD_SHADOW", "VEGETATION", "NOT_VEGETATED"),
    *("WATER", "UNCLASSIFIED", "CLOUD_MEDIUM_PROBA", "CLOUD_HIGH_PROBA", "THIN_CIRRUS", "SNOW_ICE"),
)
SCL = {name: number for number, name in enumerate(SCL_CLASSES)}


class SafeProduct:
    """Product with place and date by `index`, and `size` pixels of 10 m.

    In MGRS tile names, column letters repeat every three zones, and row letters every 2,000 km, with an offset in even zones.
    `left_top` is the outer upper-left corner in UTM meters, a multiple of 60 m as for ESA's tiles.
    """

    def __init__(self, index: int, size: int) -> None:
        self.index, self.size = index, size
        self.zone = ZONES[index // (len(EASTINGS_KM) * len(NORTHINGS_KM))]
        self.epsg = 32600 + self.zone
        row, column = divmod(index, len(EASTINGS_KM))
        east, north = EASTINGS_KM[column], NORTHINGS_KM[row % len(NORTHINGS_KM)]
        letter = ("STUVWXYZ", "ABCDEFGH", "JKLMNPQR")[self.zone % 3][east // 100 - 1]
        offset = 5 if self.zone % 2 == 0 else 0
        self.tile = f"{self.zone}T{letter}{'ABCDEFGHJKLMNPQRSTUV'[(north // 100 + offset) % 20]}"
        left, top = math.floor(east * 1000 / GRID_M), math.ceil((north + 100) * 1000 / GRID_M)
        self.left_top = left * float(GRID_M), top * float(GRID_M)
        self.satellite = ("S2A", "S2B")[index % 2]
        self.sensed = FIRST_PASS + timedelta(days=5 * index)
        self.absolute_orbit = 35_389 + 71 * index
        self.name = (
            f"{self.satellite}_MSIL2A_{stamp(self.sensed)}_N{BASELINE.replace('.', '')}_R{RELATIVE_ORBIT:03d}"
            f"_T{self.tile}_{stamp(self.sensed + PROCESSING)}.SAFE"
        )
        self.granule = f"GRANULE/L2A_T{self.tile}_A{self.absolute_orbit:06d}_{stamp(self.sensed)}"

    def image(self, layer: str, resolution: int) -> str:
        """Return the path of a band or SCL in the product, without suffix."""
        name = f"T{self.tile}_{stamp(self.sensed)}_{layer}_{resolution}m"
        return f"{self.granule}/IMG_DATA/R{resolution}m/{name}"

    def quality(self, file: str) -> str:
        return f"{self.granule}/QI_DATA/{file}"


def stamp(moment: datetime) -> str:
    return moment.strftime("%Y%m%dT%H%M%S")


def write_metadata(root: Path, product: SafeProduct, *, sun: tuple[float, float]) -> None:
    """Write the XML files; `sun` is zenith and azimuth in degrees."""
    strip = f"{stamp(product.sensed + PROCESSING)}_A{product.absolute_orbit:06d}_T{product.tile}_N{BASELINE}"
    identity = f"{product.satellite}_OPER_MSI_L2A_TL_DITHC_{strip}"
    sensed = f"{product.sensed:%Y-%m-%dT%H:%M:%S}.024Z"
    atomic_write(root / "MTD_MSIL2A.xml", _product_document(product, identity, sensed))
    atomic_write(root / product.granule / "MTD_TL.xml", _tile_document(product, identity, sensed, sun))


def _product_document(product: SafeProduct, identity: str, sensed: str) -> str:
    images = [
        f"<IMAGE_FILE>{product.image(layer, r)}</IMAGE_FILE>"
        for r, bands in BANDS_BY_RESOLUTION.items()
        for layer in (*bands, *(("SCL",) if r > 10 else ()))
    ]
    offsets = [f'<BOA_ADD_OFFSET band_id="{i}">{OFFSET}</BOA_ADD_OFFSET>' for i, _ in enumerate(SPECTRAL_BANDS)]
    bands = [f'<Spectral_Information bandId="{i}" physicalBand="{name}"/>' for i, name in enumerate(SPECTRAL_BANDS)]
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<n1:Level-2A_User_Product xmlns:n1="{SCHEMA}/User_Product_Level-2A.xsd">
 <n1:General_Info>
  <Product_Info>
   <PRODUCT_START_TIME>{sensed}</PRODUCT_START_TIME>
   <PRODUCT_URI>{product.name}</PRODUCT_URI>
   <PROCESSING_LEVEL>Level-2A</PROCESSING_LEVEL>
   <PRODUCT_TYPE>S2MSI2A</PRODUCT_TYPE>
   <PROCESSING_BASELINE>{BASELINE}</PROCESSING_BASELINE>
   <Datatake><SPACECRAFT_NAME>Sentinel-{product.satellite[1:]}</SPACECRAFT_NAME></Datatake>
   <Query_Options completeSingleTile="true"><PRODUCT_FORMAT>SAFE_COMPACT</PRODUCT_FORMAT></Query_Options>
   <Product_Organisation><Granule_List>
    <Granule granuleIdentifier="{identity}" imageFormat="JPEG2000">{"".join(images)}</Granule>
   </Granule_List></Product_Organisation>
  </Product_Info>
  <Product_Image_Characteristics>
   <QUANTIFICATION_VALUES_LIST><BOA_QUANTIFICATION_VALUE unit="none">{QUANTIFICATION}</BOA_QUANTIFICATION_VALUE>
   </QUANTIFICATION_VALUES_LIST>
   <BOA_ADD_OFFSET_VALUES_LIST>{"".join(offsets)}</BOA_ADD_OFFSET_VALUES_LIST>
   <Spectral_Information_List>{"".join(bands)}</Spectral_Information_List>
  </Product_Image_Characteristics>
 </n1:General_Info>
</n1:Level-2A_User_Product>
"""


def _tile_document(product: SafeProduct, identity: str, sensed: str, sun: tuple[float, float]) -> str:
    left, top = map(round, product.left_top)
    grids = "".join(
        f'<Size resolution="{r}"><NROWS>{product.size * 10 // r}</NROWS><NCOLS>{product.size * 10 // r}</NCOLS></Size>'
        for r in BANDS_BY_RESOLUTION
    ) + "".join(
        f'<Geoposition resolution="{r}"><ULX>{left}</ULX><ULY>{top}</ULY>'
        f"<XDIM>{r}</XDIM><YDIM>-{r}</YDIM></Geoposition>"
        for r in BANDS_BY_RESOLUTION
    )
    masks = "".join(f'<MASK_FILENAME type="{name[:10]}">{product.quality(name)}.jp2</MASK_FILENAME>' for name in MASKS)
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<n1:Level-2A_Tile_ID xmlns:n1="{SCHEMA}/S2_PDI_Level-2A_Tile_Metadata.xsd">
 <n1:General_Info>
  <TILE_ID metadataLevel="Brief">{identity}</TILE_ID>
  <SENSING_TIME metadataLevel="Standard">{sensed}</SENSING_TIME>
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
  <Pixel_Level_QI geometry="FULL_RESOLUTION">{masks}</Pixel_Level_QI>
 </n1:Quality_Indicators_Info>
</n1:Level-2A_Tile_ID>
"""


def write_manifest(root: Path, *, checksum: str = "SHA3-256") -> None:
    """Write `manifest.safe` of a complete product, with SHA3-256 or MD5 checksums."""
    rows = []
    for path in sorted(path for path in root.rglob("*") if path.is_file() and path.name != "manifest.safe"):
        content = require_regular_file(path).read_bytes()
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
