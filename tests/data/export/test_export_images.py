"""Exported images contain the inverse of the scaling in the integers of their source, with tags and places."""

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import rasterio

from dithc.cli import main
from dithc.core.artifacts import Manifest, outputs
from dithc.core.logging import UserError
from dithc.data import products
from dithc.data.export import GeneratedImages, export_images
from tests.data.export.conftest import (
    BANDS,
    GSD,
    IMAGES,
    LEFT,
    OFFSET,
    SIZE,
    TOP,
    digital_numbers,
    scaled_images,
    write_samples,
)

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


def physical(tiles: Path) -> np.ndarray:
    """Return the scaled images as reflectance in float64. -1 is the `low` of each band, +1 its `high`."""
    statistics = json.loads((tiles.parent / "dataset.json").read_text())["statistics"]
    low, high = (np.array([band[end] for band in statistics])[:, None, None] for end in ("low", "high"))
    return (scaled_images().astype(np.float64) + 1) / 2 * (high - low) + low


def test_generated_images_match_inverse_scaling_within_half_a_level(samples, tiles, tmp_path):
    numbers = export_images(samples, stage="sample", out=tmp_path / "out")
    files = sorted((tmp_path / "out").glob("*.tif"))
    assert [file.name for file in files] == [f"image-{i:06d}.tif" for i in range(IMAGES)]
    for file, expected in zip(files, physical(tiles), strict=True):
        with rasterio.open(file) as source:
            assert (source.dtypes, source.nodata) == (("int16",) * 3, -32768)
            assert (source.scales, source.offsets) == ((1e-4,) * 3, (0.0,) * 3)
            values = source.read().astype(np.float64) * 1e-4
        kept = np.abs(expected) < 3.2767
        # Half a step, and float32's rounding of a value below 4 in the inverse scaling (three operations).
        assert np.abs(values - expected)[kept].max() <= 0.5e-4 + 3 * 4 * 2**-24
        np.testing.assert_array_equal(values[~kept], np.sign(expected[~kept]) * 32767 * 1e-4)
    beyond = (np.abs(physical(tiles)) > 3.2767 + 0.5e-4).sum(axis=(0, 2, 3))
    assert beyond[1] >= 2
    assert list(numbers["clipped"].values()) == beyond.tolist()


def test_exported_files_contain_provenance_tags_and_band_metadata(samples, tmp_path):
    export_images(samples, stage="sample", out=tmp_path / "out", select="65:67")
    manifest = Manifest.read(tmp_path / "out/manifest.json", stage="export")
    assert [entry["path"] for entry in manifest.files] == ["image-000065.tif", "image-000066.tif"]
    assert manifest.verify(tmp_path / "out") == []
    assert (manifest.summary["images"], manifest.summary["first"]) == (2, 65)
    source_manifest = Manifest.read(samples)
    assert list(manifest.inputs.values()) == [source_manifest.digest]
    with rasterio.open(tmp_path / "out/image-000066.tif") as source:
        tags = source.tags()
        assert source.descriptions == tuple(BANDS)
        assert source.units == ("reflectance",) * 3
        assert [source.tags(band, ns="IMAGERY")["CENTRAL_WAVELENGTH_UM"] for band in (1, 3)] == ["0.4927", "0.6646"]
        assert [colour.name for colour in source.colorinterp] == ["blue", "green", "red"]
        assert source.crs is None
        assert source.transform == rasterio.Affine.identity()
        assert source.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert source.overviews(1) == []
    expected = {"EVALUATION": "some", "SEED": "11", "INDEX": "66", "LABEL": "0", "STEP": "7"}
    expected |= {"CHECKPOINT_TIME": "final"}
    expected |= {"CODEC": "pixel-000000000000", "GSD_M": "10.0", "MANIFEST": source_manifest.digest}
    expected |= {"CHECKPOINT": Manifest(stage="train", name="one", spec={"run": 1}).digest}
    assert {name: tags.get(f"DITHC_{name}") for name in expected} == expected
    assert tags["DITHC_VERSION"] in tags["TIFFTAG_SOFTWARE"]


