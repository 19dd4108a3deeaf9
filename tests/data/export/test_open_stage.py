"""Opened stages have the values, names, labels and coordinates of the stage, and read only indexed files."""

import copy
import json
import multiprocessing
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

import dithc
from dithc.core.artifacts import Manifest
from dithc.core.logging import UserError
from tests.data.export.conftest import BANDS, GSD, IMAGES, LEFT, OFFSET, SIDE, SIZE, TOP, digital_numbers
from tests.data.export.test_export_images import physical


def reflectance(seed: int) -> np.ndarray:
    dn = digital_numbers(seed).astype(float)
    return np.where(dn == 0, 0.0, (dn + OFFSET) * 1e-4)


def test_opened_samples_equal_the_inverse_scaling(samples, tiles):
    opened = dithc.open(samples)
    assert (opened.dims, opened.shape) == (("image", "band", "y", "x"), (IMAGES, 3, SIZE, SIZE))
    assert opened.band.values.tolist() == BANDS
    assert opened.label.values.tolist() == [0] * IMAGES
    expected = physical(tiles)
    np.testing.assert_allclose(opened.values, expected, rtol=2**-21, atol=2**-22)
    attributes = {"stage": "sample", "name": "some", "units": "reflectance", "scale": 1e-4}
    attributes |= {"seed": 11, "step": 7, "gsd_m": 10.0}
    assert {name: opened.attrs[name] for name in attributes} == attributes
    assert opened.attrs["digest"] == Manifest.read(samples).digest
    assert "classes" not in opened.attrs  # labels of clusters, or of the only class


@pytest.mark.parametrize(
    "key",
    [
        (65,),
        (slice(60, 70, 3), slice(None), 4),
        ([69, 0, 64, 64], 1),
        (slice(None, None, -7), slice(1, 3), slice(2, 9, 2), [0, 15, 3]),
        (slice(0, 0),),
        (-1, -1, -1, -1),
    ],
)
def test_indexed_part_equals_the_part_of_the_loaded_array(samples, key):
    opened = dithc.open(samples)
    part = opened[key].values
    numpy_key = [np.arange(size)[one] for size, one in zip(opened.shape, (*key, *[slice(None)] * 4), strict=False)]
    whole = opened.values[np.ix_(*map(np.atleast_1d, numpy_key))]
    np.testing.assert_array_equal(part, whole.reshape(part.shape))


@pytest.mark.parametrize("stage", ["scenes", "tiles", "samples"])
@pytest.mark.parametrize("selection", [slice(0, 0), np.zeros(0, int), "mask"])
def test_empty_selections_have_no_images(stage, selection, request):
    opened = dithc.open(request.getfixturevalue(stage))
    part = opened[np.zeros(len(opened), bool) if isinstance(selection, str) else selection, 1, 2:]
    shape = (0, opened.shape[2] - 2, opened.shape[3])
    assert (part.values.shape, part.values.dtype) == (shape, np.float32)
    if stage == "scenes":
        assert part.mask.values.shape == (0, *shape[1:])


def test_only_the_indexed_shard_is_read(results, tmp_path):
    root = Path(shutil.copytree(results, tmp_path / "copy"))
    shard = root / "samples/some/shard-00001.npy"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    opened = dithc.open(root / "samples/some/manifest.json")
    assert np.isfinite(opened[:64].values).all()
    with pytest.raises(UserError, match="was changed after it was written"):
        opened[64].load()


