"""Download of scenes into a folder: search, lock, files. Intact files are not downloaded twice."""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from re import fullmatch
from typing import Any
from urllib.parse import quote, urlsplit

from dithc.config import datasets
from dithc.core.artifacts import atomic_write, sha256_file
from dithc.core.integrity import parse_json
from dithc.core.logging import UserError, get_logger, progress, user_error
from dithc.core.system_files import is_system_file
from dithc.data.stac.catalog import search_catalog
from dithc.data.stac.download import DownloadRequest, download
from dithc.data.stac.http import Credentials, check_address, is_remote, open_url, read_body, resolve_url, strip_query
from dithc.data.stac.item import (
    CLOUD_PROBABILITY,
    OWN_GSD_M,
    SCENE_CLASSIFICATION,
    Asset,
    Item,
    item_of,
    read_document,
    select_assets,
)
from dithc.data.stac.lock import IDENTITY, LOCK_FILE, Lock, PinnedFile, PinnedItem
from dithc.data.stac.multihash import difference

SUFFIXES = (".tif", ".tiff", ".jp2")
ANSWER_BYTES = 1 << 16
log = get_logger("dithc.fetch")


@dataclass(frozen=True, kw_only=True)
class _PinnedScenes:
    """Scenes to write into the folder, and their items and the addresses of their files by path."""

    items: list[PinnedItem]  # sorted by id
    documents: dict[str, str]
    addresses: dict[str, str]  # may be signed and are never stored


def fetch_scenes(source: datasets.Sentinel2StacSource, *, items: Path | None = None) -> Lock:
    """Download the scenes of a search, or of items, into `source.path`, with a lock.

    Args:
        source: Search, bands, pixel size and target folder.
        items: File or folder of items for a source without `search`; a file may contain a collection of items.

    Returns:
        The lock. All its files exist.

    Raises:
        UserError: `search` and `items` are both missing or both given, the folder holds another search, no item
            matches, or a file cannot be downloaded.
    """
    assert source.path is not None
    folder, search = Path(source.path), source.search
    credentials = Credentials.read(search.catalog if search else None)
    if (items is None) == (search is None):
        raise user_error(
            "`source.search` and `--items` are both missing" if items is None else "`--items` excludes `source.search`",
            got="a source without `search`, and no --items" if items is None else "a source with `search`, and --items",
            expected="one of them",
            fix="set `source.search`, or pass --items FOLDER with saved STAC items for a source without `search`",
        )
    scenes = None if items is None else _pin_assets(_read_items(items), source)
    requested = Lock.asked_for(source) if scenes is None else _items_summary(scenes, source)
    lock = Lock.read(folder)
    if lock is None:
        if search is not None:
            scenes = _pin_assets(search_catalog(search, credentials=credentials), source)
        assert scenes is not None
        for path, text in scenes.documents.items():
            atomic_write(folder / path, text)
        lock = Lock(search=requested, items=scenes.items)
        lock.write(folder)
    elif lock.search != requested:
        raise user_error(
            f"{folder} was fetched for another search",
            got=json.dumps(lock.search),
            expected=json.dumps(requested),
            fix=f"set another `source.path`, or remove {folder / LOCK_FILE} to repeat the search",
        )
    sign, signed = search.signing_url if search else None, scenes.addresses if scenes else {}
    _fetch_all(lock, folder, credentials, sign=sign, signed=signed)
    return lock


def _items_summary(scenes: _PinnedScenes, source: datasets.Sentinel2StacSource) -> dict[str, Any]:
    """Return the number of items, and a digest that ignores queries of addresses."""
    rows = [[json.loads(scenes.documents[item.path]), item.model_dump()["assets"]] for item in scenes.items]
    digest = sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
    return {"items": len(rows), "sha256": digest, **Lock.layers_of(source)}


