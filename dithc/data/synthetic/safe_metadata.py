"""Metadata of an invented Sentinel-2 product and its granules, with the element names of real ones of its baseline."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from dithc.data.grids import reproject_points
from dithc.data.synthetic.safe_product import LEVEL1C_GSD_M, SafeProduct, layers
from dithc.data.xml import Element, element

QUANTIFICATION = 10_000
NODATA, SATURATED = 0, 65_535
RESOLUTIONS = (10, 20, 60)

# physical name, native resolution in metres, shortest, longest and central wavelength in nm (of Sentinel-2A).
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
SCENE_CLASSES = (
    *("SC_NODATA", "SC_SATURATED_DEFECTIVE", "SC_DARK_FEATURE_SHADOW", "SC_CLOUD_SHADOW", "SC_VEGETATION"),
    *("SC_NOT_VEGETATED", "SC_WATER", "SC_UNCLASSIFIED", "SC_CLOUD_MEDIUM_PROBA", "SC_CLOUD_HIGH_PROBA"),
    *("SC_THIN_CIRRUS", "SC_SNOW_ICE"),
)
PERCENTAGES = (
    *("NODATA_PIXEL", "SATURATED_DEFECTIVE_PIXEL", "DARK_FEATURES", "CLOUD_SHADOW", "VEGETATION", "NOT_VEGETATED"),
    *("WATER", "UNCLASSIFIED", "MEDIUM_PROBA_CLOUDS", "HIGH_PROBA_CLOUDS", "THIN_CIRRUS", "SNOW_ICE"),
)
SCHEMA = "https://psd-14.sentinel2.eo.esa.int/PSD"


def product_document(granules: Sequence[SafeProduct], *, scl_percent: tuple[float, ...]) -> Element:
    """The product's; `scl_percent` is the share of each of the 12 scene classes in percent."""
    product = granules[0]
    latitudes, longitudes = footprint(product)
    corners = " ".join(f"{lat:.9f} {lon:.9f}" for lat, lon in zip(latitudes, longitudes, strict=True))
    geometry = element("Product_Footprint", element("Global_Footprint", element("EXT_POS_LIST", text=corners)))
    system = element(
        "Coordinate_Reference_System",
        element("GEO_TABLES", text="EPSG", attributes={"version": 1}),
        element("HORIZONTAL_CS_TYPE", text="GEOGRAPHIC"),
    )
    level = product.level[1:]
    space = {"n1": f"{SCHEMA}/User_Product_Level-{level}.xsd"}
    return element(
        f"n1:Level-{level}_User_Product",
        element("n1:General_Info", _product_info(granules), _image_characteristics(product), namespaces=space),
        element("n1:Geometric_Info", element("Product_Footprint", geometry), system, namespaces=space),
        element(
            "n1:Quality_Indicators_Info",
            element("Cloud_Coverage_Assessment", text=f"{_cloudy(scl_percent):.6f}"),
            element("Image_Content_QI", *_percentages(scl_percent)),
            namespaces=space,
        ),
        namespaces=space,
    )


def tile_document(product: SafeProduct, *, scl_percent: tuple[float, ...], sun: tuple[float, float]) -> Element:
    """The granule's; `sun` is zenith and azimuth in degrees."""
    level = product.level[1:]
    space = {"n1": f"{SCHEMA}/S2_PDI_Level-{level}_Tile_Metadata.xsd"}
    masks = [
        element("MASK_FILENAME", text=product.quality(name), attributes={"type": name[:10]})
        for name in masks_of(product)
    ]
    cloudy = element("CLOUDY_PIXEL_PERCENTAGE", text=f"{_cloudy(scl_percent):.6f}")
    angle = {"unit": "deg"}
    return element(
        f"n1:Level-{level}_Tile_ID",
        element(
            "n1:General_Info",
            element("TILE_ID", text=_granule_identity(product), attributes={"metadataLevel": "Brief"}),
            element("SENSING_TIME", text=utc(product.sensed), attributes={"metadataLevel": "Standard"}),
            namespaces=space,
        ),
        element(
            "n1:Geometric_Info",
            _geocoding(product),
            element(
                "Tile_Angles",
                element(
                    "Mean_Sun_Angle",
                    element("ZENITH_ANGLE", text=sun[0], attributes=angle),
                    element("AZIMUTH_ANGLE", text=sun[1], attributes=angle),
                ),
                attributes={"metadataLevel": "Standard"},
            ),
            namespaces=space,
        ),
        element(
            "n1:Quality_Indicators_Info",
            element("Image_Content_QI", cloudy, *_percentages(scl_percent)),
            element("Pixel_Level_QI", *masks, attributes={"geometry": "FULL_RESOLUTION"}),
            element("PVI_FILENAME", text=product.quality(preview_name(product))),
            namespaces=space,
            attributes={"metadataLevel": "Standard"},
        ),
        namespaces=space,
    )


