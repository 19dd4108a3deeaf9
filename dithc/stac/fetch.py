"""Scenes brought from servers into a folder: found, pinned, fetched; what is there and whole is left alone."""

import copy
import json
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote, urlsplit

from dithc.config import datasets
from dithc.log import UserError, logger, problem, progress
from dithc.runs import atomic_write, sha256_file
from dithc.sealed import parse
from dithc.stac.catalogue import search_catalogue
from dithc.stac.download import Wanted, download
from dithc.stac.http import Credentials, answer, check_address, is_remote, joined, without_query
from dithc.stac.item import (
    CLOUD_PROBABILITY,
    OWN_GSD_M,
    SCENE_CLASSIFICATION,
    Asset,
    Item,
    chosen,
    item_of,
    read_document,
)
from dithc.stac.lock import IDENTITY, LOCK_FILE, Lock, Pinned, PinnedItem
from dithc.stac.multihash import difference

SUFFIXES = (".tif", ".tiff", ".jp2")
ANSWER_BYTES = 1 << 16
MEGA = 1e6
log = logger("dithc.fetch")


def fetch(source: datasets.Sentinel2Stac, *, items: Path | None = None) -> Lock:
    """Brings the scenes of a search, or of items, into `source.path`, with a lock beside them.

    Args:
        source: says what is searched, which bands at which pixel size, and where they go.
        items: a file or folder of items in the place of a search; a file may hold a collection of them.

    Returns:
        The lock, all files of which are there.

    Raises:
        UserError: there is no search, the folder was fetched for another one, nothing fits, or a file cannot be had.
    """
    assert source.path is not None
    folder, search = Path(source.path), source.search
    credentials = Credentials.read(None if search is None or items is not None else search.catalog)
    if items is None and search is None:
        raise problem(
            "there is nothing to fetch",
            got="a source without `search`, and no --items",
            expected="one of them",
            remedy="say in `source.search` which scenes, or pass --items FOLDER with STAC items of a catalogue",
        )
    asked = (
        Lock.asked_for(source) if items is None else {"items": items.name, "bands": source.bands, "gsd_m": source.gsd_m}
    )
    lock = Lock.read(folder)
    signed: dict[str, str] = {}
    if lock is None:
        found = search_catalogue(search, credentials=credentials) if search and items is None else _given(items)
        lock, signed = _pinned(found, source, asked, folder)
        lock.write(folder)
    elif lock.search != asked:
        raise problem(
            f"{folder} was fetched for something else",
            got=json.dumps(lock.search),
            expected=json.dumps(asked),
            remedy=f"take another `source.path`, or remove {folder / LOCK_FILE}: then it is searched anew",
        )
    _complete(lock, folder, credentials, sign=search.sign if search else None, signed=signed)
    return lock


def _given(items: Path | None) -> list[Item]:
    """Items of files."""
    assert items is not None
    paths = sorted(items.rglob("*.json")) if items.is_dir() else [items]
    found: dict[str, Item] = {}
    for path in paths:
        content = read_document(path)
        rows = content.get("features") if isinstance(content, dict) else None
        for row in rows if isinstance(rows, list) else [content]:
            if isinstance(row, dict) and row.get("type") in ("Catalog", "Collection"):
                continue
            item = item_of(row, origin=path.name)
            found.setdefault(item.id, item)
    if not found:
        raise problem(
            f"there are no items in {items}",
            got=f"{len(paths)} files *.json",
            expected="STAC items, or collections of them",
            remedy="save them from their catalogue, or search it: `source.search`",
        )
    return list(found.values())


def _pinned(
    found: list[Item], source: datasets.Sentinel2Stac, asked: dict[str, Any], folder: Path
) -> tuple[Lock, dict[str, str]]:
    """The lock of items, whose documents are written; and the addresses of their files with whatever belongs to these."""
    lock, addresses = Lock(search=asked), {}
    for item in sorted(found, key=lambda item: item.id):
        if not IDENTITY.fullmatch(item.id):
            raise problem(
                "the catalogue gives an item a name that can be no folder's",
                got=repr(item.id[:100]),
                expected="letters, digits, `.`, `_` and `-`, a letter or digit first",
                remedy="leave that scene out of the search",
            )
        assets, pinned = _wanted(item, source), {}
        for name, asset in assets.items():
            address = _absolute(asset, item)
            suffix = Path(urlsplit(address).path).suffix.lower()
            file = f"{name}_{asset.gsd_m:g}m{suffix if suffix in SUFFIXES else '.tif'}"
            pinned[asset.key] = Pinned(
                path=f"{item.id}/{file}", href=without_query(address), size=asset.size, checksum=asset.checksum
            )
            addresses[f"{item.id}/{file}"] = address
        path = folder / item.id / f"{item.id}.json"
        atomic_write(path, json.dumps(_local(item, pinned), indent=1) + "\n")
        lock.items.append(
            PinnedItem(id=item.id, path=f"{item.id}/{path.name}", sha256=sha256_file(path), assets=pinned)
        )
    return lock, addresses