def test_scene_is_exported_as_one_tiled_geotiff(scene_samples, tmp_path, monkeypatch):
    monkeypatch.setattr("dithc.data.export.images.VALUES_PER_READ", 3 * 1100 * 37)  # 37 rows at once
    numbers = export_images(scene_samples, stage="sample", out=tmp_path / "out")
    path = tmp_path / "out/image-000000.tif"
    assert {one.name for one in (tmp_path / "out").glob("[!.]*")} == {path.name, "manifest.json"}  # no sidecar file
    generated = GeneratedImages(scene_samples)
    expected, clipped = generated.bands.stored(generated.physical(np.array([0])))
    assert list(numbers["clipped"].values()) == clipped.tolist()
    assert clipped[1] == 3
    with rasterio.open(path) as source:
        assert np.array_equal(source.read(), expected[0])
        assert source.block_shapes == [(512, 512)] * 3
        assert source.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert source.overviews(1) == [2, 4]
        assert source.transform == rasterio.Affine(10, 0, 0, 0, -10, 0)
        assert "nowhere" in source.crs.to_wkt()
        assert source.crs.to_epsg() is None
        tags = source.tags()
    wanted_tags = {"SEED": "11", "INDEX": "0", "IMAGE_SIZE": "1100", "SEAM_RATIO": "1.01", "GSD_M": "10.0"}
    assert {name: tags[f"DITHC_{name}"] for name in wanted_tags} == wanted_tags
    assert json.loads(tags["DITHC_WINDOWS"]) == {"overlap": 0.25, "random_shift": False}


def test_scene_for_a_small_disk_is_rejected_before_writing(scene_samples, tmp_path, monkeypatch):
    module = importlib.import_module("dithc.data.export.export_images")  # the package exports the function
    monkeypatch.setattr(module, "disk_usage", lambda path: SimpleNamespace(free=10_000_000))
    with pytest.raises(UserError, match="larger than the disk") as error:
        export_images(scene_samples, stage="sample", out=tmp_path / "out")
    assert "0.01 GB free" in str(error.value)
    assert not (tmp_path / "out").exists()


def test_exported_tiles_equal_source_pixels_and_georeference(tiles, tmp_path):
    numbers = export_images(tiles, stage="tiles", out=tmp_path / "out")
    assert numbers["images"] == 8
    assert sum(numbers["clipped"].values()) == 0
    for number, file in enumerate(sorted((tmp_path / "out").glob("*.tif"))):
        scene, place = divmod(number, 4)
        y, x = (side * SIZE for side in divmod(place, 2))
        dn = digital_numbers(scene)[:, y : y + SIZE, x : x + SIZE]
        with rasterio.open(file) as source:
            read = source.read(masked=True)
            assert source.crs.to_epsg() == 32650
            left, top = LEFT + 1000 * scene + GSD * x, TOP - GSD * y
            assert source.transform[:6] == (GSD, 0.0, left, 0.0, -GSD, top)
            assert source.tags()["DITHC_TILE_ID"] == f"scene{scene}.tif/{y:05d}_{x:05d}"
        np.testing.assert_array_equal(np.ma.getmaskarray(read), dn == 0)
        np.testing.assert_array_equal(read.data[dn != 0], dn[dn != 0].astype(int) + OFFSET)


@pytest.mark.parametrize("codec", ["sd-vae-123456789abc", "diffusers-display-123456789abc"])
def test_images_of_display_codecs_are_uint8_with_the_display_scale(results, tmp_path, codec):
    root = Path(shutil.copytree(results, tmp_path / "copy"))  # inputs are found in the copied folder
    path = write_samples(root, root / "samples/sd/manifest.json", codec=codec)
    export_images(path, stage="sample", out=tmp_path / "out", select="3:5")
    for image in (3, 4):
        with rasterio.open(tmp_path / f"out/image-{image:06d}.tif") as source:
            assert (source.dtypes[0], source.nodata) == ("uint8", None)
            assert source.descriptions == ("B04", "B03", "B02")
            np.testing.assert_allclose(source.scales, [0.3 / 255, 0.4 / 255, 0.5 / 255], rtol=1e-12)
            levels = source.read().astype(np.float64)
        expected = np.clip((scaled_images()[image].astype(np.float64) + 1) * 127.5, 0, 255)
        assert np.abs(levels - expected).max() <= 0.5 + 1e-3  # of a level; float32 carries 255 to 2^-16


def bands_of(dtype: str, *names: str) -> products.Bands:
    return products.Bands.of({"bands": names, "units": "dn", "dtype": dtype, "scale": 1.0, "offset": 0.0})