def masks_of(product: SafeProduct) -> list[str]:
    """Names of a granule's raster masks of clouds; those of level L1C were polygons before the offsets came."""
    if product.level == "L2A":
        return ["MSK_CLDPRB_20m.jp2", "MSK_CLDPRB_60m.jp2"]
    return ["MSK_CLASSI_B00.jp2"] if product.offset else []


def footprint(product: SafeProduct) -> tuple[list[float], list[float]]:
    """Latitudes and longitudes of the closed outline, in degrees."""
    left, top = product.left_top
    side = product.size * 10.0
    xs, ys = [left, left + side, left + side, left, left], [top, top, top - side, top - side, top]
    longitudes, latitudes = reproject_points(xs, ys, source_epsg=product.epsg, target_epsg=4326)
    return latitudes, longitudes


def preview_name(product: SafeProduct) -> str:
    """File name of the quick look."""
    return f"T{product.tile}_{product.sensed:%Y%m%dT%H%M%S}_PVI.jp2"


def _product_info(granules: Sequence[SafeProduct]) -> Element:
    product = granules[0]
    satellite = f"Sentinel-{product.satellite[1:]}"
    datatake = f"G{product.satellite}_{product.sensed:%Y%m%dT%H%M%S}_{product.absolute_orbit:06d}_N{product.baseline}"
    return element(
        "Product_Info",
        element("PRODUCT_START_TIME", text=utc(product.sensed)),
        element("PRODUCT_STOP_TIME", text=utc(product.sensed)),
        element("PRODUCT_URI", text=product.name),
        element("PROCESSING_LEVEL", text=f"Level-{product.level[1:]}"),
        element("PRODUCT_TYPE", text=f"S2MSI{product.level[1:]}"),
        element("PROCESSING_BASELINE", text=product.baseline),
        element("GENERATION_TIME", text=utc(product.generated)),
        element(
            "Datatake",
            element("SPACECRAFT_NAME", text=satellite),
            element("DATATAKE_TYPE", text="INS-NOBS"),
            element("DATATAKE_SENSING_START", text=utc(product.sensed)),
            element("SENSING_ORBIT_NUMBER", text=product.relative_orbit),
            element("SENSING_ORBIT_DIRECTION", text="DESCENDING"),
            attributes={"datatakeIdentifier": datatake},
        ),
        element(
            "Query_Options",
            element("PRODUCT_FORMAT", text="SAFE" if product.variant.long_names else "SAFE_COMPACT"),
            attributes={"completeSingleTile": "true"},
        ),
        element("Product_Organisation", element("Granule_List", *map(_granule, granules))),
    )


def _granule(product: SafeProduct) -> Element:
    images = [element("IMAGE_FILE", text=image) for image in images_of(product)]
    strip = f"{product.satellite}_OPER_MSI_{product.level}_DS_DITHC_{product.generated:%Y%m%dT%H%M%S}"
    identity = {
        "datastripIdentifier": f"{strip}_N{product.baseline}",
        "granuleIdentifier": _granule_identity(product),
        "imageFormat": "JPEG2000",
    }
    return element("Granule", *images, attributes=identity)


def images_of(product: SafeProduct) -> list[str]:
    """Paths of all images of a granule, without their extension."""
    if product.level == "L1C":
        return [product.image(band, gsd) for band, gsd in sorted(LEVEL1C_GSD_M.items())]
    return [product.image(layer, resolution) for resolution in RESOLUTIONS for layer in layers(resolution)]