def _wanted(item: Item, source: datasets.Sentinel2Stac) -> dict[str, Asset]:
    """Assets that reading the scene will need."""
    level = [band for band in OWN_GSD_M if band.startswith("B") and (band != "B10" or item.level == "L1C")]
    bands = source.bands or level
    masks = [CLOUD_PROBABILITY] if source.clouds.probability is not None else []
    classified = any(asset.band == SCENE_CLASSIFICATION for asset in item.assets)
    masks += [SCENE_CLASSIFICATION] if classified else []
    assets, missing = chosen(item, [*bands, *masks], gsd_m=source.gsd_m)
    if missing:
        raise problem(
            f"the item {item.id} lacks what is asked for",
            got=f"no {', '.join(missing)} at {source.gsd_m:g} m or finer, or at its own pixel size",
            expected=f"{', '.join([*bands, *masks])}",
            remedy="choose `bands` and `gsd_m` that the catalogue has, or another collection",
        )
    return assets


def _absolute(asset: Asset, item: Item) -> str:
    """The address of an asset; a relative one counts from the item's own."""
    links = item.document.get("links")
    rows = [link for link in links if isinstance(link, dict)] if isinstance(links, list) else []
    own = next((link.get("href") for link in rows if link.get("rel") == "self"), None)
    href = asset.href if is_remote(asset.href) or not isinstance(own, str) else joined(own, asset.href)
    check_address(href, said_by=f"asset {asset.key} of {item.id}")
    return href


def _local(item: Item, pinned: dict[str, Pinned]) -> dict[str, Any]:
    """The item as it lies in the folder: the files that are fetched, by their names there; no signed address is kept."""
    document = copy.deepcopy(item.document)
    document["assets"] = {key: document["assets"][key] for key in pinned}
    for key, asset in document["assets"].items():
        asset["href"] = f"./{Path(pinned[key].path).name}"
        asset.pop("alternate", None)
    links = document.get("links")
    rows = [link for link in links if isinstance(link, dict)] if isinstance(links, list) else []
    kept = [(str(row.get("rel")), row.get("href")) for row in rows]
    document["links"] = [
        {"rel": rel, "href": without_query(href)} for rel, href in kept if isinstance(href, str) and is_remote(href)
    ]
    return document


def _complete(lock: Lock, folder: Path, credentials: Credentials, *, sign: str | None, signed: dict[str, str]) -> None:
    """Fetches what is not there or not what it must be."""
    files = [asset for item in lock.items for asset in item.assets.values()]
    log.info(f"{len(lock.items)} scenes of {len(files)} files in {folder}")
    fetched = 0
    with progress(total=len(files), label="fetch", unit="file") as bar:
        for item in lock.items:
            try:
                for asset in item.assets.values():
                    if not _is_there(folder, asset):
                        _one(asset, folder, credentials, sign=sign, address=signed.get(asset.path, asset.href), bar=bar)
                        fetched += 1
                    bar.update(1)
            finally:
                lock.write(folder)
    log.info(f"{fetched} files fetched, {len(files) - fetched} were there")


def _is_there(folder: Path, asset: Pinned) -> bool:
    """Whether a file is there and whole; one that came just before an earlier fetch ended is taken into the lock."""
    path = folder / asset.path
    if not path.is_file() or (asset.size is not None and path.stat().st_size != asset.size):
        return False
    if asset.sha256 is not None:
        return sha256_file(path) == asset.sha256
    if asset.checksum is None or difference(path, asset.checksum):
        return False
    asset.size, asset.sha256 = path.stat().st_size, sha256_file(path)
    return True


def _one(
    asset: Pinned, folder: Path, credentials: Credentials, *, sign: str | None, address: str, bar: progress
) -> None:
    """Fetches one file, and writes into the lock what it is."""
    target = folder / asset.path
    target.parent.mkdir(parents=True, exist_ok=True)
    come = [0]

    def told(num_bytes: int) -> None:
        come[0] += num_bytes
        bar.update(0, at=f"{asset.path}: {come[0] / MEGA:.0f} MB")

    wanted = Wanted(
        address=_signing(sign, asset.href, credentials) if sign else lambda: address,
        shown=asset.href,
        target=target,
        size=asset.size,
        checksum=asset.checksum,
    )
    size, digest = download(wanted, credentials=credentials, told=told)
    if asset.sha256 not in (None, digest):
        target.unlink()
        raise problem(
            f"{asset.href} is no longer the file that was pinned",
            got=f"sha256 {digest}",
            expected=f"sha256 {asset.sha256}",
            remedy=f"remove {folder / LOCK_FILE} to search anew, and stage again: the catalogue has replaced it",
        )
    asset.size, asset.sha256 = size, digest


def _signing(sign: str, href: str, credentials: Credentials) -> Callable[[], str]:
    """Asks a catalogue for the signed form of an address, which is never kept."""

    def address() -> str:
        said_by = f"the signer {without_query(sign)}"
        try:
            with answer(f"{sign}?href={quote(href, safe='')}", headers={}, credentials=credentials) as response:
                found = parse(response.read(ANSWER_BYTES))["href"]
            if not isinstance(found, str) or without_query(found) != href:
                raise ValueError("an address of something else")
        except UserError:
            raise
        except (URLError, HTTPException, OSError, ValueError, KeyError, TypeError) as error:
            raise problem(
                f"{said_by} does not sign {href}",
                got=credentials.scrubbed(error),
                expected="JSON with the signed address as `href`",
                remedy="check `source.search.sign` and the network",
            ) from None
        return found

    return address