def _read_items(items: Path) -> list[Item]:
    inside = items.rglob("*.json") if items.is_dir() else [items]
    paths = sorted(path for path in inside if not is_system_file(path.relative_to(items)))
    items_by_id: dict[str, Item] = {}
    for path in paths:
        content = read_document(path)
        rows = content.get("features") if isinstance(content, dict) else None
        for row in rows if isinstance(rows, list) else [content]:
            if isinstance(row, dict) and row.get("type") in ("Catalog", "Collection"):
                continue
            item = item_of(row, origin=path.name)
            items_by_id.setdefault(item.id, item)
    if not items_by_id:
        raise user_error(
            f"there are no items in {items}",
            got=f"{len(paths)} files *.json",
            expected="STAC items, or collections of items",
            fix="save the items of a catalog there, or search the catalog with `source.search`",
        )
    return list(items_by_id.values())


def _pin_assets(items: list[Item], source: datasets.Sentinel2StacSource) -> _PinnedScenes:
    """Select the assets of items, and assign a path to each."""
    scenes = _PinnedScenes(items=[], documents={}, addresses={})
    for item in sorted(items, key=lambda item: item.id):
        if not fullmatch(IDENTITY, item.id):
            raise user_error(
                "the id of an item is not a valid folder name",
                got=repr(item.id[:100]),
                expected="letters, digits, `.`, `_` and `-`, beginning with a letter or digit",
                fix="leave this scene out of the search",
            )
        pinned = {}
        for name, asset in _required_assets(item, source).items():
            address = _asset_url(asset, item)
            suffix = Path(urlsplit(address).path).suffix.lower()
            path = f"{item.id}/{name}_{asset.gsd_m:g}m{suffix if suffix in SUFFIXES else '.tif'}"
            href = strip_query(address)
            pinned[asset.key] = PinnedFile(path=path, href=href, size=asset.size, checksum=asset.checksum)
            scenes.addresses[path] = address
        path, text = f"{item.id}/{item.id}.json", json.dumps(_local_document(item, pinned), indent=1) + "\n"
        digest = sha256(text.encode()).hexdigest()
        scenes.documents[path] = text
        scenes.items.append(PinnedItem(id=item.id, path=path, sha256=digest, assets=pinned))
    return scenes


def _required_assets(item: Item, source: datasets.Sentinel2StacSource) -> dict[str, Asset]:
    """Return the assets that ingestion reads, by band or mask."""
    level = [band for band in OWN_GSD_M if band.startswith("B") and (band != "B10" or item.level == "L1C")]
    names = [*(source.bands or level)]
    if source.clouds.min_cloud_probability is not None:
        names.append(CLOUD_PROBABILITY)
    if any(asset.band == SCENE_CLASSIFICATION for asset in item.assets):
        names.append(SCENE_CLASSIFICATION)
    assets, missing = select_assets(item, names, gsd_m=source.gsd_m)
    if missing:
        raise user_error(
            f"the item {item.id} lacks bands or masks",
            got=f"no {', '.join(missing)} at {source.gsd_m:g} m or finer, or at its own pixel size",
            expected=", ".join(names),
            fix="choose `bands` and `gsd_m` that the catalog has, or another collection",
        )
    return assets


def _links(item: Item) -> list[tuple[str, str]]:
    links = item.document.get("links")
    rows = [link for link in links if isinstance(link, dict)] if isinstance(links, list) else []
    return [(str(row.get("rel")), row["href"]) for row in rows if isinstance(row.get("href"), str)]


def _asset_url(asset: Asset, item: Item) -> str:
    base = next((href for rel, href in _links(item) if rel == "self"), None)
    href = asset.href if is_remote(asset.href) or base is None else resolve_url(base, asset.href)
    check_address(href, origin=f"asset {asset.key} of {item.id}")
    return href