def _image_characteristics(product: SafeProduct) -> Element:
    special = [
        element(
            "Special_Values",
            element("SPECIAL_VALUE_TEXT", text=name),
            element("SPECIAL_VALUE_INDEX", text=value),
        )
        for name, value in (("NODATA", NODATA), ("SATURATED", SATURATED))
    ]
    spectral = element("Spectral_Information_List", *(_spectral(index) for index in range(len(SPECTRAL_BANDS))))
    if product.level == "L1C":
        quantification = element("QUANTIFICATION_VALUE", text=QUANTIFICATION, attributes={"unit": "none"})
        offsets = _offsets(product, "Radiometric_Offset_List", "RADIO_ADD_OFFSET")
        return element("Product_Image_Characteristics", *special, quantification, *offsets, spectral)
    quantities = (("BOA", QUANTIFICATION, "none"), ("AOT", "1000.0", "none"), ("WVP", "1000.0", "cm"))
    classes = [
        element(
            "Scene_Classification_ID",
            element("SCENE_CLASSIFICATION_TEXT", text=name),
            element("SCENE_CLASSIFICATION_INDEX", text=index),
        )
        for index, name in enumerate(SCENE_CLASSES)
    ]
    return element(
        "Product_Image_Characteristics",
        *special,
        element(
            "QUANTIFICATION_VALUES_LIST",
            *(
                element(f"{name}_QUANTIFICATION_VALUE", text=value, attributes={"unit": unit})
                for name, value, unit in quantities
            ),
        ),
        *_offsets(product, "BOA_ADD_OFFSET_VALUES_LIST", "BOA_ADD_OFFSET"),
        spectral,
        element("Scene_Classification_List", *classes),
    )


def _offsets(product: SafeProduct, name: str, each: str) -> list[Element]:
    """The list of offsets by band; none before baseline 04.00."""
    bands = range(len(SPECTRAL_BANDS))
    offsets = [element(each, text=product.offset, attributes={"band_id": index}) for index in bands]
    return [element(name, *offsets)] if product.offset else []


def _spectral(index: int) -> Element:
    name, resolution, shortest, longest, central = SPECTRAL_BANDS[index]
    unit = {"unit": "nm"}
    return element(
        "Spectral_Information",
        element("RESOLUTION", text=resolution),
        element(
            "Wavelength",
            element("MIN", text=shortest, attributes=unit),
            element("MAX", text=longest, attributes=unit),
            element("CENTRAL", text=central, attributes=unit),
        ),
        attributes={"bandId": index, "physicalBand": name},
    )


def _geocoding(product: SafeProduct) -> Element:
    left, top = product.left_top
    sizes = [
        element(
            "Size",
            element("NROWS", text=product.size * 10 // resolution),
            element("NCOLS", text=product.size * 10 // resolution),
            attributes={"resolution": resolution},
        )
        for resolution in RESOLUTIONS
    ]
    positions = [
        element(
            "Geoposition",
            element("ULX", text=round(left)),
            element("ULY", text=round(top)),
            element("XDIM", text=resolution),
            element("YDIM", text=-resolution),
            attributes={"resolution": resolution},
        )
        for resolution in RESOLUTIONS
    ]
    return element(
        "Tile_Geocoding",
        element("HORIZONTAL_CS_NAME", text=f"WGS84 / UTM zone {product.zone}N"),
        element("HORIZONTAL_CS_CODE", text=f"EPSG:{product.epsg}"),
        *sizes,
        *positions,
        attributes={"metadataLevel": "Brief"},
    )


def _percentages(scl_percent: tuple[float, ...]) -> list[Element]:
    named: Mapping[str, float] = dict(zip(PERCENTAGES, scl_percent, strict=True))
    return [element(f"{name}_PERCENTAGE", text=f"{share:.6f}") for name, share in named.items()]


def _cloudy(scl_percent: tuple[float, ...]) -> float:
    return sum(scl_percent[8:11])


def _granule_identity(product: SafeProduct) -> str:
    stamp = f"{product.generated:%Y%m%dT%H%M%S}"
    orbit = f"A{product.absolute_orbit:06d}"
    return f"{product.satellite}_OPER_MSI_{product.level}_TL_DITHC_{stamp}_{orbit}_T{product.tile}_N{product.baseline}"


def utc(moment: datetime) -> str:
    """A time as the metadata has it."""
    return f"{moment:%Y-%m-%dT%H:%M:%S}.024Z"
