"""Generator of Sentinel-2 scenes of catalogs: a STAC item and a cloud-optimized GeoTIFF for each band.

Of three scenes the first follows sentinel-2-l2a of Earth Search (offset removed, with a property), the second follows
Planetary Computer (offset included, indicated by the baseline), the third follows sentinel-2-c1-l2a (STAC 1.1 with
checksums).
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dithc.core.artifacts import outputs, sha256_file
from dithc.data import stac
from dithc.data.grids import reproject_points
from dithc.data.raster import BandLabel, RasterInfo, read_raster, write_cog
from dithc.data.synthetic.safe import BASELINE, OFFSET, SafeProduct, stamp
from dithc.data.synthetic.sentinel2 import LEVEL2A_BANDS, write_product

CLOUD_OPTIMISED = "image/tiff; application=geotiff; profile=cloud-optimized"
SHA256_CODE = "1220"  # of a multihash: the algorithm, and 32 bytes
COMMON_NAMES = {
    "B01": "coastal",
    "B02": "blue",
    "B03": "green",
    "B04": "red",
    "B05": "rededge1",
    "B06": "rededge2",
    "B07": "rededge3",
    "B08": "nir",
    "B8A": "nir08",
    "B09": "nir09",
    "B11": "swir16",
    "B12": "swir22",
    "SCL": "scl",
}
SCALE = 1e-4

Describe = Callable[[SafeProduct, str, Path, RasterInfo], tuple[str, dict[str, Any]]]


def write_items(folder: Path, *, scenes: int, seed: int = 3) -> None:
    """Write scenes of 96 pixels at 10 m."""
    for index in range(scenes):
        _write_scene(folder, SafeProduct(index=index, size=96), seed=seed)


def _write_scene(folder: Path, product: SafeProduct, *, seed: int) -> None:
    """Write one scene to a separate folder: `ID/ID.json` and its files."""
    safe = folder / ".safe"
    write_product(safe, product, seed=seed)
    naming = (_earth_search, _planetary_computer, _collection_1)[product.index % 3]
    applied = naming is _earth_search
    item_folder = folder / _identity(product, naming)
    assets = {}
    for band in (*LEVEL2A_BANDS, "SCL"):
        gsd = int(stac.OWN_GSD_M[band])
        pixels, info = read_raster(safe / product.name / f"{product.image(band, gsd)}.jp2")
        if applied and band != "SCL":
            pixels = _offset_taken_off(pixels)
        path = item_folder / _file(product, band, gsd, naming)
        path.parent.mkdir(parents=True, exist_ok=True)
        label = BandLabel(name=band, units="")
        shape, place = pixels.shape, {"crs": info.crs, "transform": info.transform}
        write_cog(path, pixels, shape=shape, dtype=pixels.dtype, bands=[label], tags={}, nodata=0, **place)
        key, described = naming(product, band, path, info)
        grid = {"proj:shape": [info.height, info.width], "proj:transform": list(info.transform), "roles": ["data"]}
        href = f"./{path.relative_to(item_folder).as_posix()}"
        assets[key] = {"href": href, "type": CLOUD_OPTIMISED, "gsd": gsd, **grid, **described}
    outputs.remove(safe)
    item = _item(product, item_folder.name, assets, naming)
    (item_folder / f"{item_folder.name}.json").write_text(json.dumps(item, indent=1) + "\n")


def _offset_taken_off(pixels: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """Digital numbers as before baseline 04.00, which have none below 1 but no data."""
    return np.where(pixels == 0, 0, np.maximum(pixels.astype(np.int32) + OFFSET, 1)).astype(np.uint16)


def _earth_search(product: SafeProduct, band: str, path: Path, info: RasterInfo) -> tuple[str, dict[str, Any]]:
    """Keys and bands by common names; the scale and offset of the product, though the offset is taken off."""
    name = COMMON_NAMES[band]
    raster: dict[str, Any] = {"nodata": 0, "data_type": info.dtype, "spatial_resolution": info.transform[0]}
    if band == "SCL":
        return name, {"raster:bands": [raster]}
    row = {"name": name, "common_name": "rededge" if name.startswith("rededge") else name}
    return name, {"eo:bands": [row], "raster:bands": [{**raster, "scale": SCALE, "offset": OFFSET * SCALE}]}


def _planetary_computer(product: SafeProduct, band: str, path: Path, info: RasterInfo) -> tuple[str, dict[str, Any]]:
    """Return assets by band name, without numbers, sizes and checksums."""
    common = "rededge" if band in ("B05", "B06", "B07", "B8A") else COMMON_NAMES[band]
    return band, {} if band == "SCL" else {"eo:bands": [{"name": band, "common_name": common}]}


def _collection_1(product: SafeProduct, band: str, path: Path, info: RasterInfo) -> tuple[str, dict[str, Any]]:
    """Keys by common names; STAC 1.1's bands, sizes and checksums."""
    fields: dict[str, Any] = {"file:size": path.stat().st_size, "file:checksum": f"{SHA256_CODE}{sha256_file(path)}"}
    fields |= {"nodata": 0, "data_type": info.dtype}
    if band != "SCL":
        fields |= {"bands": [{"name": band}], "raster:scale": SCALE, "raster:offset": OFFSET * SCALE}
    return COMMON_NAMES[band], fields