def test_opened_tiles_and_scenes_have_matching_coordinates(tiles, scenes):
    whole, cut = dithc.open(scenes), dithc.open(tiles)
    assert (whole.shape, cut.shape) == ((2, 3, SIDE, SIDE), (8, 3, SIZE, SIZE))
    for number in range(2):
        np.testing.assert_allclose(whole[number].values, reflectance(number), atol=1e-6)
        np.testing.assert_array_equal(whole.mask[number].values == 0, digital_numbers(number)[0] == 0)
    assert cut.crs.values.tolist() == ["EPSG:32650"] * 8
    assert set(cut.split.values) == {"train"}
    assert cut.tile_id.values[6] == "scene1.tif/00016_00000"
    one, scene = dithc.open(tiles, image=6), dithc.open(scenes, image=1)
    assert one.dims == ("band", "y", "x")
    assert (float(one.x[0]), float(one.y[0])) == (LEFT + 1000 + GSD / 2, TOP - GSD * SIZE - GSD / 2)
    located = scene.sel(x=one.x, y=one.y)  # by coordinates alone
    np.testing.assert_array_equal(located.values, one.values)


def test_tiles_with_missing_scenes_have_no_georeference(results, tmp_path, capsys):
    shutil.copytree(results / "tiles", tmp_path / "tiles")
    manifest = Manifest.read(tmp_path / "tiles/set/manifest.json")
    manifest.inputs.update(dict.fromkeys(list(manifest.inputs), "0" * 12))
    manifest.write(tmp_path / "tiles/set/manifest.json")
    opened = dithc.open(tmp_path / "tiles/set/manifest.json")
    assert "crs" not in opened.coords
    assert opened.shape[0] == 8


def test_scenes_of_several_shapes_require_an_image_index(scenes, tmp_path):
    folder = Path(shutil.copytree(scenes.parent, tmp_path / "set"))
    (folder / "manifest.json").unlink()
    table = pyarrow.parquet.read_table(folder / "scenes.parquet").to_pylist()
    table[1] |= {"stack": 1, "row": 0, "height": 20}
    pixels, mask = np.load(folder / "stack-00000.npy"), np.load(folder / "stack-00000.mask.npy")
    index = json.loads((folder / "scenes.json").read_text())
    index["stacks"] = []
    for number, height in enumerate((SIDE, 20)):
        names = {"file": f"stack-0000{number}.npy", "mask": f"stack-0000{number}.mask.npy"}
        np.save(folder / names["file"], pixels[number : number + 1, :, :height])
        np.save(folder / names["mask"], mask[number : number + 1, :height])
        index["stacks"].append(names | {"count": 1})
    (folder / "scenes.json").write_text(json.dumps(index))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), folder / "scenes.parquet")
    Manifest(stage="ingest", name="set", spec={}).write(folder / "manifest.json")
    with pytest.raises(UserError, match="2 scenes of 2 shapes"):
        dithc.open(folder / "manifest.json")
    np.testing.assert_allclose(dithc.open(folder / "manifest.json", image=1).values, reflectance(1)[:, :20], atol=1e-6)


@pytest.mark.parametrize("stage", ["scenes", "tiles", "samples"])
@pytest.mark.parametrize("image", [-1, 70])
def test_image_index_out_of_range_is_rejected(request, stage, image):
    with pytest.raises(UserError, match=f"has no image {image}"):
        dithc.open(request.getfixturevalue(stage), image=image)


@pytest.fixture
def latents(tiles, tmp_path):
    from dithc.config import codecs
    from dithc.data import Tiles
    from dithc.latents import Latents, open_codec

    data = Tiles(tiles.parent)
    codec = open_codec(codecs.PixelCodecConfig(kind="pixel"), info=data.info)
    Latents.encode(data, codec, tmp_path / "latents", tiles_digest="any")
    Manifest(stage="latents", name="set", spec={}).write(tmp_path / "latents/manifest.json")
    return tmp_path / "latents/manifest.json"


@pytest.fixture
def features(tmp_path):
    folder = tmp_path / "features"
    folder.mkdir()
    rows = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    for shard, part in enumerate((rows[:4], rows[4:])):
        np.save(folder / f"shard-0000{shard}.npy", part)
    numbers = {"extractor": "w", "sha256": "aa", "resize": "clean", "comparable_to_published": False}
    files = Manifest.entries(folder, sorted(folder.glob("shard-*")))
    Manifest(stage="features", name="f", spec={}, summary=numbers, files=files).write(folder / "manifest.json")
    return folder / "manifest.json"