def _local_document(item: Item, pinned: dict[str, PinnedFile]) -> dict[str, Any]:
    """Return the item with local file names, and without signed addresses."""
    document = copy.deepcopy(item.document)
    document["assets"] = {key: document["assets"][key] for key in pinned}
    for key, asset in document["assets"].items():
        asset["href"] = f"./{Path(pinned[key].path).name}"
        asset.pop("alternate", None)
    document["links"] = [{"rel": rel, "href": strip_query(href)} for rel, href in _links(item) if is_remote(href)]
    return document


def _fetch_all(lock: Lock, folder: Path, credentials: Credentials, *, sign: str | None, signed: dict[str, str]) -> None:
    files = [asset for item in lock.items for asset in item.assets.values()]
    log.info(f"{len(lock.items)} scenes of {len(files)} files in {folder}")
    fetched = 0
    if links := [item.id for item in lock.items if (folder / item.id).is_symlink()]:
        message = f"a folder of a scene in {folder} is a link, which may lead out of it"
        raise user_error(message, got=links[0], expected="folders", fix="remove the link: the scene is fetched again")
    with progress(total=len(files), label="fetch", unit="file") as bar:
        for item in lock.items:
            try:
                for asset in item.assets.values():
                    if not _is_intact(folder, asset):
                        _fetch(asset, folder, credentials, sign=sign, url=signed.get(asset.path, asset.href), bar=bar)
                        fetched += 1
                    bar.update(1)
            finally:
                lock.write(folder)
    log.info(f"fetched {fetched} files; {len(files) - fetched} existed")


def _is_intact(folder: Path, asset: PinnedFile) -> bool:
    """Return whether a file is intact. A file of a killed fetch is added to the lock if the catalog has a checksum."""
    path = folder / asset.path
    if not path.is_file() or (asset.size is not None and path.stat().st_size != asset.size):
        return False
    if asset.sha256 is not None:
        return sha256_file(path) == asset.sha256
    if asset.checksum is None or difference(path, asset.checksum):
        return False
    asset.size, asset.sha256 = path.stat().st_size, sha256_file(path)
    return True


def _fetch(
    asset: PinnedFile, folder: Path, credentials: Credentials, *, sign: str | None, url: str, bar: progress
) -> None:
    target = folder / asset.path
    target.parent.mkdir(parents=True, exist_ok=True)
    received = 0

    def report(num_bytes: int) -> None:
        nonlocal received
        received += num_bytes
        bar.update(0, at=f"{asset.path}: {received / 1e6:.0f} MB")

    request = DownloadRequest(
        address=_url_signer(sign, asset.href, credentials) if sign else lambda: url,
        display_url=asset.href,
        target=target,
        size=asset.size,
        checksum=asset.checksum,
    )
    size, digest = download(request, credentials=credentials, progress=report)
    if asset.sha256 not in (None, digest):
        target.unlink()
        raise user_error(
            f"{asset.href} differs from the file in {LOCK_FILE}",
            got=f"sha256 {digest}",
            expected=f"sha256 {asset.sha256}",
            fix=f"remove {folder / LOCK_FILE}, then rerun `dithc fetch` and `dithc ingest`; the catalog has replaced the file",
        )
    asset.size, asset.sha256 = size, digest


def _url_signer(sign: str, href: str, credentials: Credentials) -> Callable[[], str]:
    """Return a function that requests the signed form of an address from the catalog."""

    def address() -> str:
        try:
            with open_url(f"{sign}?href={quote(href, safe='')}", headers={}, credentials=credentials) as response:
                url = parse_json(read_body(response, most=ANSWER_BYTES))["href"]
            if not isinstance(url, str) or strip_query(url) != href:
                raise ValueError("the address of another file")
        except UserError:
            raise
        except (HTTPException, OSError, ValueError, KeyError, TypeError) as error:
            raise user_error(
                f"the signer {strip_query(sign)} does not sign {href}",
                got=credentials.redact(error),
                expected="JSON with the signed address as `href`",
                fix="check `source.search.signing_url` and the network",
            ) from None
        return url

    return address
