"""Search, lock and fetch with a local catalog and pystac-client, and secrecy of tokens and signatures."""

import gzip
import importlib.util
import json
import logging
import shutil
import tracemalloc
import zlib
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dithc.cli import main
from dithc.config import datasets, load
from dithc.core.artifacts import sha256_file
from dithc.core.integrity import dump_checksummed
from dithc.core.logging import UserError
from dithc.data import ingest_scenes
from dithc.data.readers import read_scenes
from dithc.data.scene import Rejection, Scene
from dithc.data.stac import Lock, fetch_scenes
from dithc.data.stac.catalog import _request_text
from dithc.data.stac.http import Credentials
from tests.data.stac.server import Reply, StacServer
from tests.inputs.tables import read_rows

CLIENT = importlib.util.find_spec("pystac_client") is not None
needs_client = pytest.mark.skipif(not CLIENT, reason="pystac-client is not installed (pip install 'dithc[stac]')")
WORLD = (-180.0, -90.0, 180.0, 90.0)
SECRET = "s3cr3t-t0ken"


@pytest.fixture(autouse=True)
def _quiet(pauses: list[float], no_token: Callable[..., None]) -> None:
    """Skip delays and remove credentials."""


@pytest.fixture
def source(server: StacServer, tmp_path: Path) -> Callable[..., datasets.Sentinel2StacSource]:
    """Function that returns a source with three bands; arguments are settings of the search, or `search=None`."""

    def make(**settings: Any) -> datasets.Sentinel2StacSource:
        search: dict[str, Any] | None = {
            "catalog": server.catalog,
            "collection": "sentinel-2-l2a",
            "bbox": WORLD,
            "start_date": "2022-01-01",
            "end_date": "2022-12-31",
            **settings,
        }
        search = None if "search" in settings else search
        folder = str(tmp_path / "fetched")
        return datasets.Sentinel2StacSource(
            kind="sentinel2-stac", path=folder, bands=["B04", "B03", "B11"], search=search
        )

    return make


Make = Callable[..., datasets.Sentinel2StacSource]


def dataset(source: datasets.Sentinel2StacSource) -> dict[str, Any]:
    shown = {"bands": ["B04", "B03", "B11"], "low": 0.0, "high": 3000.0}
    return {"title": "A set", "codec": "none", "rendering": shown, "source": source.model_dump(mode="json")}


def documents(server: StacServer) -> dict[str, dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in server.folder.rglob("*.json")]
    return {doc["id"]: doc for doc in found if doc.get("type") == "Feature"}


def save_items(server: StacServer, folder: Path, *, most: int = 1) -> Path:
    """Save items of the catalog to a folder."""
    items = folder / "items"
    items.mkdir(exist_ok=True)
    for name, doc in list(documents(server).items())[:most]:
        doc["links"] = [{"rel": "self", "href": f"{server.url}/files/{name}/{name}.json?sig=secret"}]
        (items / f"{name}.json").write_text(json.dumps(doc))
    return items


def file_hashes(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in folder.rglob("*") if path.is_file()}


def read_json_texts(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.rglob("*.json"))


@needs_client
def test_fetched_search_is_locked_and_equals_the_served_scenes(
    server: StacServer, source: Make, tmp_path: Path
) -> None:
    lock = fetch_scenes(source())
    expected = {name for name, doc in documents(server).items() if doc["collection"] == "sentinel-2-l2a"}
    assert {item.id for item in lock.items} == expected
    assert len(expected) == 3  # more than a page
    folder = tmp_path / "fetched"
    for item in lock.items:
        assert {Path(asset.path).name.partition("_")[0] for asset in item.assets.values()} == {
            "B03",
            "B04",
            "B11",
            "SCL",
        }
        for asset in item.assets.values():
            assert (folder / asset.path).stat().st_size == asset.size
            assert sha256_file(folder / asset.path) == asset.sha256
            assert asset.href.startswith(f"{server.url}/files/{item.id}/")
    got = {doc.properties["product_id"]: doc for doc in read_scenes(source(), folder) if isinstance(doc, Scene)}
    served = datasets.Sentinel2StacSource(kind="sentinel2-stac", path=str(server.folder), bands=["B04", "B03", "B11"])
    true = {doc.properties["product_id"]: doc for doc in read_scenes(served, server.folder) if isinstance(doc, Scene)}
    assert got.keys() < true.keys()
    for name, scene in got.items():
        np.testing.assert_array_equal(scene.pixels, true[name].pixels)
        np.testing.assert_array_equal(scene.mask, true[name].mask)
    before = file_hashes(folder)
    server.requests.clear()
    fetch_scenes(source())
    assert (server.requests, file_hashes(folder)) == ([], before), "a second fetch sends no request"


