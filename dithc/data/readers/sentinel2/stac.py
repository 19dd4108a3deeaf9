"""Sentinel-2 scenes of STAC catalogs: an item and a file for each band, all bands on one grid."""

import os
import re
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from dithc.config import datasets
from dithc.core.integrity import parse_json, require_regular_file
from dithc.core.logging import get_logger, user_error
from dithc.data.file_checks import check_regular
from dithc.data.parquet import Kind
from dithc.data.readers.listing import Listing, SidecarIndex, scene_id
from dithc.data.readers.sentinel2.clouds import SceneMasks
from dithc.data.readers.sentinel2.safe import FULL_SIDE, Painter, SafeReader
from dithc.data.readers.sentinel2.safe_files import CLOUD_PROBABILITY, LEVEL_BANDS, SCENE_CLASSIFICATION, BandFile
from dithc.data.readers.sentinel2.safe_grid import check_grid
from dithc.data.readers.sentinel2.stac_scaling import numbers_of
from dithc.data.scene import PixelBuffer, Reason, Scene, SceneRejectedError
from dithc.data.stac import Asset, Item, Lock, read_item, select_assets

SATELLITE = re.compile(r"sentinel-2([a-d])", re.IGNORECASE)
ITEM_WORD = b"stac_version"
LOOK_BYTES = 1 << 22
log = get_logger(__name__)


class StacReader(Painter):
    """Reader of items in a folder and the files next to them, without network access."""

    source: datasets.Sentinel2StacSource
    memory_bytes = SafeReader.memory_bytes + 6 * FULL_SIDE**2  # for the check of values against their offset, by band

    def __init__(self, source: datasets.Sentinel2StacSource, folder: Path) -> None:
        self.source, self.folder, self.classes = source, folder, ["sentinel2"]
        self.columns: dict[str, Kind] = {"sun_elevation": "float", "sun_azimuth": "float"}
        self.canvas, self._beside = PixelBuffer(), SidecarIndex()
        check_grid(source.bands, source.gsd_m)
        self.lock = Lock.read(folder) if folder.is_dir() else None
        self._check_fetched()
        self.listing, self._masks = Listing(source, folder), SceneMasks(source.clouds)
        self.paths = self.listing.files(
            suffixes={".json", ".geojson"},
            masks=True,
            use=_is_item,
            wanted="STAC items (*.json) and the GeoTIFF files that they reference",
            fix="put them there, or specify scenes in `source.search` and run `dithc fetch`",
        )
        self._pinned = {one.path: one for one in self.lock.items} if self.lock else {}

    def _check_fetched(self) -> None:
        """Raise UserError if the folder was never fetched for `source.search`, for another search, or lacks scenes."""
        fix = "run `dithc fetch --config CONFIG --dataset NAME` on a machine with network access"
        if self.source.search is not None and (self.lock is None or self.lock.search != Lock.asked_for(self.source)):
            raise user_error(
                f"the scenes of `source.search` are not in {self.folder}",
                got="no lock.json" if self.lock is None else f"scenes of another search: {self.lock.search}",
                expected=f"scenes fetched for {Lock.asked_for(self.source)}",
                fix=f"{fix}, with another `source.path` or after removing the old folder",
            )
        gone = [one.path for one in self.lock.items if not (self.folder / one.path).is_file()] if self.lock else []
        if gone:
            raise user_error(
                f"{self.folder} lacks scenes that its lock.json lists",
                got=f"no {', '.join(gone[:3])}" + (f" and {len(gone) - 3} more" if len(gone) > 3 else ""),
                expected="all fetched scenes",
                fix="put them back, or remove the folder and fetch again; use a smaller search for fewer scenes",
            )

    def inputs(self, path: Path) -> list[Path]:
        """Return the item, its files with their companions, and the mask file; other assets are not reported as unread."""
        self._check_listed(path)
        item = read_item(path)
        assets = self._assets(item, [*(self.source.bands or LEVEL_BANDS[item.level])])
        hrefs = (one.get("href") for one in item.document["assets"].values() if isinstance(one, dict))
        self.listing.read(_local(path, href) for href in hrefs if isinstance(href, str))
        files = [beside for asset in assets.values() for beside in self._beside(self._file(asset, path))]
        return [path, *dict.fromkeys(files), *self._masks.of(path)]

    def read(self, path: Path) -> Scene:
        check_regular(path, inside=self._root)
        self._check_listed(path)
        self._check_pinned(scene_id(path, self.folder))
        item = read_item(path)
        bands: list[str] = [*(self.source.bands or LEVEL_BANDS[item.level])]
        assets = self._assets(item, bands)
        files = {
            band: BandFile(band=band, path=self._file(asset, path), gsd_m=asset.gsd_m) for band, asset in assets.items()
        }
        self._verify(files, assets)
        numbers = numbers_of(item, {band: assets[band] for band in bands}, declared=self.source.offset)
        read = {os.path.relpath(file.path, path.parent): file.path for file in files.values()}
        return self._painted(
            path,
            files,
            bands,
            numbers,
            level=item.level,
            read={path.name: path, **read},
            masks_of=(path, ""),
            facts={**_facts(item), "offset_source": numbers.source},
        )

    @property
    def _root(self) -> Path:
        return self.folder if self.folder.is_dir() else self.folder.parent

    def _assets(self, item: Item, bands: list[str]) -> dict[str, Asset]:
        """Return the assets of the bands, of an existing classification, and of the requested masks."""
        there = {asset.band for asset in item.assets}
        masks = [SCENE_CLASSIFICATION] if SCENE_CLASSIFICATION in there else []
        masks += [CLOUD_PROBABILITY] if self.source.clouds.min_cloud_probability is not None else []
        assets, missing = select_assets(item, [*bands, *masks], gsd_m=self.source.gsd_m)
        if missing:
            raise SceneRejectedError(
                Reason.MISSING_BAND,
                f"the item lacks {'a band' if len(missing) == 1 else 'bands'}",
                got=f"no asset for {', '.join(missing)} at {self.source.gsd_m:g} m or finer, or at its own pixel size",
                expected=f"{', '.join([*bands, *masks])} of {item.level}",
                fix="list existing bands in `bands` (" + ", ".join(sorted(there)) + "), adapt `gsd_m` to their pixel "
                "sizes, or fetch the item again with all its files",
            )
        return assets

    def _file(self, asset: Asset, item: Path) -> Path:
        if asset.is_remote:
            raise SceneRejectedError(
                Reason.INCOMPLETE,
                f"the file of {asset.band} is on a server, and ingestion does not access the network",
                got=f"an address of {asset.href.partition('://')[2].partition('/')[0].rpartition('@')[2]}",
                expected="files next to the item",
                fix="fetch them first: `dithc fetch --config CONFIG --dataset NAME --items FOLDER`",
            )
        path = _local(item, asset.href)
        if not os.path.lexists(path):
            raise SceneRejectedError(
                Reason.INCOMPLETE,
                f"the file of {asset.band} does not exist",
                got=f"no {asset.href}",
                expected="all files of the requested bands",
                fix="fetch it (`dithc fetch` resumes), or copy it next to the item",
            )
        check_regular(path, inside=self._root)
        return path

    def _check_listed(self, path: Path) -> None:
        name = scene_id(path, self.folder)
        if self.lock is not None and name not in self._pinned:
            raise SceneRejectedError(
                Reason.INCOMPLETE,
                "the item was not fetched into this folder",
                got=f"{name}, which lock.json does not list",
                expected="a listed item",
                fix="remove it if it is left from another search; put your own items into a separate folder",
            )

    def _check_pinned(self, name: str) -> None:
        if self.source.checksum == "skip" or self.lock is None:
            return
        if differs := self.lock.difference(self.folder, self._pinned[name]):  # `_check_listed` has found the name
            raise _altered(*differs, said_by="lock.json")

    def _verify(self, files: dict[str, BandFile], assets: dict[str, Asset]) -> None:
        """Compare files with the sizes and checksums of their item, unless a lock was compared."""
        for band, file in files.items() if self.source.checksum == "verify" and self.lock is None else ():
            if differs := assets[band].difference(file.path):
                raise _altered(file.path.name, *differs, said_by="its item")