def test_opened_latents_have_a_moment_dimension_and_match_the_tiles(latents, tiles):
    from dithc.data import Tiles

    data = Tiles(tiles.parent)
    opened = dithc.open(latents)
    assert (opened.dims, opened.shape) == (("image", "moment", "channel", "y", "x"), (8, 1, 3, SIZE, SIZE))
    np.testing.assert_array_equal(opened.sel(moment="mean").values, data.scaled(data.rows("all")).astype(np.float16))
    assert opened.split.values.tolist() == ["train"] * 8


def test_opened_features_contain_one_row_per_image(features):
    opened = dithc.open(str(features))
    rows = [np.load(features.parent / f"shard-0000{shard}.npy") for shard in range(2)]
    np.testing.assert_array_equal(opened.values, np.concatenate(rows))
    assert (opened.dims, opened.attrs["resize"]) == (("image", "feature"), "clean")


STAGES = ("scenes", "tiles", "latents", "samples", "features")
PASSED = {
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
    "copy": copy.deepcopy,
    "xarray": lambda one: one.copy(deep=True),
}


@pytest.mark.parametrize("passed", PASSED.values(), ids=PASSED)
@pytest.mark.parametrize(("stage", "image"), [*((stage, None) for stage in STAGES), ("scenes", 1)])
def test_copied_arrays_contain_no_pixels_and_load_from_any_folder(request, stage, image, passed, tmp_path, monkeypatch):
    manifest = request.getfixturevalue(stage)
    monkeypatch.chdir(manifest.parent.parent)
    opened = dithc.open(manifest.relative_to(Path.cwd()), image=image)
    part = opened[..., :3]
    monkeypatch.chdir(tmp_path)
    again = passed(part)
    assert len(pickle.dumps(again)) < 20_000 + 400 * opened.sizes.get("image", 1)
    assert "numpy" not in type(again.variable._data).__module__
    np.testing.assert_array_equal(again.values, opened.values[..., :3])
    assert again.identical(part)
    assert len(pickle.dumps(opened)) < 20_000 + 400 * opened.sizes.get("image", 1)  # also after a read


@pytest.mark.slow
def test_spawned_processes_read_opened_arrays(tiles):
    opened = dithc.open(tiles)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(np.asarray, opened[3]).result().tolist() == opened[3].values.tolist()


@pytest.mark.parametrize("change", ["removed", "replaced", "a shard"])
@pytest.mark.parametrize("stage", STAGES)
def test_files_changed_after_opening_raise_a_four_line_error(request, stage, change, tmp_path):
    source = request.getfixturevalue(stage)
    for folder in ("tiles", "scenes"):
        if (source.parents[2] / folder).is_dir():
            shutil.copytree(source.parents[2] / folder, tmp_path / "copy" / folder)
    manifest = tmp_path / "copy" / source.parents[1].name / source.parent.name / source.name
    shutil.copytree(source.parent, manifest.parent, dirs_exist_ok=True)
    sent = pickle.dumps(dithc.open(manifest))
    if change == "removed":
        manifest.unlink()
    elif change == "replaced":
        content = Manifest.read(manifest)
        content.spec["other"] = 1
        content.write(manifest)
    else:
        for path in manifest.parent.glob("*.npy"):
            path.unlink()
    with pytest.raises(UserError) as raised:
        pickle.loads(sent).load()
    assert [line.split(":")[0].strip() for line in str(raised.value).splitlines()][1:] == ["got", "expected", "fix"]
    assert str(manifest.parent) in str(raised.value)


def test_stage_without_arrays_is_rejected(results):
    with pytest.raises(UserError, match="has no arrays"):
        dithc.open(results / "runs/one/step_0000007.json")


def test_import_dithc_does_not_import_array_libraries():
    code = "import sys, dithc; sys.exit(bool({'xarray', 'rasterio', 'torch', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