@needs_client
def test_interrupted_fetch_resumes_without_a_new_search(server: StacServer, source: Make, tmp_path: Path) -> None:
    fetch_scenes(source())
    whole = file_hashes(tmp_path / "fetched")
    shutil.rmtree(tmp_path / "fetched")
    server.requests.clear()
    identity = sorted(doc for doc in documents(server) if doc.endswith("_L2A") and "_0_" in doc)[1]
    server.replies[f"/files/{identity}/B11.tif"] = [Reply(status=404)]
    with pytest.raises(UserError, match=r"no longer exists"):
        fetch_scenes(source())
    (rejected,) = [doc for doc in read_scenes(source(), tmp_path / "fetched") if isinstance(doc, Rejection)][:1]
    assert "not fetched yet" in rejected.error.expected
    done = [path for _, path, _ in server.requests if path.startswith("/files/")]
    server.requests.clear()
    fetch_scenes(source())
    again = [path for _, path, _ in server.requests]
    assert again
    assert not any("search" in path for path in again)
    assert not set(again) & set(done[:-1])
    assert file_hashes(tmp_path / "fetched") == whole


@needs_client
@pytest.mark.parametrize("damage", ["truncated", "altered", "gone"])
def test_damaged_file_is_rejected_and_refetched(server: StacServer, source: Make, tmp_path: Path, damage: str) -> None:
    lock, folder = fetch_scenes(source(max_items=1)), tmp_path / "fetched"
    whole, path = (
        file_hashes(folder),
        folder / lock.items[0].assets["red" if "red" in lock.items[0].assets else "B04"].path,
    )
    content = path.read_bytes()
    altered = {"truncated": content[:-1], "altered": content[:-1] + bytes([content[-1] ^ 1]), "gone": None}[damage]
    path.unlink() if altered is None else path.write_bytes(altered)
    (scene,) = read_scenes(source(max_items=1), folder)
    assert isinstance(scene, Rejection)
    assert path.name in scene.error.problem
    server.requests.clear()
    fetch_scenes(source(max_items=1))
    assert len(server.requests) == 1
    assert file_hashes(folder) == whole


@needs_client
def test_area_dates_cloud_cover_and_limit_select_scenes(server: StacServer, source: Make, tmp_path: Path) -> None:
    found = {name: doc for name, doc in documents(server).items() if doc["collection"] == "sentinel-2-l2a"}

    def ids(**settings: Any) -> set[str]:
        shutil.rmtree(tmp_path / "fetched", ignore_errors=True)
        return {item.id for item in fetch_scenes(source(**settings)).items}

    name, doc = next(iter(found.items()))
    west, south, east, north = doc["bbox"]
    inner = (west + 0.4 * (east - west), south + 0.4 * (north - south), east - 0.4 * (east - west), north)
    assert ids(bbox=inner) == {name}
    area = tmp_path / "area.geojson"
    feature = {"type": "Feature", "properties": {}, "geometry": doc["geometry"]}
    area.write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    assert name in ids(bbox=None, area_file=str(area))
    day = doc["properties"]["datetime"][:10]
    assert ids(start_date=day, end_date=day) == {name}
    clear = sorted(found.values(), key=lambda doc: float(doc["properties"]["eo:cloud_cover"]))
    assert ids(max_cloud_cover=clear[0]["properties"]["eo:cloud_cover"] / 100 + 1e-9) == {clear[0]["id"]}
    assert len(ids(max_items=2)) == 2
    with pytest.raises(UserError, match=r"no item of .* matches"):
        ids(collection="sentinel-9")


