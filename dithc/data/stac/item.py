"""STAC item of a Sentinel-2 scene: assets of its bands, and scale and offset of their numbers.

Earth Search names assets `red`, `nir08`, `scl`, Planetary Computer `B04`, `B8A`, `SCL`, the Copernicus Data Space
`B04_10m`. Bands are described in `eo:bands` and `raster:bands` (STAC 1.0) or in `bands` (1.1). pystac is not used
because ingestion needs no optional package, and because it maps none of these names to bands.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dithc.config import datasets
from dithc.core.integrity import parse_json, require_regular_file
from dithc.core.logging import UserError, user_error
from dithc.data.stac.http import is_remote
from dithc.data.stac.multihash import difference

ITEM_BYTES = 4 << 20
"""Size limit, a hundred times a typical item."""
BAND = re.compile(r"B(0[1-9]|1[0-2]|8A)", re.IGNORECASE)
COMMON_NAMES = {
    "coastal": "B01",
    "blue": "B02",
    "green": "B03",
    "red": "B04",
    "rededge1": "B05",
    "rededge071": "B05",
    "rededge2": "B06",
    "rededge075": "B06",
    "rededge3": "B07",
    "rededge078": "B07",
    "nir": "B08",
    "nir08": "B8A",
    "nir09": "B09",
    "cirrus": "B10",
    "swir16": "B11",
    "swir22": "B12",
}
"""Names of assets and bands. `rededge` is missing because catalogs use it for four bands."""
SCENE_CLASSIFICATION, CLOUD_PROBABILITY = "SCL", "MSK_CLDPRB"
LAYERS = {"scl": SCENE_CLASSIFICATION, "cloud": CLOUD_PROBABILITY, "cld": CLOUD_PROBABILITY}
OWN_GSD_M = datasets.SENTINEL2_GSD_M | dict.fromkeys((SCENE_CLASSIFICATION, CLOUD_PROBABILITY), 20.0)
"""Native pixel size of each band in meters."""
SIZE = re.compile(r"_(10|20|60)m$", re.IGNORECASE)
JPEG2000_SUFFIX = "-jp2"
"""Suffix of Earth Search's JPEG 2000 copies, whose numbers still contain the offset, unlike the GeoTIFF files."""
BASELINE = re.compile(r"_N(\d\d)(\d\d)_")
LEVEL = re.compile(r"(?:L|MSIL?)(1C|2A)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Asset:
    """File of a band or mask, as described by an item. Unknown values are None."""

    key: str
    band: str  # B01 to B12, SCL or MSK_CLDPRB
    href: str
    gsd_m: float
    size: int | None  # bytes
    checksum: str | None  # hexadecimal multihash
    scale: float | None  # reflectance per step of the stored numbers
    offset: float | None  # reflectance of the stored number 0

    @property
    def is_remote(self) -> bool:
        return is_remote(self.href)

    def difference(self, path: Path) -> tuple[str, str] | None:
        """Return the actual and the expected size or digest of a file if they differ."""
        if self.size is not None and (size := path.stat().st_size) != self.size:
            return f"{size} bytes", f"{self.size} (file:size)"
        return difference(path, self.checksum) if self.checksum is not None else None


@dataclass(frozen=True, kw_only=True)
class Item:
    """Scene as described by an item. Unknown values are None."""

    id: str
    level: Literal["L1C", "L2A"]
    baseline: str | None  # of the processing, such as 04.00
    offset_applied: bool | None  # whether the catalog has added the offset to the numbers
    cloud_cover: float | None  # percent
    assets: list[Asset]  # one file for each band and pixel size
    document: dict[str, Any]


def read_item(path: Path) -> Item:
    """Read a file with one item; UserError if it is not an item of a Sentinel-2 scene, or contradicts itself."""
    return item_of(read_document(path), origin=path.name)


def read_document(path: Path) -> Any:
    """Read a JSON file, or raise UserError if it is invalid or larger than `ITEM_BYTES`."""
    with require_regular_file(path).open("rb") as file:
        content = file.read(ITEM_BYTES + 1)
    try:
        if len(content) > ITEM_BYTES:
            raise ValueError(f"more than {ITEM_BYTES} bytes")
        return parse_json(content)
    except ValueError as error:
        raise _invalid_item(path.name, got=str(error)) from None


def item_of(document: Any, *, origin: str) -> Item:
    """Convert a JSON value to an item, or raise UserError. Messages name `origin`."""
    if not isinstance(document, dict) or document.get("type") != "Feature" or "stac_version" not in document:
        kind = document.get("type") if isinstance(document, dict) else type(document).__name__
        raise _invalid_item(origin, got=f"type {kind!r}")
    properties, assets = document.get("properties"), document.get("assets")
    if not isinstance(properties, dict) or not isinstance(assets, dict) or not isinstance(document.get("id"), str):
        raise _invalid_item(origin, got="no id, properties or assets")
    names = [properties.get(name) for name in ("s2:product_type", "product:type", "s2:product_uri")]
    names += [document.get("collection"), document["id"]]
    levels = {match[1].upper() for name in names if isinstance(name, str) and (match := LEVEL.search(name))}
    if len(levels) != 1:
        got = " and ".join(sorted(levels)) or "no level"
        raise _invalid_item(origin, got=f"{got} in s2:product_type, collection and id")
    applied = properties.get("earthsearch:boa_offset_applied", properties.get("sentinel:boa_offset_applied"))
    if applied not in (True, False, None):
        raise _invalid_item(origin, got=f"earthsearch:boa_offset_applied {applied!r}")
    band_assets = [asset for key, value in assets.items() if (asset := _asset(key, value, origin=origin)) is not None]
    sizes = [(asset.band, asset.gsd_m) for asset in band_assets]
    if repeated := next((pair for pair in sizes if sizes.count(pair) > 1), None):
        keys = [asset.key for asset in band_assets if (asset.band, asset.gsd_m) == repeated]
        raise _invalid_item(origin, got=f"assets {' and '.join(keys)} for {repeated[0]} at {repeated[1]:g} m")
    return Item(
        id=document["id"],
        level="L1C" if "1C" in levels else "L2A",
        baseline=_baseline(properties, document["id"], origin=origin),
        offset_applied=applied,
        cloud_cover=_number(properties, "eo:cloud_cover", low=0.0, high=100.0, origin=origin),
        assets=band_assets,
        document=document,
    )


def select_assets(item: Item, names: Iterable[str], *, gsd_m: float) -> tuple[dict[str, Asset], list[str]]:
    """Select the assets of bands and masks for a grid.

    An asset has the pixel size of the grid, or else the next finer size. For bands with a coarser native pixel size
    it is the finest asset. Names without a suitable asset are returned separately.
    """
    assets: dict[str, Asset] = {}
    missing = []
    for name in names:
        sizes = {asset.gsd_m: asset for asset in item.assets if asset.band == name}
        fine = [size for size in sizes if size <= gsd_m]
        if min(sizes, default=float("inf")) > max(gsd_m, OWN_GSD_M[name]):
            missing.append(name)
        else:
            assets[name] = sizes[max(fine) if fine else min(sizes)]
    return assets, missing


def _asset(key: str, value: Any, *, origin: str) -> Asset | None:
    """Convert an asset; return None if it is not a band or mask."""
    if not isinstance(value, dict) or key.lower().endswith(JPEG2000_SUFFIX):
        return None
    rows = value.get("bands") or value.get("eo:bands") or []
    row = rows[0] if isinstance(rows, list) and len(rows) == 1 and isinstance(rows[0], dict) else {}
    name, size = SIZE.sub("", key), SIZE.search(key)
    of_key = LAYERS.get(name.lower()) or _band(name)
    of_row = _band(row.get("name")) or _band(row.get("eo:common_name", row.get("common_name")))
    roles = value.get("roles")
    if of_key is None and not (isinstance(roles, list) and "data" in roles):
        return None
    if of_key and of_row and of_key != of_row:
        raise _invalid_item(origin, got=f"asset {key}, with band {row.get('name')}")
    band = of_key or of_row
    if band is None:
        return None
    href = value.get("href")
    if not isinstance(href, str):
        raise _invalid_item(origin, got=f"asset {key} without an href")
    rasters = value.get("raster:bands")
    raster = rasters[0] if isinstance(rasters, list) and rasters and isinstance(rasters[0], dict) else {}
    meta = {name.removeprefix("raster:"): part for name, part in {**value, **row}.items() if name.startswith("raster:")}
    meta |= raster
    gsd = _number(value, "gsd", low=1.0, high=1000.0, origin=origin)
    gsd = gsd or _number(meta, "spatial_resolution", low=1.0, high=1000.0, origin=origin) or OWN_GSD_M[band]
    bytes_ = _number(value, "file:size", low=1.0, high=1e15, origin=origin)
    checksum = value.get("file:checksum")
    if not isinstance(checksum, str | None):
        raise _invalid_item(origin, got=f"file:checksum {checksum!r} of {key}")
    return Asset(
        key=key,
        band=band,
        href=_https_address(href, value),
        gsd_m=float(size[1]) if size else gsd,
        size=None if bytes_ is None else int(bytes_),
        checksum=checksum,
        scale=_number(meta, "scale", low=1e-9, high=1.0, origin=origin),
        offset=_number(meta, "offset", low=-10.0, high=10.0, origin=origin),
    )


def _https_address(href: str, asset: Mapping[str, Any]) -> str:
    """Return the address of an asset, or its HTTPS alternative to an S3 address."""
    if not href.startswith("s3:"):
        return href
    alternate = asset.get("alternate")
    for entry in alternate.values() if isinstance(alternate, dict) else ():
        address = entry.get("href") if isinstance(entry, dict) else None
        if isinstance(address, str) and address.startswith("https:"):
            return address
    return href


def _band(name: Any) -> str | None:
    if not isinstance(name, str):
        return None
    return name.upper() if BAND.fullmatch(name) else COMMON_NAMES.get(name.lower())


def _baseline(properties: Mapping[str, Any], identity: str, *, origin: str) -> str | None:
    values = {properties.get(name) for name in ("s2:processing_baseline", "processing:version")} - {None}
    names = (properties.get("s2:product_uri"), identity)
    values |= {f"{match[1]}.{match[2]}" for name in names if isinstance(name, str) and (match := BASELINE.search(name))}
    if len(values) > 1 or not all(isinstance(value, str) and re.fullmatch(r"\d\d\.\d\d", value) for value in values):
        raise _invalid_item(origin, got=f"processing baseline {' and '.join(sorted(map(str, values)))}")
    return next(iter(values), None)


def _number(values: Mapping[str, Any], name: str, *, low: float, high: float, origin: str) -> float | None:
    value = values.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _invalid_item(origin, got=f"{name} {value!r}")
    return float(value)


def _invalid_item(origin: str, *, got: str) -> UserError:
    return user_error(
        f"{origin} is not a valid STAC item of a Sentinel-2 scene",
        got=got[:300],
        expected="an item (type Feature, STAC 1.0 or 1.1) of level L1C or L2A without contradictions",
        fix="save the item again from its catalog, or remove it from the folder",
    )