def _local(item: Path, href: str) -> Path:
    """Return the path that the address of an asset denotes, relative to its item."""
    return item.parent / (unquote(re.sub(r"^file://(localhost)?", "", href)) if href.startswith("file:") else href)


def _is_item(path: Path) -> bool:
    """Return whether a file may be an item; other JSON is ignored, and the reader rejects unreadable files."""
    try:
        with require_regular_file(path).open("rb") as file:
            content = file.read(LOOK_BYTES)
        found = parse_json(content)
    except (OSError, ValueError):
        return True
    return ITEM_WORD in content and isinstance(found, dict) and found.get("type") not in ("Catalog", "Collection")


def _facts(item: Item) -> dict[str, Any]:
    properties = item.document["properties"]
    satellite = SATELLITE.fullmatch(str(properties.get("platform")))
    sensed, uri = properties.get("datetime"), properties.get("s2:product_uri")
    angles = {name: properties.get(f"view:{name}") for name in ("sun_elevation", "sun_azimuth")}
    return {
        "product_id": uri.removesuffix(".SAFE") if isinstance(uri, str) else item.id,
        "satellite": f"Sentinel-2{satellite[1].upper()}" if satellite else None,
        "sensing_time": sensed if isinstance(sensed, str) else None,
        "baseline": item.baseline,
        "level": item.level,
        **{name: float(said) for name, said in angles.items() if isinstance(said, (int, float)) and isfinite(said)},
    }


def _altered(name: str, got: str, expected: str, *, said_by: str) -> SceneRejectedError:
    fix = "fetch it again (`dithc fetch`), or download it again; `checksum: skip` trusts the files as they are"
    what = f"{name} differs from its entry in {said_by}"
    return SceneRejectedError(Reason.CHECKSUM_MISMATCH, what, got=got, expected=expected, fix=fix)
