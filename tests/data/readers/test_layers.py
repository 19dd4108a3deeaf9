"""Layers: every value equals rasterio, xarray or a closed form at the place and time of the scene."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyproj
import pytest
import rasterio
import xarray as xr
from pydantic import ValidationError

from dithc.config import datasets
from dithc.core.logging import UserError
from dithc.data import ingest_scenes
from dithc.data.raster import write_geotiff
from dithc.data.readers import layers, read_scenes
from dithc.data.scene import Mask, Reason, Rejection, Scene
from dithc.data.scenes import stacks
from tests.inputs.netcdf_fields import write_cordex

RADAR: dict[str, Any] = {"kind": "geotiff", "bands": ["VV"], "units": "dB"}
LEFT, TOP, SIDE = 500_000.0, 5_000_000.0, 40  # a scene of 40 x 40 pixels of 10 m in zone 33 north


def dataset(source: dict[str, Any], **added: dict[str, Any]) -> datasets.DatasetConfig:
    rendering = {"bands": [source["bands"][0]] * 3, "low": 0, "high": 1}
    content = {"title": "x", "codec": "n", "source": source, "layers": added, "rendering": rendering}
    return datasets.DatasetConfig.model_validate(content)


def read(settings: datasets.DatasetConfig) -> list[Scene | Rejection]:
    return list(read_scenes(settings.source, Path(settings.source.path or ""), settings.layers))


def physical(scene: Scene) -> np.ndarray:
    scale, offset = (np.array(value)[:, None, None] for value in (scene.scale, scene.offset))
    return scene.pixels * scale + offset


def write_scene(folder: Path, *, name: str = "a", dtype: str = "uint16", **grid: Any) -> dict[str, Any]:
    """Write a scene of one band, and return the source."""
    folder.mkdir(exist_ok=True)
    pixels = np.random.default_rng(0).integers(1, 200, (1, SIDE, SIDE)).astype(dtype)
    write_geotiff(
        folder / f"{name}.tif", pixels, **{"transform": (10.0, 0.0, LEFT, 0.0, -10.0, TOP), "epsg": 32633} | grid
    )
    units = "byte" if dtype == "uint8" else "dn"
    return {"kind": "geotiff", "path": str(folder), "bands": ["B"], "units": units}


def write_layer(path: Path, values: np.ndarray, *, left: float = LEFT, top: float = TOP, **options: Any) -> None:
    """Write a layer of pixels of 10 m on the grid of the scene, or at another place."""
    path.parent.mkdir(exist_ok=True)
    grid = {"transform": (10.0, 0.0, left, 0.0, -10.0, top), "epsg": 32633} | options
    write_geotiff(path, values[None], **grid)


def linear(longitudes: np.ndarray, latitudes: np.ndarray) -> np.ndarray:
    return 900 * (longitudes - 15) - 700 * (latitudes - 45)


def test_layers_of_real_places_equal_rasterio_in_every_pixel(real_data: Callable[[str], Path]) -> None:
    root = real_data("s2_l1c_l2a_pairs")
    bands = ["B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B11", "B12"]
    folders = {"S1RTC": ["VV", "VH"], "DEM": ["DEM"], "LULC": ["cover"]}
    added = {
        name.lower(): {"kind": "geotiff", "path": str(root / name), "bands": names, "units": unit, "match": match}
        for (name, names), unit, match in zip(
            folders.items(), ("dB", "m", "class"), ("name", "place", "place"), strict=True
        )
    }
    added["lulc"]["resampling"] = "nearest"
    source = {"kind": "sentinel2-array", "path": str(root / "S2L2A"), "bands": bands, "units": "dn", "offset": 0}
    scenes = read(dataset(source, **added))
    assert len(scenes) == 2
    for scene in scenes:
        assert isinstance(scene, Scene)
        truth = []
        for name in ("S2L2A", *folders):
            with rasterio.open(root / name / scene.path.name) as file:
                truth.append(file.read().astype(np.float64))
        truth[0] /= 10_000
        errors = np.abs(physical(scene) - np.concatenate(truth)).max(axis=(1, 2))  # (16,)
        assert (errors <= [1e-12] * 12 + [step / 2 for step in scene.scale[12:]]).all()
        assert (errors[14:] == 0).all()  # integers
        assert scene.mask.all()
        assert scene.bands == [*bands, "VV", "VH", "DEM", "cover"]
        assert scene.units.split(", ") == ["reflectance"] * 12 + ["dB", "dB", "m", "class"]


@pytest.mark.parametrize("dtype", ["uint16", "uint8"])
def test_a_mosaic_in_degrees_has_the_value_at_the_place_of_each_pixel(tmp_path: Path, dtype: str) -> None:
    source = write_scene(tmp_path / "in", dtype=dtype)
    step = 2e-4  # degrees
    for name, left, width in (("west", 14.999, 20), ("east", 15.002, 8)):  # they share a column of pixels
        lon, lat = left + step * (np.arange(width) + 0.5), 45.16 - step * (np.arange(60) + 0.5)
        values = linear(*np.meshgrid(lon, lat)).astype(np.float32)
        values[:, -1 if name == "west" else 0] = -9999.0
        grid = {"transform": (step, 0.0, left, 0.0, -step, 45.16), "epsg": 4326, "nodata": -9999.0}
        write_layer(tmp_path / "layer" / f"{name}.tif", values, **grid)
    settings = dataset(source, radar={**RADAR, "path": str(tmp_path / "layer")})
    (scene,) = pickle.loads(pickle.dumps(read_scenes(settings.source, tmp_path / "in", settings.layers)))
    xs, ys = np.meshgrid(LEFT + 10 * (np.arange(SIDE) + 0.5), TOP - 10 * (np.arange(SIDE) + 0.5))
    lon, lat = pyproj.Transformer.from_crs(32633, 4326, always_xy=True).transform(xs, ys)
    covered = lon < 15.002 + step * 7.5
    np.testing.assert_array_equal(scene.mask == Mask.VALID, lon < 15.0036)
    assert scene.pixels.dtype == np.uint16
    inner = covered & (np.abs(lon - 15.0022) > step)  # bilinear weights reproduce linear functions, except at the seam
    errors = np.abs(physical(scene)[1] - linear(lon, lat))
    assert errors[inner].max() <= scene.scale[1] / 2 + 1e-4  # float32 in the file
    assert scene.notes == ("incomplete-radar",)
    assert scene.units == ("byte" if dtype == "uint8" else "dn") + ", dB"


def test_predictors_equal_interpolation_of_xarray_at_the_places_and_times_of_targets(tmp_path: Path) -> None:
    target = write_cordex(tmp_path, days=3, seed=2, size=32)
    predictors = target.parent.parent / "predictors"
    names = ["u_850", "q_700", "z_500"]
    coarse = xr.open_dataset(predictors / "CNRM-CM5_1961-1980.nc", engine="h5netcdf")[names].isel(time=[2, 0]).load()
    coarse.close()
    coarse.to_netcdf(predictors / "CNRM-CM5_1961-1980.nc", engine="h5netcdf")
    coarse.to_netcdf(predictors / "MPI_1961-1980.nc", engine="h5netcdf")
    added = {
        "predictors": {
            "kind": "netcdf",
            "path": str(predictors),
            "exclude": ["Static*"],
            "bands": names,
            "match": "name",
        },
        "orography": {"kind": "netcdf", "path": str(predictors / "Static_fields.nc"), "bands": ["orog"]},
    }
    source = {"kind": "netcdf", "path": str(target.parent), "bands": ["tasmax", "pr"]}
    first, rejected, last = read(dataset(source, **added))
    assert isinstance(rejected, Rejection)  # the second day has no predictors
    assert rejected.error.reason == Reason.MISSING_BAND
    fine = xr.open_dataset(target, engine="h5netcdf")
    orography = xr.open_dataset(predictors / "Static_fields.nc", engine="h5netcdf")["orog"].values
    for scene, day in ((first, 0), (last, 2)):
        assert isinstance(scene, Scene)
        expected = coarse.sel(time=fine.time[day]).interp(lat=fine.lat, lon=fine.lon)
        planes = [*(fine[name].values[day] for name in ("tasmax", "pr")), *(expected[name].values for name in names)]
        errors = np.abs(physical(scene) - np.stack([*planes, orography])[:, ::-1]).max(axis=(1, 2))
        assert (errors <= np.array(scene.scale) * 0.5001).all(), errors / scene.scale
    added["predictors"]["match"] = "place"
    settings = dataset(source, **added)
    ambiguous = next(iter(read_scenes(settings.source, target.parent, settings.layers)))
    assert isinstance(ambiguous, Rejection)
    assert "CNRM-CM5_1961-1980.nc, MPI_1961-1980.nc" in ambiguous.error.got


@pytest.mark.parametrize("west", [0.0, -180.0, 5.0])
def test_global_fields_are_continuous_at_the_antimeridian(tmp_path: Path, west: float) -> None:
    place = {"epsg": 32601, "transform": (500.0, 0.0, 250_000.0, 0.0, -500.0, TOP)}
    source = write_scene(tmp_path / "in", **place)  # from 179.8 degrees east to 179.9 west
    rng, lat, lon = np.random.default_rng(0), np.arange(40.0, 51.0, 2.0), west + 10.0 * np.arange(36)
    field = xr.DataArray(rng.normal(size=(6, 36)), {"lat": lat, "lon": lon}, name="t")
    (tmp_path / "era").mkdir()
    field.to_netcdf(tmp_path / "era/a.nc", engine="h5netcdf")
    (scene,) = read(dataset(source, era={"kind": "netcdf", "path": str(tmp_path / "era"), "bands": ["t"]}))
    assert isinstance(scene, Scene)
    xs, ys = np.meshgrid(250_000.0 + 500 * (np.arange(SIDE) + 0.5), TOP - 500 * (np.arange(SIDE) + 0.5))
    lon, lat = pyproj.Transformer.from_crs(32601, 4326, always_xy=True).transform(xs, ys)
    assert lon.max() > 179
    assert lon.min() < -179
    wide = xr.concat([field.assign_coords(lon=field.lon + turn) for turn in (-360, 0, 360)], "lon")
    expected = wide.interp(lon=(("y", "x"), lon), lat=(("y", "x"), lat)).values
    assert np.abs(physical(scene)[1] - expected).max() <= scene.scale[1] / 2 + 1e-6  # of coordinates


def test_names_select_the_date_and_files_elsewhere_are_not_used(tmp_path: Path) -> None:
    for name in ("S2_1", "S2_10"):
        source = write_scene(tmp_path / "in", name=name)
    ramp = np.arange(SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE)
    write_layer(tmp_path / "radar/S1_near_S2_1.tif", ramp)
    write_layer(tmp_path / "radar/S1_near_S2_10.tif", ramp + 7)
    by_name = {"radar": {**RADAR, "path": str(tmp_path / "radar"), "match": "name", "scale": 2.0, "offset": -1.0}}
    for scene, added in zip(read(dataset(source, **by_name)), (0, 7), strict=True):
        assert isinstance(scene, Scene)
        assert np.abs(physical(scene)[1] - (2 * (ramp + added) - 1)).max() <= scene.scale[1] / 2
    write_layer(tmp_path / "far/a.tif", ramp, left=LEFT + 900)
    assert [scene.error.reason for scene in read(dataset(source, radar={**RADAR, "path": str(tmp_path / "far")}))] == [
        Reason.MISSING_BAND
    ] * 2


def test_a_changed_layer_rereads_scenes_and_changes_their_hashes(tmp_path: Path) -> None:
    source = write_scene(tmp_path / "in")
    write_scene(tmp_path / "in", name="b")
    values = np.arange(SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE)
    settings = dataset(source, radar={**RADAR, "path": str(tmp_path / "radar")})

    def ingest(values: np.ndarray) -> bytes:
        write_layer(tmp_path / "radar/a.tif", values)
        ingest_scenes(settings, tmp_path / "in", out=tmp_path / "out")
        assert b"incomplete" not in (tmp_path / "out/scenes.json").read_bytes()
        return b"".join(path.read_bytes() for path in sorted((tmp_path / "out").glob("s*")))

    first = ingest(values)
    changed = ingest(values[::-1])  # the same range, and the same scale
    assert changed != first
    assert ingest(values) == first


def test_a_scene_that_fills_a_stack_is_written_in_place_with_its_layers(
    safe_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"kind": "sentinel2", "path": str(safe_folder), "bands": ["B02", "B05"]}
    (scene,) = read_scenes(datasets.Sentinel2Source.model_validate(source), safe_folder)
    assert isinstance(scene, Scene)
    values = np.random.default_rng(0).normal(-12, 3, scene.mask.shape).astype(np.float32)
    write_layer(tmp_path / "radar/a.tif", values, transform=scene.place.transform, epsg=scene.place.epsg)
    settings = dataset(source, radar={**RADAR, "path": str(tmp_path / "radar")})
    stacked = []
    for name, shard_bytes in (("memory", 1 << 30), ("file", 50_000)):
        monkeypatch.setattr(stacks, "SHARD_BYTES", shard_bytes)
        monkeypatch.setattr(layers, "BLOCK_VALUES", shard_bytes // 100)
        ingest_scenes(settings, safe_folder, out=tmp_path / name)
        stacked.append(np.load(tmp_path / name / "stack-00000.npy")[0])  # (3, 96, 96)
    np.testing.assert_array_equal(*stacked)
    np.testing.assert_array_equal(stacked[0][:2], scene.pixels)
    scenes = read_scenes(settings.source, safe_folder, settings.layers)
    (scales, offsets), _ = scenes.shared[1]
    assert np.abs(stacked[0][2] * scales[0] + offsets[0] - values).max() <= scales[0] / 2


def test_unusable_layers_are_errors_before_scenes_are_read(tmp_path: Path) -> None:
    source = write_scene(tmp_path / "in")
    radar = {**RADAR, "path": str(tmp_path / "radar")}
    with pytest.raises(UserError, match="does not exist"):
        read(dataset(source, radar=radar))
    write_layer(tmp_path / "radar/a.tif", np.ones((SIDE, SIDE), np.float32))
    with pytest.raises(UserError, match=r"layer 'radar'.*number of bands"):
        read(dataset(source, radar={**radar, "bands": ["VV", "VH"]}))
    (tmp_path / "radar/b.tif").write_bytes((tmp_path / "radar/a.tif").read_bytes()[:-900])
    with pytest.raises(UserError, match=r"layer 'radar'.*b\.tif"):
        read(dataset(source, radar=radar))
    with pytest.raises(ValidationError, match="name the band B twice"):
        dataset(source, radar={**radar, "bands": ["B"]})
    with pytest.raises(ValidationError, match="one unit for all bands"):
        dataset(source, radar={**radar, "units": "dB, m"})
