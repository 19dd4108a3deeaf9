"""Scenes brought from servers into a folder: found, pinned, fetched; what is there and whole is left alone."""

import copy
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote, urlsplit

from dithc.clutter import is_clutter
from dithc.config import datasets
from dithc.log import UserError, logger, problem, progress
from dithc.runs import atomic_write, sha256_file
from dithc.sealed import parse
from dithc.stac.catalogue import search_catalogue
from dithc.stac.download import Wanted, download
from dithc.stac.http import Credentials, answer, body, check_address, is_remote, joined, without_query
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


@dataclass(frozen=True, kw_only=True)
class _Found:
    """Scenes as they will lie in the folder.

    Attributes:
        items: by id.
        documents: items by their paths.
        addresses: where files are from by their paths, with whatever belongs to them; never kept.
    """

    items: list[PinnedItem]
    documents: dict[str, dict[str, Any]]
    addresses: dict[str, str]


def fetch(source: datasets.Sentinel2Stac, *, items: Path | None = None) -> Lock:
    """Brings the scenes of a search, or of items, into `source.path`, with a lock beside them.

    Args:
        source: says what is searched, which bands at which pixel size, and where they go.
        items: a file or folder of items where nothing is searched; a file may hold a collection of them.

    Returns:
        The lock, all files of which are there.

    Raises:
        UserError: there is no search and no items, or both, the folder was fetched for others, nothing fits, or a file cannot be
            had.
    """
    assert source.path is not None
    folder, search = Path(source.path), source.search
    credentials = Credentials.read(search.catalog if search else None)
    if (items is None) == (search is None):
        what, got = "there is nothing to fetch", "a source without `search`, and no --items"
        if search is not None:
            what, got = "a search and items at once are not fetched", "a source with `search`, and --items"
        raise problem(
            what,
            got=got,
            expected="one of them",
            fix="say in `source.search` which scenes, or pass --items FOLDER with STAC items of a catalogue for a source "
            "without `search`, which staging takes too",
        )
    found = None if items is None else _pinned(_given(items), source)
    asked = Lock.asked_for(source) if found is None else _asked_for(found, source)
    lock = Lock.read(folder)
    if lock is None:
        if search is not None:
            found = _pinned(search_catalogue(search, credentials=credentials), source)
        assert found is not None
        for path, document in found.documents.items():
            atomic_write(folder / path, _text(document))
        lock = Lock(search=asked, items=found.items)
        lock.write(folder)
    elif lock.search != asked:
        raise problem(
            f"{folder} was fetched for something else",
            got=json.dumps(lock.search),
            expected=json.dumps(asked),
            fix=f"take another `source.path`, or remove {folder / LOCK_FILE}: then it is searched anew",
        )
    sign, signed = search.sign if search else None, found.addresses if found else {}
    _complete(lock, folder, credentials, sign=sign, signed=signed)
    return lock


def _asked_for(found: _Found, source: datasets.Sentinel2Stac) -> dict[str, Any]:
    """What the lock of items says of them: how many, and a digest of all but queries of their addresses."""
    rows = [[found.documents[item.path], asdict(item)["assets"]] for item in found.items]  # by id
    digest = sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
    masks = source.clouds.probability is not None
    chosen_by = {"bands": source.bands, "gsd_m": source.gsd_m, "probability": masks}
    return {"items": len(rows), "sha256": digest, **chosen_by}


def _given(items: Path) -> list[Item]:
    """Items of files."""
    inside = items.rglob("*.json") if items.is_dir() else [items]
    paths = sorted(path for path in inside if not is_clutter(path.relative_to(items)))
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
            fix="save them from their catalogue, or search it: `source.search`",
        )
    return list(found.values())


def _pinned(given: list[Item], source: datasets.Sentinel2Stac) -> _Found:
    """Items as they will lie in the folder."""
    found = _Found(items=[], documents={}, addresses={})
    for item in sorted(given, key=lambda item: item.id):
        if not IDENTITY.fullmatch(item.id):
            raise problem(
                "the catalogue gives an item a name that can be no folder's",
                got=repr(item.id[:100]),
                expected="letters, digits, `.`, `_` and `-`, a letter or digit first",
                fix="leave that scene out of the search",
            )
        assets, pinned = _wanted(item, source), {}
        for name, asset in assets.items():
            address = _absolute(asset, item)
            suffix = Path(urlsplit(address).path).suffix.lower()
            file = f"{name}_{asset.gsd_m:g}m{suffix if suffix in SUFFIXES else '.tif'}"
            pinned[asset.key] = Pinned(
                path=f"{item.id}/{file}", href=without_query(address), size=asset.size, checksum=asset.checksum
            )
            found.addresses[f"{item.id}/{file}"] = address
        path, document = f"{item.id}/{item.id}.json", _local(item, pinned)
        digest = sha256(_text(document).encode()).hexdigest()
        found.documents[path] = document
        found.items.append(PinnedItem(id=item.id, path=path, sha256=digest, assets=pinned))
    return found


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1) + "\n"


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
            fix="choose `bands` and `gsd_m` that the catalogue has, or another collection",
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
    if links := [item.id for item in lock.items if (folder / item.id).is_symlink()]:
        raise problem(
            f"a folder of a scene in {folder} is a link, which may lead out of it",
            got=links[0],
            expected="folders",
            fix="remove the link: the scene is fetched again",
        )
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
            fix=f"remove {folder / LOCK_FILE} to search anew, and stage again: the catalogue has replaced it",
        )
    asset.size, asset.sha256 = size, digest


def _signing(sign: str, href: str, credentials: Credentials) -> Callable[[], str]:
    """Asks a catalogue for the signed form of an address, which is never kept."""

    def address() -> str:
        said_by = f"the signer {without_query(sign)}"
        try:
            with answer(f"{sign}?href={quote(href, safe='')}", headers={}, credentials=credentials) as response:
                found = parse(body(response, most=ANSWER_BYTES))["href"]
            if not isinstance(found, str) or without_query(found) != href:
                raise ValueError("an address of something else")
        except UserError:
            raise
        except (URLError, HTTPException, OSError, ValueError, KeyError, TypeError) as error:
            raise problem(
                f"{said_by} does not sign {href}",
                got=credentials.scrubbed(error),
                expected="JSON with the signed address as `href`",
                fix="check `source.search.sign` and the network",
            ) from None
        return found

    return address
