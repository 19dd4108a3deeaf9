"""Items of three catalogs and multihashes, compared with values written by hand."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from dithc.core.logging import UserError
from dithc.data.stac import read_item, select_assets
from dithc.data.stac.multihash import difference, parse_multihash


def item(tmp_path: Path, assets: dict[str, Any], **properties: Any) -> Path:
    path = tmp_path / "one.json"
    content = {
        "type": "Feature",
        "stac_version": "1.0.0",
        "id": "S2A_X_L2A",
        "collection": "sentinel-2-l2a",
        "properties": {"s2:processing_baseline": "05.09", **properties},
        "assets": assets,
    }
    path.write_text(json.dumps(content))
    return path


# Assets in the form of each catalog.
EARTH_SEARCH = {
    "eo:bands": [{"name": "nir08", "common_name": "nir08"}],
    "raster:bands": [{"nodata": 0, "spatial_resolution": 20, "scale": 0.0001, "offset": -0.1}],
    "roles": ["data", "reflectance"],
}
PLANETARY_COMPUTER = {"gsd": 20, "eo:bands": [{"name": "B8A", "common_name": "rededge"}], "roles": ["data"]}
DATA_SPACE = {
    "bands": [{"name": "B8A", "eo:common_name": "nir08"}],
    "gsd": 20,
    "raster:scale": 0.0001,
    "raster:offset": -0.1,
    "roles": ["data", "gsd:20m"],
}


@pytest.mark.parametrize(
    ("key", "asset", "numbers"),
    [
        ("nir08", EARTH_SEARCH, (1e-4, -0.1)),
        ("B8A", PLANETARY_COMPUTER, (None, None)),
        ("B8A_20m", DATA_SPACE, (1e-4, -0.1)),
        ("anything", DATA_SPACE, (1e-4, -0.1)),
    ],
)
def test_band_is_found_by_catalog_key_or_band_name(
    tmp_path: Path, key: str, asset: dict[str, Any], numbers: tuple[float | None, float | None]
) -> None:
    (found,) = read_item(item(tmp_path, {key: {"href": "./a.tif", **asset}})).assets
    assert (found.band, found.gsd_m) == ("B8A", 20.0)
    assert (found.scale, found.offset) == numbers


def test_copies_previews_and_other_layers_are_not_bands(tmp_path: Path) -> None:
    row = [{"name": "red", "common_name": "red"}]
    others = {
        "red-jp2": {"href": "s3://a/B04.jp2", "eo:bands": row, "roles": ["data"]},
        "visual": {"href": "TCI.tif", "eo:bands": [*row, *row, *row], "roles": ["visual"]},
        "thumbnail": {"href": "a.jpg", "eo:bands": row, "roles": ["thumbnail"]},
        "aot": {"href": "AOT.tif", "roles": ["data"]},
        "some-rededge": {"href": "a.tif", "eo:bands": [{"name": "x", "common_name": "rededge"}], "roles": ["data"]},
    }
    assert read_item(item(tmp_path, others)).assets == []


def test_https_alternative_replaces_an_object_store_address(tmp_path: Path) -> None:
    asset = {"href": "s3://eodata/a.jp2", "alternate": {"https": {"href": "https://host/a.jp2"}}}
    (found,) = read_item(item(tmp_path, {"B04_10m": asset})).assets
    assert found.href == "https://host/a.jp2"


def test_asset_selection_uses_equal_or_next_finer_resolution(tmp_path: Path) -> None:
    assets = {f"B04_{size}m": {"href": f"./{size}.jp2"} for size in (10, 20, 60)} | {"B11_60m": {"href": "./b.jp2"}}
    found = read_item(item(tmp_path, assets))
    for gsd_m, size in ((10.0, 10.0), (15.0, 10.0), (20.0, 20.0), (100.0, 60.0)):
        assert select_assets(found, ["B04"], gsd_m=gsd_m)[0]["B04"].gsd_m == size
    assert select_assets(found, ["B04", "B11"], gsd_m=20.0)[1] == ["B11"]
    assert select_assets(found, ["B04", "B11"], gsd_m=60.0)[1] == []


@pytest.mark.parametrize(
    ("assets", "properties", "message"),
    [
        ({"red": {"href": "a", "eo:bands": [{"name": "B03"}]}}, {}, "asset red, with band B03"),
        ({"red": {"href": "a"}, "B04": {"href": "b"}}, {}, "assets red and B04 for B04 at 10 m"),
        ({"red": {}}, {}, "without an href"),
        (
            {},
            {"s2:product_uri": "S2A_MSIL2A_20220401T030551_N0400_R075_T50TLL_20220401T071734.SAFE"},
            "04.00 and 05.09",
        ),
        ({}, {"s2:product_type": "S2MSI1C"}, "L1C and L2A|1C and 2A"),
        ({}, {"earthsearch:boa_offset_applied": "yes"}, "boa_offset_applied 'yes'"),
        ({"red": {"href": "a", "raster:bands": [{"scale": 0}]}}, {}, "scale 0"),
        ({"red": {"href": "a", "raster:bands": [{"offset": float("nan")}]}}, {}, "offset nan"),
        ({"red": {"href": "a", "file:size": True}}, {}, "file:size True"),
        ({}, {"eo:cloud_cover": 101}, "cloud_cover 101"),
    ],
)
def test_invalid_or_contradictory_item_is_rejected(
    tmp_path: Path, assets: dict[str, Any], properties: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read_item(item(tmp_path, assets, **properties))


@pytest.mark.parametrize("text", ["[]", "7", '{"type": "Feature"}', "[" * 100_000, "\xff", '{"type": "Collection"}'])
def test_documents_that_are_not_items_are_rejected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "one.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=r"not a valid STAC item"):
        read_item(path)


def test_multihash_prefix_selects_the_algorithm() -> None:
    # Checksums of Earth Search and of the Copernicus Data Space, and the MD5 of the empty text.
    assert parse_multihash("12206cb1d84f7a4087f019b7a714046f49d07fa489372c87e4237a505c32e168859b")[0] == "sha256"
    assert parse_multihash("1620ca806e479c6f164ed69c0171fc0e4fc24f4be2d96b5f34b7e590abed6dd3dee1")[0] == "sha3_256"
    assert parse_multihash("d50110d41d8cd98f00b204e9800998ecf8427e") == ("md5", "d41d8cd98f00b204e9800998ecf8427e")


@pytest.mark.parametrize(
    "text", ["", "12", "1220ab", "zz", "1220" + "0" * 66, "b220" + "0" * 64, "ffffffff", "9920" + "0" * 64]
)
def test_invalid_multihash_never_matches(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"")
    differs = difference(path, text)
    assert differs is not None
    assert "multihash" in differs[1]


def test_altered_byte_does_not_match_the_multihash(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    checksum = "1620" + hashlib.sha3_256(b"abc").hexdigest()
    assert difference(path, checksum) is None
    path.write_bytes(b"abd")
    assert difference(path, checksum) is not None
