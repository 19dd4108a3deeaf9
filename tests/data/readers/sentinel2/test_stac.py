"""Scenes with STAC items: reflectance of the original products by the rules of three catalogs; others are rejected."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from dithc.config import datasets
from dithc.data import stac, synthesize
from dithc.data.grids import north_up
from dithc.data.raster import read_raster, write_geotiff
from dithc.data.readers import read_scenes
from dithc.data.readers.sentinel2.stac_scaling import find_scaling
from dithc.data.scene import Mask, Reason, Rejection, Scene, SceneRejectedError
from tests.data.readers import system_files
from tests.data.readers.scene_readers import reader
from tests.inputs.stac_items import write_items

TEN_METRES = ["B02", "B03", "B04", "B08"]
EARTH_SEARCH, PLANETARY_COMPUTER, COLLECTION_1 = "*_0_L2A", "*MSIL2A*", "*_T*Z_L2A"


read_all, read_one, read_error = reader(datasets.Sentinel2StacSource, kind="sentinel2-stac")


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create three scenes as items (`items/`), and their products (`products/`)."""
    root = tmp_path_factory.mktemp("stac")
    write_items(root / "items", scenes=3)
    synthesize("sentinel2", root / "products", seed=3, scenes=3, size=96)
    return root


@pytest.fixture
def scene_of(generated: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Create a folder with the scene of a catalog, which the test may damage."""

    def find(catalog: str) -> Path:
        number = [EARTH_SEARCH, PLANETARY_COMPUTER, COLLECTION_1].index(catalog)
        found = sorted(generated.glob("items/*/*.json"), key=lambda path: _read_item(path)["properties"]["datetime"])[
            number
        ]
        return Path(shutil.copytree(found.parent, tmp_path / "items" / found.parent.name)).parent

    return find


def _read_item(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def item_file(folder: Path) -> Path:
    return next(folder.glob("*/*.json"))


def change(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = item_file(folder)
    item = _read_item(path)
    edit(item)
    path.write_text(json.dumps(item))


def band_file(folder: Path, band: str) -> Path:
    return next(path for path in folder.rglob("*.tif") if band in path.name.replace(".", "_").split("_"))


@pytest.mark.slow
def test_item_scenes_equal_the_original_products_for_all_catalogs(generated: Path) -> None:
    items = {one.properties["product_id"]: one for one in read_all(generated / "items") if isinstance(one, Scene)}
    source = datasets.Sentinel2Source(kind="sentinel2", path=str(generated / "products"))
    products = [one for one in read_scenes(source, generated / "products") if isinstance(one, Scene)]
    products.sort(key=lambda one: str(one.properties["sensing_time"]))
    assert [items[one.properties["product_id"]].properties["offset_source"] for one in products] == [
        "applied",
        "baseline",
        "item",
    ]
    for product in products:
        item = items[product.properties["product_id"]]
        np.testing.assert_array_equal(item.mask, product.mask)
        assert item.pixels.dtype == np.int16
        assert item.place == product.place
        assert item.properties["level"] == "L2A"
        assert item.properties["baseline"] == "04.00"
        assert product.properties["sensing_time"][:19] == item.properties["sensing_time"][:19]
        valid = product.mask != Mask.INVALID
        for band in product.bands:
            if band == "B01":  # native 60 m in the product, a copy of 20 m in the item
                continue
            got, true = (one.pixels[one.bands.index(band)] for one in (item, product))
            if item.properties["offset_source"] != "applied":
                np.testing.assert_array_equal(got, true)
            elif band in TEN_METRES:
                np.testing.assert_array_equal(
                    got[valid], np.maximum(true, 1)[valid]
                )  # removal of the offset clips at 1
            else:  # interpolated, in part from pixels clipped at 1
                assert np.quantile(np.abs(got.astype(int) - true), 0.9) <= 1


def create_item(
    *, baseline: str | None, applied: bool | None, offset: float | None
) -> tuple[stac.Item, dict[str, stac.Asset]]:
    asset: dict[str, Any] = {"href": "./a.tif"}
    asset |= {} if offset is None else {"raster:bands": [{"scale": 1e-4, "offset": offset}]}
    properties = {"s2:processing_baseline": baseline, "earthsearch:boa_offset_applied": applied}
    content = {
        "type": "Feature",
        "stac_version": "1.0.0",
        "id": "S2A_L2A",
        "properties": {name: value for name, value in properties.items() if value is not None},
        "assets": {"red": asset, "nir": asset},
    }
    item = stac.item.item_of(content, origin="one")  # type: ignore[attr-defined]
    return item, {asset.band: asset for asset in item.assets}


@pytest.mark.parametrize(
    ("baseline", "applied", "offset", "expected"),
    [
        ("05.09", None, None, -1000.0),  # Planetary Computer
        ("02.12", None, None, 0.0),
        ("05.11", None, -0.1, -1000.0),  # Copernicus Data Space, Earth Search's collection 1
        ("02.14", None, 0, 0.0),
        ("04.00", True, -0.1, 0.0),  # Earth Search, whose bands keep the product's offset
        ("04.00", True, 0, 0.0),
        ("04.00", False, -0.1, -1000.0),
        ("00.01", False, 0, 0.0),
        (None, None, -0.1, -1000.0),
        (None, True, None, 0.0),
    ],
)
def test_offset_matches_the_catalog_metadata_unless_declared(
    baseline: str | None, applied: bool | None, offset: float | None, expected: float
) -> None:
    item, assets = create_item(baseline=baseline, applied=applied, offset=offset)
    found = find_scaling(item, assets, declared=None)
    assert (found.per_unit, found.offsets) == (10_000.0, [expected, expected])
    assert find_scaling(item, assets, declared=-7.0).offsets == [-7.0, -7.0]


@pytest.mark.parametrize(
    ("baseline", "applied", "offset"),
    [
        ("04.00", None, 0),  # removed or wrong
        ("04.00", False, 0),
        ("03.01", None, -0.1),
        ("03.01", False, -0.1),
        ("02.12", True, None),
        (None, None, None),
        (None, False, None),
    ],
)
def test_contradictory_offset_is_rejected_unless_declared(
    baseline: str | None, applied: bool | None, offset: float | None
) -> None:
    item, assets = create_item(baseline=baseline, applied=applied, offset=offset)
    with pytest.raises(SceneRejectedError, match=r"offset: -1000.*offset: 0") as error:
        find_scaling(item, assets, declared=None)
    assert error.value.reason == Reason.OFFSET_CONTRADICTION
    assert find_scaling(item, assets, declared=0.0).offsets == [0.0, 0.0]


def test_bands_with_inconsistent_offset_declarations_are_rejected() -> None:
    item, assets = create_item(baseline="05.09", applied=None, offset=-0.1)
    undeclared, _ = create_item(baseline="05.09", applied=None, offset=None)
    with pytest.raises(SceneRejectedError, match="some bands declare"):
        find_scaling(item, {**assets, "B04": undeclared.assets[0]}, declared=None)


@pytest.mark.parametrize(
    ("catalog", "applied", "valid_offset"), [(EARTH_SEARCH, False, 0.0), (PLANETARY_COMPUTER, True, -1000.0)]
)
def test_wrong_offset_flag_is_detected_and_can_be_overridden(
    scene_of: Callable[[str], Path], catalog: str, applied: bool, valid_offset: float
) -> None:
    folder = scene_of(catalog)
    first = read_one(folder)
    change(folder, lambda item: item["properties"].update({"earthsearch:boa_offset_applied": applied}))
    error = read_error(folder)
    assert error.reason == Reason.OFFSET_CONTRADICTION
    assert f"offset: {valid_offset:g}" in error.fix
    second = read_one(folder, offset=valid_offset)
    assert second.properties["offset_source"] == "config"
    np.testing.assert_array_equal(second.pixels, first.pixels)
    assert (read_one(folder, check_offset=False).pixels != first.pixels).any()


def test_pixels_of_another_scale_are_converted_to_the_standard_scale(scene_of: Callable[[str], Path]) -> None:
    folder = scene_of(COLLECTION_1)
    first = read_one(folder, bands=["B04"])

    def finer(item: dict[str, Any]) -> None:
        item["assets"]["red"] |= {"raster:scale": 5e-5, "raster:offset": -0.05}

    change(folder, finer)
    second = read_one(folder, bands=["B04"])
    np.testing.assert_array_equal(second.pixels, np.rint(first.pixels / 2))


def test_file_tags_that_contradict_the_item_are_rejected(scene_of: Callable[[str], Path]) -> None:
    folder = scene_of(COLLECTION_1)  # offset -0.1
    settings = {"bands": ["B04"], "checksum": "skip"}
    first = read_one(folder, **settings)
    for offset, name in ((-0.1, "red"), (0.0, "B04"), (-0.1, "B08")):
        with rasterio.open(band_file(folder, "B04"), "r+", IGNORE_COG_LAYOUT_BREAK="YES") as raster:
            raster.scales, raster.offsets, raster.descriptions = [1e-4], [offset], [name]
        if (offset, name) == (-0.1, "red"):
            np.testing.assert_array_equal(read_one(folder, **settings).pixels, first.pixels)
        else:
            assert read_error(folder, **settings).reason == Reason.TAGS_CONTRADICTION
            assert (name == "B04") == isinstance(read_all(folder, **settings, offset=-1000.0)[0], Scene)


@pytest.mark.parametrize("cut", [True, False])
def test_file_with_wrong_size_or_checksum_is_rejected(scene_of: Callable[[str], Path], cut: bool) -> None:
    folder = scene_of(COLLECTION_1)
    path = band_file(folder, "SCL")
    content = path.read_bytes()
    path.write_bytes(content[:-1] if cut else content.replace(b"SCL", b"SCM", 1))  # a name in the file, not pixels
    error = read_error(folder)
    assert error.reason == Reason.CHECKSUM_MISMATCH
    assert ("file:size" if cut else "sha256") in error.got + error.expected
    if not cut:
        read_one(folder, checksum="skip")


def test_asset_paths_can_be_absolute_but_not_outside_the_folder(
    scene_of: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = scene_of(EARTH_SEARCH)
    path = band_file(folder, "B04")
    for href in (str(path), f"file://{path}"):
        change(folder, lambda item, href=href: item["assets"]["red"].update(href=href))  # type: ignore[misc]
        read_one(folder)
    external = tmp_path / "outside.tif"
    shutil.copy(path, external)
    for href in (str(external), "../../outside.tif", f"file://{external}"):
        change(folder, lambda item, href=href: item["assets"]["red"].update(href=href))  # type: ignore[misc]
        assert "a path that leads to" in read_error(folder).got
    path.unlink()
    path.symlink_to(external)
    change(folder, lambda item: item["assets"]["red"].update(href=f"./{path.name}"))
    assert "a path that leads to" in read_error(folder).got


@pytest.mark.parametrize("href", ["https://user:pass@host.example/a/B04.tif?sig=secret", "s3://bucket/B04.tif"])
def test_remote_assets_are_rejected_without_exposing_secrets(scene_of: Callable[[str], Path], href: str) -> None:
    folder = scene_of(EARTH_SEARCH)
    change(folder, lambda item: item["assets"]["red"].update(href=href))
    error = read_error(folder)
    assert error.reason == Reason.INCOMPLETE
    assert "dithc fetch" in error.fix
    assert not {"secret", "pass"} & set(f"{error}".replace("=", " ").replace(":", " ").replace("@", " ").split())


def test_missing_band_is_reported_and_available_bands_can_be_read(scene_of: Callable[[str], Path]) -> None:
    folder = scene_of(PLANETARY_COMPUTER)
    band_file(folder, "B05").unlink()
    assert read_error(folder).reason == Reason.INCOMPLETE
    change(folder, lambda item: item["assets"].pop("B05"))
    error = read_error(folder)
    assert error.reason == Reason.MISSING_BAND
    assert "B05 at 10 m" in error.got
    assert read_one(folder, bands=["B11", "B02"]).bands == ["B11", "B02"]
    assert "B10" in read_error(folder, bands=["B10", "B02"]).got


def test_clouds_are_masked_by_scl_probability_and_user_mask(scene_of: Callable[[str], Path]) -> None:
    folder = scene_of(PLANETARY_COMPUTER)
    classes, info = read_raster(band_file(folder, "SCL"))
    classes[:] = 4
    classes[0, :10], classes[0, 20:22] = 9, 0
    grid = {"transform": info.transform, "epsg": info.epsg}
    write_geotiff(band_file(folder, "SCL"), classes, **grid)
    mask = read_one(folder).mask
    assert (mask[:20] == Mask.CLOUD).all()
    assert (mask[40:44] == Mask.INVALID).all()
    assert (mask[44:] == Mask.VALID).all()
    assert not (read_one(folder, clouds={"scl_classes": [3]}).mask == Mask.CLOUD).any()
    assert read_error(folder, clouds={"min_cloud_probability": 40}).reason == Reason.MISSING_BAND
    percent = np.zeros_like(classes)
    percent[0, -5:] = 40
    write_geotiff(item_file(folder).with_name("CLD.tif"), percent, **grid)
    change(folder, lambda item: item["assets"].update(cloud={"href": "./CLD.tif", "gsd": 20}))
    assert (read_one(folder, clouds={"min_cloud_probability": 40}).mask[-10:] == Mask.CLOUD).all()
    user_mask = np.zeros((96, 96), np.uint8)
    user_mask[50] = 1
    np.save(item_file(folder).with_name(f"{item_file(folder).stem}_mask.npy"), user_mask)
    assert (read_one(folder, clouds={"mask": {}}).mask[50] == Mask.CLOUD).all()


def test_other_json_documents_are_skipped_and_broken_items_rejected(scene_of: Callable[[str], Path]) -> None:
    folder = scene_of(EARTH_SEARCH)
    (folder / "collection.json").write_text('{"type": "Collection", "stac_version": "1.0.0"}')
    (folder / "notes.json").write_text('{"of": "mine"}')
    read_one(folder)
    (folder / "all.json").write_text(
        json.dumps({"type": "FeatureCollection", "features": [_read_item(item_file(folder))]})
    )
    (folder / "cut.json").write_text(item_file(folder).read_text()[:10])
    found = read_all(folder)
    assert [type(one) for one in found].count(Scene) == 1
    assert {one.error.reason for one in found if isinstance(one, Rejection)} == {Reason.READ_ERROR}
    assert len(found) == 3


def test_level_1c_has_13_bands(tmp_path: Path) -> None:
    keys = ["coastal", "blue", "green", "red", "rededge1", "rededge2", "rededge3"]
    keys += ["nir", "nir08", "nir09", "cirrus", "swir16", "swir22"]
    assets = {}
    for number, key in enumerate(keys):
        gsd = 60 if key in ("coastal", "nir09", "cirrus") else 10 if key in ("blue", "green", "red", "nir") else 20
        pixels = np.full((1, 240 // gsd, 240 // gsd), 1100 + number, np.uint16)
        grid = {"transform": north_up(left=300000, top=4600020, gsd=gsd), "epsg": 32632}
        write_geotiff(tmp_path / f"{key}.tif", pixels, **grid)
        assets[key] = {"href": f"{key}.tif"}
    item = {"type": "Feature", "stac_version": "1.1.0", "id": "S2B_T32TLL_L1C", "collection": "sentinel-2-l1c"}
    item |= {"properties": {"s2:processing_baseline": "05.09", "s2:product_type": "S2MSI1C"}, "assets": assets}
    (tmp_path / "item.json").write_text(json.dumps(item))
    scene = read_one(tmp_path)
    assert scene.pixels.shape == (13, 24, 24)
    for number, plane in enumerate(scene.pixels):
        assert (plane == 100 + number).all()


def test_item_assets_are_ignored_and_other_files_are_counted(scene_of: Callable[[str], Path]) -> None:
    folder = scene_of(EARTH_SEARCH)
    names = {path.name for path in folder.rglob("*.tif")}
    system_files.add_system_files(folder)
    system_files.touch(folder, "extra.tif", "x/preview.heic")
    (folder / "collection.json").write_text("{}")
    scenes = read_scenes(datasets.Sentinel2StacSource(kind="sentinel2-stac", path="x", bands=["B02", "B03"]), folder)
    assert len(names) > 3
    assert len(scenes) == 1
    scenes.inspect(0)
    assert scenes.left_out() == {".heic": 1, ".tif": 1}