def test_uint8_image_without_a_free_nodata_value_has_an_internal_mask(tmp_path):
    pixels, valid = np.arange(256, dtype=np.uint8).reshape(1, 16, 16), np.arange(256).reshape(16, 16) % 3 > 0
    image = products.Image(name="a", pixels=pixels, tags={}, valid=valid)
    with rasterio.open(products.write_geotiff(tmp_path, image, bands=bands_of("uint8", "B"))) as source:
        np.testing.assert_array_equal(source.read(), pixels)
        np.testing.assert_array_equal(source.dataset_mask() > 0, valid)
    assert [file.name for file in tmp_path.iterdir()] == ["a.tif"]  # the mask is inside


@pytest.mark.parametrize(("side", "overviews"), [(512, []), (520, [2])])
def test_only_images_larger_than_a_block_have_overviews(tmp_path, side, overviews):
    pixels = np.random.default_rng(0).integers(0, 1024, (1, side, side)).astype(np.uint16)
    image = products.Image(name="a", pixels=pixels, tags={})
    with rasterio.open(products.write_geotiff(tmp_path, image, bands=bands_of("uint16", "B"))) as source:
        assert (source.overviews(1), source.block_shapes) == (overviews, [(512, 512)])


def test_stored_values_never_equal_the_nodata_value():
    values = np.array([[0.49, 65534.4, 65534.6, -0.6], [1.0, 2.0, 3.0, 1e30]]).reshape(1, 2, 1, 4)
    stored, clipped = bands_of("uint16", "a", "b").stored(values)
    assert stored.ravel().tolist() == [0, 65534, 65534, 0, 1, 2, 3, 65534]
    assert clipped.tolist() == [2, 1]


@pytest.mark.parametrize("select", ["", "5", "3:3", "5:2", "0:71", "-3:", "a:b", "0:3:2"])
def test_invalid_or_empty_selection_is_rejected(samples, tmp_path, select):
    with pytest.raises(UserError, match="--select selects no images"):
        export_images(samples, stage="sample", out=tmp_path / "out", select=select)
    assert not (tmp_path / "out").exists()


def test_output_folder_with_user_files_is_rejected_and_unchanged(samples, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.tif").write_text("mine")
    with pytest.raises(UserError, match=r"mine\.tif"):
        export_images(samples, stage="sample", out=tmp_path / "out", select="0:2")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["mine.tif"]


def test_interrupted_export_preserves_old_files_until_the_rerun(samples, tmp_path, monkeypatch):
    export_images(samples, stage="sample", out=tmp_path / "out", select="0:3")

    def killed(*_: object, **__: object) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dithc.data.products.write_geotiff", killed)
        with pytest.raises(KeyboardInterrupt):
            export_images(samples, stage="sample", out=tmp_path / "out", select="3:5")
    assert len(list((tmp_path / "out").glob("*.tif"))) == 3
    (tmp_path / ".out.tmp.host.1").mkdir()  # left by a killed process
    export_images(samples, stage="sample", out=tmp_path / "out", select="3:5")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out"]
    names = [file.name for file in outputs.files_of(tmp_path / "out")]
    assert names == [".manifest.provenance.json", "image-000003.tif", "image-000004.tif", "manifest.json"]


@pytest.mark.slow
def test_full_disk_is_reported_and_leaves_no_files(samples, tmp_path):
    code = (
        "import resource, sys; from dithc.cli import main; resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500)); "
        f"sys.exit(main(['export', '--samples', {str(samples)!r}, '--out', {str(tmp_path / 'out')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "free space or choose another --out" in done.stderr
    assert [file.name for file in tmp_path.iterdir() if not file.name.endswith(".lease")] == []


def test_samples_without_tiles_of_the_recorded_digest_are_rejected(results, tmp_path):
    root = Path(shutil.copytree(results, tmp_path / "copy"))
    lonely = tmp_path / "elsewhere/some"
    shutil.copytree(root / "samples/some", lonely)
    manifest = Manifest.read(lonely / "manifest.json")
    manifest.inputs.update({path: "0" * 12 for path in manifest.inputs if "tiles" in path})
    manifest.write(lonely / "manifest.json")
    with pytest.raises(UserError, match=r"the tiles of .* were not found"):
        export_images(lonely / "manifest.json", stage="sample", out=tmp_path / "out")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--samples", "m", "--format", "diffusers"], "--format is not for images"),
        (["--checkpoint", "m", "--select", "0:2"], "--select is not for weights"),
        (["--tiles", "m", "--weights", "raw"], "--weights is not for images"),
    ],
)
def test_options_of_weights_and_images_cannot_be_combined(arguments, message, tmp_path, capsys):
    assert main(["export", *arguments, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