@needs_client
def test_cloud_cover_limit_applies_if_the_catalog_ignores_the_filter(server: StacServer, source: Make) -> None:
    found = [doc for doc in documents(server).values() if doc["collection"] == "sentinel-2-l2a"]
    page = {"type": "FeatureCollection", "features": found, "links": []}
    for doc in found:
        for asset in doc["assets"].values():
            asset["href"] = f"{server.url}/files/{doc['id']}/{asset['href'].removeprefix('./')}"
    least = min(found, key=lambda doc: float(doc["properties"]["eo:cloud_cover"]))
    server.replies["/v1/search"] = [Reply(body=json.dumps(page).encode())]
    most = least["properties"]["eo:cloud_cover"] / 100 + 1e-9
    assert [item.id for item in fetch_scenes(source(max_cloud_cover=most)).items] == [least["id"]]


def test_saved_items_are_fetched_without_pystac_client(
    server: StacServer, source: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dithc.data.stac.catalog.find_spec", lambda name: None)
    items = save_items(server, tmp_path, most=4)
    (items / "._an_item.json").write_bytes(b"\0\5\x16\7")  # AppleDouble file of macOS
    lock = fetch_scenes(source(search=None), items=items)
    assert len(lock.items) == 4
    scenes = list(read_scenes(source(search=None), tmp_path / "fetched"))
    assert all(isinstance(scene, Scene) for scene in scenes)
    assert "secret" not in read_json_texts(tmp_path / "fetched")
    with pytest.raises(UserError, match=r"(?s)pystac-client is not installed.*pip install 'dithc\[stac\]'"):
        fetch_scenes(source().model_copy(update={"path": str(tmp_path / "other")}))


def test_signed_addresses_are_used_but_never_stored(
    server: StacServer, source: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, doc = next((name, doc) for name, doc in documents(server).items() if "red" in doc["assets"])
    server.signature = "sv=1&sig=SIGNED"
    for asset in doc["assets"].values():
        asset["href"] = f"{server.url}/files/{name}/{asset['href'].removeprefix('./')}?{server.signature}"
    (tmp_path / "item.json").write_text(json.dumps({"type": "FeatureCollection", "features": [doc]}))
    with caplog.at_level("DEBUG"):
        fetch_scenes(source(search=None), items=tmp_path / "item.json")
    assert "SIGNED" not in read_json_texts(tmp_path / "fetched")
    assert "SIGNED" not in caplog.text
    server.signature = "sv=2&sig=LATER"
    next((tmp_path / "fetched").rglob("B04*.tif")).unlink()
    with pytest.raises(UserError, match=r"(?s)status 403.*search\.signing_url") as error:
        fetch_scenes(source(search=None), items=tmp_path / "item.json")
    assert "SIGNED" not in str(error.value)
    lock = (tmp_path / "fetched" / "lock.json").read_text()
    saved = (tmp_path / "item.json").read_text()
    (tmp_path / "item.json").write_text(saved.replace("sv=1&sig=SIGNED", server.signature))
    fetch_scenes(source(search=None), items=tmp_path / "item.json")
    assert (tmp_path / "fetched" / "lock.json").read_text() == lock
    assert "LATER" not in read_json_texts(tmp_path / "fetched")


def test_folder_fetched_for_other_items_is_rejected(server: StacServer, source: Make, tmp_path: Path) -> None:
    items = save_items(server, tmp_path)
    (only,) = items.glob("*.json")
    saved = json.loads(only.read_text())
    saved["assets"]["cloud"] = {**next(saved["assets"][key] for key in ("scl", "SCL") if key in saved["assets"])}
    only.write_text(json.dumps(saved))
    fetch_scenes(source(search=None), items=items)
    before = file_hashes(tmp_path / "fetched")
    renamed = only.rename(items / "another_name.json")
    renamed.write_text(json.dumps(dict(reversed(saved.items()))))
    server.requests.clear()
    assert (
        len(fetch_scenes(source(search=None), items=items).items) == 1
    )  # the file name and the order of keys do not matter
    clouded = source(search=None)
    clouded = clouded.model_copy(update={"clouds": clouded.clouds.model_copy(update={"min_cloud_probability": 50})})
    with pytest.raises(UserError, match=r'(?s)fetched for another search.*probability": true'):
        fetch_scenes(clouded, items=items)
    renamed.write_text(json.dumps(saved | {"properties": saved["properties"] | {"eo:cloud_cover": 99.0}}))
    with pytest.raises(UserError, match=r"fetched for another search"):
        fetch_scenes(source(search=None), items=items)
    renamed.write_text(json.dumps(saved))
    save_items(server, tmp_path, most=2)
    renamed.unlink()
    with pytest.raises(UserError, match=r"(?s)fetched for another search.*\"items\": 1.*\"items\": 2.*lock\.json"):
        fetch_scenes(source(search=None), items=items)
    assert server.requests == []
    assert file_hashes(tmp_path / "fetched") == before


def test_fetch_requires_exactly_one_of_items_and_search(server: StacServer, source: Make, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"(?s)`--items` excludes.*got:.*expected:.*fix:.*without `search`"):
        fetch_scenes(source(), items=save_items(server, tmp_path))
    with pytest.raises(UserError, match=r"are both missing"):
        fetch_scenes(source(search=None))
    assert not (tmp_path / "fetched").exists()
    assert server.requests == []


def test_scene_removed_from_the_lock_is_rejected_by_reingestion(
    server: StacServer, source: Make, tmp_path: Path
) -> None:
    fetch_scenes(source(search=None), items=save_items(server, tmp_path, most=2))
    settings = datasets.DatasetConfig.model_validate({**dataset(source(search=None)), "max_rejected_fraction": 0.5})
    assert ingest_scenes(settings, tmp_path / "fetched", out=tmp_path / "staged")["rejected"] == {}
    lock = Lock.read(tmp_path / "fetched")
    assert lock is not None
    gone = lock.items.pop()
    lock.write(tmp_path / "fetched")
    numbers = ingest_scenes(settings, tmp_path / "fetched", out=tmp_path / "staged")
    assert (numbers["accepted"], numbers["rejected"]) == (1, {"incomplete": 1})
    rows = {row["scene_id"]: row["status"] for row in read_rows(tmp_path / "staged" / "scenes.parquet")}
    assert rows == {gone.path: "rejected", lock.items[0].path: "accepted"}
    ingest_scenes(settings, tmp_path / "fetched", out=tmp_path / "anew")
    for name in ("stack-00000.npy", "scenes.json"):
        assert (tmp_path / "staged" / name).read_bytes() == (tmp_path / "anew" / name).read_bytes()
    strict = settings.model_copy(update={"max_rejected_fraction": 0.0})
    with pytest.raises(UserError, match=r"incomplete"):
        ingest_scenes(strict, tmp_path / "fetched", out=tmp_path / "staged")


@needs_client
def test_signer_is_requested_for_each_asset(server: StacServer, source: Make, tmp_path: Path) -> None:
    server.signature = "sv=1&sig=SIGNED"
    lock = fetch_scenes(source(signing_url=f"{server.url}/sign", max_items=1))
    assert len(server.requests_of("/sign")) == len(lock.items[0].assets)
    assert "SIGNED" not in read_json_texts(tmp_path / "fetched")


@needs_client
def test_token_is_sent_but_never_stored_or_logged(
    server: StacServer, source: Make, tmp_path: Path, no_token: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    server.token = SECRET
    with pytest.raises(UserError, match=r"does not answer"):
        fetch_scenes(source(max_items=1))
    no_token(DITHC_STAC_TOKEN=f" {SECRET}\n")
    with caplog.at_level(logging.DEBUG):
        fetch_scenes(source(max_items=1))
    assert all(headers.get("Authorization") == f"Bearer {SECRET}" for _, path, headers in server.requests[-4:])
    assert SECRET not in read_json_texts(tmp_path / "fetched")
    assert SECRET not in caplog.text
    shutil.rmtree(tmp_path / "fetched")
    server.replies["/v1/search"] = [Reply(status=400, body=f"you sent {SECRET} to ?key={SECRET}".encode())]
    with pytest.raises(UserError, match=r"you sent") as error:
        fetch_scenes(source(max_items=1))
    assert SECRET not in str(error.value)
    no_token(DITHC_STAC_TOKEN=f"Bearer {SECRET}")
    with pytest.raises(UserError, match=r"one word") as error:
        fetch_scenes(source(max_items=1))
    assert SECRET not in str(error.value)


@needs_client
def test_search_redirects_send_the_token_only_to_the_catalog_host(
    server: StacServer, source: Make, tmp_path: Path, no_token: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login user password of-netrc\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    no_token(DITHC_STAC_TOKEN=SECRET)
    elsewhere = server.url.replace("127.0.0.1", "localhost")
    server.replies["/v1"] = [Reply(status=302, headers={"Location": f"{elsewhere}/v1/"})]
    server.replies["/v1/"] = [Reply(status=302, headers={"Location": "/v1"})]
    server.replies["/v1/search"] = [Reply(status=307, headers={"Location": f"{server.url}/v1/search"})]
    fetch_scenes(source(max_items=1))
    save_items = {headers["Host"].split(":")[0]: headers.get("Authorization") for _, _, headers in server.requests}
    assert save_items == {"127.0.0.1": f"Bearer {SECRET}", "localhost": None}
    no_token(DITHC_STAC_TOKEN="")
    shutil.rmtree(tmp_path / "fetched")
    server.requests.clear()
    fetch_scenes(source(max_items=1))
    assert not any("Authorization" in headers for _, _, headers in server.requests)


LIMIT = 1 << 16
BOMB = b" " * (1 << 24)
ANSWERS = {  # body, headers, and part of the error message
    "plain": (BOMB, {}, "more than"),
    "gzip": (gzip.compress(BOMB), {"Content-Encoding": "gzip"}, "after decompression"),
    "x-gzip": (gzip.compress(BOMB), {"Content-Encoding": "X-Gzip "}, "after decompression"),
    "deflate": (zlib.compress(BOMB), {"Content-Encoding": "deflate"}, "after decompression"),
    "nested": (gzip.compress(gzip.compress(BOMB)), {"Content-Encoding": "gzip, gzip"}, "Content-Encoding gzip, gzip"),
    "other": (b"?", {"Content-Encoding": "br"}, "Content-Encoding br"),
    "cut": (gzip.compress(BOMB)[:500], {"Content-Encoding": "gzip"}, ""),
    "no gzip": (b"{}" * 9, {"Content-Encoding": "gzip"}, "damaged gzip content"),
    "negative chunk": (b"-5\r\n" + BOMB, {"Transfer-Encoding": "chunked", "Content-Length": None}, ""),
}


def assert_bounded(call: Callable[[], object], reason: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises((UserError, ValueError, OSError, HTTPException), match=reason or None):
            call()
        assert tracemalloc.get_traced_memory()[1] < len(BOMB) / 4
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ANSWERS)
def test_invalid_responses_are_rejected_in_bounded_memory(
    server: StacServer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, headers, reason = ANSWERS[kind]
    monkeypatch.setattr("dithc.data.stac.catalog.ANSWER_BYTES", LIMIT)
    server.replies["/v1"] = [Reply(body=sent, headers=headers)]
    server.forever.add("/v1")
    assert_bounded(lambda: _request_text(Credentials.read(None), server.catalog), reason)


@needs_client
@pytest.mark.parametrize(("path", "status"), [("/v1", 200), ("/v1/search", 200), ("/v1/search", 400), ("/sign", 200)])
def test_compression_bombs_are_rejected_from_every_endpoint(
    server: StacServer, source: Make, path: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dithc.data.stac.catalog.ANSWER_BYTES", LIMIT)
    server.signature = "sig=SIGNED"
    packed = {"Content-Encoding": "gzip"}
    server.replies[path] = [Reply(status=status, body=gzip.compress(BOMB), headers=packed)]
    server.forever.add(path)
    assert_bounded(lambda: fetch_scenes(source(signing_url=f"{server.url}/sign", max_items=1)), "after decompression")


@pytest.mark.parametrize("packed", ["gzip", "deflate"])
def test_compressed_responses_are_read(server: StacServer, packed: str) -> None:
    content = {"gzip": gzip.compress, "deflate": zlib.compress}[packed](b" " * LIMIT)
    server.replies["/v1"] = [Reply(body=content, headers={"Content-Encoding": packed})]
    assert _request_text(Credentials.read(None), server.catalog) == " " * LIMIT


@needs_client
@pytest.mark.parametrize("href", ["file:///etc/passwd", "/etc/passwd", "http://user:pass@127.0.0.1/next"])
def test_next_page_link_to_local_file_or_credentials_is_rejected(server: StacServer, source: Make, href: str) -> None:
    page = {"type": "FeatureCollection", "features": [], "links": [{"rel": "next", "href": href}]}
    page["features"] = [next(iter(documents(server).values()))]
    server.replies["/v1/search"] = [Reply(body=json.dumps(page).encode())]
    with pytest.raises(UserError, match=r"does not answer|unsupported address") as error:
        fetch_scenes(source())
    assert "pass@" not in str(error.value)


@needs_client
@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"type": "Catalog"}', b'{"type": "FeatureCollection", "features": 7}']
)
@pytest.mark.parametrize("path", ["/v1", "/v1/search"])
def test_invalid_catalog_response_raises_an_error(server: StacServer, source: Make, path: str, body: bytes) -> None:
    server.replies[path] = [Reply(body=body)]
    with pytest.raises(UserError, match=r"does not answer|no item of"):
        fetch_scenes(source())


def valid_lock() -> dict[str, Any]:
    """Return a valid lock of one scene."""
    asset = {"path": "A/B04_10m.tif", "href": "https://h/a.tif", "size": 1, "checksum": None, "sha256": None}
    item = {"id": "A", "path": "A/A.json", "sha256": "0", "assets": {"red": asset}}
    return {"version": 1, "search": {}, "items": [item]}


OUTSIDE = ("../out.tif", "A/../../out.tif", "/out.tif", "A/..", "A/.", "A/", "A", "x/a.tif", "A/a/b", 7)
OTHER_TYPES = [("href", 7), ("size", "7"), ("checksum", 7), ("sha256", 7)]


@pytest.mark.parametrize(
    ("of_item", "key", "value"),
    [
        *((of_item, "path", path) for of_item in (True, False) for path in OUTSIDE),
        *((False, *other) for other in OTHER_TYPES),
        *((True, "id", identity) for identity in ("..", 7)),
    ],
)
def test_lock_with_outside_paths_or_wrong_types_is_invalid(tmp_path: Path, of_item: bool, key: str, value: Any) -> None:
    content = valid_lock()
    (tmp_path / "lock.json").write_text(dump_checksummed(content))
    assert Lock.read(tmp_path) is not None
    (content["items"][0] if of_item else content["items"][0]["assets"]["red"])[key] = value
    (tmp_path / "lock.json").write_text(dump_checksummed(content))
    with pytest.raises(UserError, match=r"(?s)is invalid\n.*\n.*ID/FILE\n.*rm "):
        Lock.read(tmp_path)


def test_invalid_lock_stops_fetch_and_ingestion_without_writes(
    server: StacServer, source: Make, tmp_path: Path
) -> None:
    (tmp_path / "fetched").mkdir()
    content = valid_lock()
    content["items"][0]["path"] = "../out.tif"
    (tmp_path / "fetched" / "lock.json").write_text(dump_checksummed(content))
    items = save_items(server, tmp_path)
    before = file_hashes(tmp_path)
    for use in (
        lambda: fetch_scenes(source(search=None), items=items),
        lambda: read_scenes(source(search=None), tmp_path / "fetched"),
    ):
        with pytest.raises(UserError, match="is invalid"):
            use()
    assert file_hashes(tmp_path) == before


@pytest.mark.parametrize("identity", ["../out", "a/b", ".hidden", "", "a" * 300, "a\nb"])
def test_item_id_that_is_not_a_folder_name_is_rejected(
    server: StacServer, source: Make, tmp_path: Path, identity: str
) -> None:
    doc = next(iter(documents(server).values()))
    doc["id"] = identity
    doc["links"] = [{"rel": "self", "href": f"{server.url}/files/x/x.json"}]
    (tmp_path / "item.json").write_text(json.dumps(doc))
    with pytest.raises(UserError, match=r"not a valid folder name"):
        fetch_scenes(source(search=None), items=tmp_path / "item.json")
    assert {path.name for path in tmp_path.iterdir()} == {"served", "item.json"}


@pytest.mark.parametrize(
    "href",
    [
        "file:///etc/passwd",
        "../../../etc/passwd",
        "s3://bucket/a.tif",
        "ftp://host/a.tif",
        "http://[::",
        "https://u:p@h/a.tif",
    ],
)
def test_asset_with_an_unsupported_address_is_rejected(
    source: Make, server: StacServer, tmp_path: Path, href: str
) -> None:
    doc = next(doc for doc in documents(server).values() if "red" in doc["assets"])
    doc["assets"]["red"]["href"] = href
    (tmp_path / "item.json").write_text(json.dumps(doc))
    with pytest.raises(UserError, match=r"asset red of .* leads to an unsupported address"):
        fetch_scenes(source(search=None), items=tmp_path / "item.json")


@needs_client
def test_folder_of_another_search_is_rejected_and_preserved(server: StacServer, source: Make, tmp_path: Path) -> None:
    fetch_scenes(source(max_items=1))
    before = file_hashes(tmp_path / "fetched")
    with pytest.raises(UserError, match=r"(?s)fetched for another search.*lock\.json"):
        fetch_scenes(source(max_items=2))
    with pytest.raises(UserError, match=r"another search"):
        read_scenes(source(max_items=2), tmp_path / "fetched")
    assert file_hashes(tmp_path / "fetched") == before
    lock = tmp_path / "fetched" / "lock.json"
    lock.write_text(lock.read_text().replace('"max_items": 1', '"max_items": 2'))
    with pytest.raises(UserError, match=r"lock\.json was changed after it was written"):
        Lock.read(tmp_path / "fetched")


@needs_client
def test_ingestion_rejects_unfetched_searches_and_missing_scenes(
    server: StacServer, source: Make, tmp_path: Path
) -> None:
    folder = tmp_path / "fetched"
    folder.mkdir()
    with pytest.raises(UserError, match=r"(?s)no lock\.json.*dithc fetch"):
        read_scenes(source(), folder)
    lock = fetch_scenes(source())
    shutil.rmtree(folder / lock.items[1].id)
    with pytest.raises(UserError, match=r"lacks scenes that its lock.json lists"):
        read_scenes(source(), folder)


@needs_client
def test_fetch_command_reads_the_config_and_prints_the_lock_path(
    server: StacServer, source: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    doc = dataset(source(max_items=1))
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"datasets": {"set": doc}, "codecs": {"none": {"kind": "pixel"}}}))
    assert load(path).datasets["set"].source == source(max_items=1)
    assert main(["fetch", "--config", str(path), "--dataset", "set"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "fetched" / "lock.json")
    assert main(["fetch", "--config", str(path), "--dataset", "other"]) == 2


def test_addresses_with_secrets_and_invalid_searches_are_rejected(source: Make) -> None:
    for address in ("https://user:pass@host/v1", "https://host/v1?token=a", "file:///v1", "host/v1", "https://"):
        with pytest.raises(ValueError, match=r"address"):
            source(catalog=address)
    for invalid in ({"bbox": (10, 0, 5, 5)}, {"bbox": None}, {"start_date": "2023-01-01"}, {"area_file": "a.geojson"}):
        with pytest.raises(ValueError, match=r"bbox|start_date"):
            source(**invalid)


def test_linked_scene_folder_is_rejected_without_writing(server: StacServer, source: Make, tmp_path: Path) -> None:
    items = save_items(server, tmp_path)
    (item,) = fetch_scenes(source(search=None), items=items).items
    elsewhere = tmp_path / "elsewhere"
    shutil.move(tmp_path / "fetched" / item.id, elsewhere)
    next(path for path in elsewhere.iterdir() if path.suffix != ".json").unlink()
    before = file_hashes(elsewhere)
    (tmp_path / "fetched" / item.id).symlink_to(elsewhere)
    with pytest.raises(UserError, match=r"(?s)is a link.*remove the link"):
        fetch_scenes(source(search=None), items=items)
    assert file_hashes(elsewhere) == before
