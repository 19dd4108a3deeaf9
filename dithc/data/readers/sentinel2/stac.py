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
from dithc.data.readers.listing import SidecarIndex, scene_id
from dithc.data.readers.sentinel2.safe import SafeReader, SceneBuilder
from dithc.data.readers.sentinel2.safe_files import CLOUD_PROBABILITY, LEVEL_BANDS, SCENE_CLASSIFICATION, BandFile
from dithc.data.readers.sentinel2.stac_scaling import find_scaling
from dithc.data.scene import Reason, Scene, SceneRejectedError
from dithc.data.stac import Asset, Item, Lock, read_item, select_assets

SATELLITE = re.compile(r"sentinel-2([a-d])", re.IGNORECASE)
ITEM_KEY = b"stac_version"
PREFIX_BYTES = 1 << 22
log = get_logger(__name__)


class StacReader(SceneBuilder):
    """Reader of items in a folder and the files next to them, without network access."""

    source: datasets.Sentinel2StacSource
    memory_bytes = SafeReader.memory_bytes + 6 * datasets.SENTINEL2_SIDE**2  # for the check of values by band

    def __init__(self, source: datasets.Sentinel2StacSource, folder: Path) -> None:
        super().__init__(source, folder)
        self._sidecars, self._root = SidecarIndex(), folder if folder.is_dir() else folder.parent
        self.lock = Lock.read(folder) if folder.is_dir() else None
        self._locked = self.lock.items if self.lock else []
        self._check_fetched()
        self.paths = self.listing.files(
            suffixes={".json", ".geojson"},
            masks=True,
            accept=_is_item,
            expected="STAC items (*.json) and the GeoTIFF files that they reference",
            fix="put them there, or specify scenes in `source.search` and run `dithc fetch`",
        )
        self._pinned = {entry.path: entry for entry in self._locked}

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
        lost = [entry.path for entry in self._locked if not (self.folder / entry.path).is_file()]
        if lost:
            raise user_error(
                f"{self.folder} lacks scenes that its lock.json lists",
                got=f"no {', '.join(lost[:3])}" + (f" and {len(lost) - 3} more" if len(lost) > 3 else ""),
                expected="all fetched scenes",
                fix="put them back, or remove the folder and fetch again; use a smaller search for fewer scenes",
            )

    def inputs(self, path: Path) -> list[Path]:
        """Return the item, its files with their companions, and the mask file; other assets are not reported as unread."""
        self._check_listed(path)
        item = read_item(path)
        assets = self._assets(item, [*(self.source.bands or LEVEL_BANDS[item.level])])
        hrefs = (value.get("href") for value in item.document["assets"].values() if isinstance(value, dict))
        self.listing.read(_local_path(path, href) for href in hrefs if isinstance(href, str))
        files = [file for asset in assets.values() for file in self._sidecars(self._file(asset, path))]
        return [path, *dict.fromkeys(files), *self._masks.find(path)]

    def read(self, path: Path) -> Scene:
        check_regular(path, inside=self._root)
        self._check_listed(path)
        entry = self._pinned[scene_id(path, self.folder)] if self.lock and self.source.checksum != "skip" else None
        if self.lock and entry and (differs := self.lock.difference(self.folder, entry)):
            raise _checksum_error(*differs, origin="lock.json")
        item = read_item(path)
        bands: list[str] = [*(self.source.bands or LEVEL_BANDS[item.level])]
        assets = self._assets(item, bands)
        files = {
            band: BandFile(band=band, path=self._file(asset, path), gsd_m=asset.gsd_m) for band, asset in assets.items()
        }
        self._verify(files, assets)
        scaling = find_scaling(item, {band: assets[band] for band in bands}, declared=self.source.offset)
        read = {os.path.relpath(file.path, path.parent): file.path for file in files.values()}
        return self._build_scene(
            path,
            files,
            bands,
            scaling,
            level=item.level,
            read={path.name: path, **read},
            mask_source=(path, ""),
            properties={**_scene_properties(item), "offset_source": scaling.source},
        )

    def _assets(self, item: Item, bands: list[str]) -> dict[str, Asset]:
        """Return the assets of the bands, of an existing classification, and of the requested masks."""
        present = {asset.band for asset in item.assets}
        masks = [SCENE_CLASSIFICATION] if SCENE_CLASSIFICATION in present else []
        masks += [CLOUD_PROBABILITY] if self.source.clouds.min_cloud_probability is not None else []
        assets, missing = select_assets(item, [*bands, *masks], gsd_m=self.source.gsd_m)
        if missing:
            raise SceneRejectedError(
                Reason.MISSING_BAND,
                f"the item lacks {'a band' if len(missing) == 1 else 'bands'}",
                got=f"no asset for {', '.join(missing)} at {self.source.gsd_m:g} m or finer, or at its own pixel size",
                expected=f"{', '.join([*bands, *masks])} of {item.level}",
                fix="list existing bands in `bands` (" + ", ".join(sorted(present)) + "), adapt `gsd_m` to their pixel "
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
        path = _local_path(item, asset.href)
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

    def _verify(self, files: dict[str, BandFile], assets: dict[str, Asset]) -> None:
        """Compare files with the sizes and checksums of their item, unless a lock was compared."""
        for band, file in files.items() if self.source.checksum == "verify" and self.lock is None else ():
            if differs := assets[band].difference(file.path):
                raise _checksum_error(file.path.name, *differs, origin="its item")


def _local_path(item: Path, href: str) -> Path:
    """Return the path that the address of an asset denotes, relative to its item."""
    return item.parent / (unquote(re.sub(r"^file://(localhost)?", "", href)) if href.startswith("file:") else href)


def _is_item(path: Path) -> bool:
    """Return whether a file may be an item; other JSON is ignored, and the reader rejects unreadable files."""
    try:
        with require_regular_file(path).open("rb") as file:
            content = file.read(PREFIX_BYTES)
        document = parse_json(content)
    except (OSError, ValueError):
        return True
    return ITEM_KEY in content and isinstance(document, dict) and document.get("type") not in ("Catalog", "Collection")


def _scene_properties(item: Item) -> dict[str, Any]:
    properties = item.document["properties"]
    satellite = SATELLITE.fullmatch(str(properties.get("platform")))
    time, uri = properties.get("datetime"), properties.get("s2:product_uri")
    angles = {name: properties.get(f"view:{name}") for name in ("sun_elevation", "sun_azimuth")}
    return {
        "product_id": uri.removesuffix(".SAFE") if isinstance(uri, str) else item.id,
        "satellite": f"Sentinel-2{satellite[1].upper()}" if satellite else None,
        "sensing_time": time if isinstance(time, str) else None,
        "baseline": item.baseline,
        "level": item.level,
        **{name: float(angle) for name, angle in angles.items() if isinstance(angle, (int, float)) and isfinite(angle)},
    }


def _checksum_error(name: str, got: str, expected: str, *, origin: str) -> SceneRejectedError:
    fix = "fetch it again (`dithc fetch`), or download it again; `checksum: skip` trusts the files as they are"
    title = f"{name} differs from its entry in {origin}"
    return SceneRejectedError(Reason.CHECKSUM_MISMATCH, title, got=got, expected=expected, fix=fix)