def _identity(product: SafeProduct, naming: Describe) -> str:
    date = f"{product.sensed:%Y%m%d}"
    if naming is _earth_search:
        return f"{product.satellite}_{product.tile}_{date}_0_L2A"
    if naming is _collection_1:
        return f"{product.satellite}_T{product.tile}_{stamp(product.sensed)}_L2A"
    return product.name.removesuffix(".SAFE").replace(f"_N{BASELINE.replace('.', '')}", "")


def _file(product: SafeProduct, band: str, gsd: int, naming: Describe) -> str:
    return f"{product.image(band, gsd)}.tif" if naming is _planetary_computer else f"{band}.tif"


def _item(product: SafeProduct, identity: str, assets: dict[str, Any], naming: Describe) -> dict[str, Any]:
    left, top = product.left_top
    side = 10.0 * product.size
    corners = [(left, top), (left + side, top), (left + side, top - side), (left, top - side), (left, top)]
    xs, ys = ([point[axis] for point in corners] for axis in (0, 1))
    east, north = reproject_points(xs, ys, source_epsg=product.epsg, target_epsg=4326)
    properties: dict[str, Any] = {
        "datetime": f"{product.sensed:%Y-%m-%dT%H:%M:%S}.024000Z",
        "platform": f"sentinel-2{product.satellite[-1].lower()}",
        "constellation": "sentinel-2",
        "instruments": ["msi"],
        "eo:cloud_cover": round(int(hashlib.sha256(identity.encode()).hexdigest()[:6], 16) / 0x1000000 * 100, 6),
        "s2:product_type": "S2MSI2A",
        "s2:processing_baseline": BASELINE,
        "s2:product_uri": product.name,
    }
    if naming is _collection_1:
        properties["proj:code"] = f"EPSG:{product.epsg}"
    else:
        properties["proj:epsg"] = product.epsg
    if naming is _earth_search:
        properties["earthsearch:boa_offset_applied"] = True
    return {
        "type": "Feature",
        "stac_version": "1.1.0" if naming is _collection_1 else "1.0.0",
        "id": identity,
        "collection": "sentinel-2-c1-l2a" if naming is _collection_1 else "sentinel-2-l2a",
        "geometry": {"type": "Polygon", "coordinates": [[list(point) for point in zip(east, north, strict=True)]]},
        "bbox": [min(east), min(north), max(east), max(north)],
        "properties": properties,
        "links": [],
        "assets": assets,
    }
