"""NetCDF fields: every value, place and time equals the result of xarray, pyproj and cftime."""

import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cftime
import numpy as np
import pyproj
import pytest
import xarray as xr

from dithc.config import datasets
from dithc.core.logging import UserError
from dithc.data import Tiles, cut_tiles, ingest_scenes, products
from dithc.data.grids import degrees
from dithc.data.readers import read_scenes
from dithc.data.scene import Georeference, Reason, Scene
from tests.data.readers.scene_readers import reader
from tests.inputs.netcdf_fields import LCC, write_cordex

read_all, read_one, read_error = reader(datasets.NetcdfSource, kind="netcdf")


def physical(scene: Scene) -> np.ndarray:
    return scene.pixels * np.array(scene.scale)[:, None, None] + np.array(scene.offset)[:, None, None]


def write(folder: Path, values: np.ndarray, *, name: str = "a.nc", dims: str = "y x", **parts: Any) -> Path:
    """Write a variable `v`; `parts` are coordinates, with `attrs` and `encoding` of the variable and `engine`."""
    folder.mkdir(exist_ok=True)
    attributes, encoding = parts.pop("attrs", {}), parts.pop("encoding", {})
    engine, mapping = parts.pop("engine", "h5netcdf"), parts.pop("mapping", None)
    variables = {"v": (dims.split(), values, attributes)}
    if mapping is not None:
        variables["v"][2]["grid_mapping"], variables["crs"] = "crs", ((), np.int32(0), mapping)
    xr.Dataset(variables, parts).to_netcdf(folder / name, engine=engine, encoding={"v": encoding})
    return folder


def ramp(height: int = 6, width: int = 8) -> np.ndarray:
    return np.arange(height * width, dtype=np.float64).reshape(height, width)


def test_every_value_of_era_interim_is_within_half_a_step_of_xarray(real_data: Callable[[str], Path]) -> None:
    bands = [f"{name}@{level}" for name in "zuv" for level in (200, 500, 850)]
    scenes = read_all(real_data("era_interim"), bands=bands, time="month")
    truth = xr.open_dataset(real_data("era_interim") / "eraint_uvz.nc", engine="scipy")
    assert len(scenes) == truth.sizes["month"] == 2
    for scene, month in zip(scenes, (1, 7), strict=True):
        assert isinstance(scene, Scene)
        for band, values, scale in zip(bands, physical(scene), scene.scale, strict=True):
            expected = truth[band[0]].sel(month=month, level=int(band[2:])).values  # (241, 480), north first
            assert np.abs(values - expected).max() <= scale / 2
        assert scene.mask.all()
        assert scene.place.epsg == 4326
        assert scene.place.transform == (0.75, 0.0, -180.375, 0.0, -0.75, 90.375)
        assert scene.units == ", ".join(["m**2 s**-2"] * 3 + ["m s**-1"] * 6)


def test_targets_of_cordex_are_ingested_cut_opened_and_exported_in_their_units(tmp_path: Path) -> None:
    path = write_cordex(tmp_path, days=3, seed=1, size=32)
    truth = xr.open_dataset(path, engine="h5netcdf")
    dataset = datasets.DatasetConfig.model_validate(
        {
            "title": "x",
            "codec": "none",
            "source": {"kind": "netcdf", "path": str(path.parent), "bands": ["tasmax", "pr"]},
            "tiles": {"size": 32},
            "split": {"train_fraction": 1.0, "val_fraction": 0.0},
            "rendering": {"bands": ["tasmax", "pr", "pr"], "low": [270, 0, 0], "high": [300, 20, 20]},
        }
    )
    ingest_scenes(dataset, path.parent, out=tmp_path / "scenes")
    cut_tiles(dataset, tmp_path / "scenes", out=tmp_path / "tiles", seed=0)
    tiles = Tiles(tmp_path / "tiles")
    stored = tiles.stretch.physical(tiles.stored(np.arange(3)))  # (3, 2, 32, 32)
    scale = np.array(tiles.info["scale"])
    for index, name in enumerate(("tasmax", "pr")):
        expected = truth[name].values[:, ::-1]  # rows from north to south
        assert np.abs(stored[:, index] - expected).max() <= scale[index] / 2
        described = tiles.info["statistics"][index]
        assert described["mean"] == pytest.approx(expected.mean(dtype=float), abs=scale[index])
        assert described["std"] == pytest.approx(expected.std(dtype=float), rel=1e-3)
        assert described["p99"] == pytest.approx(np.percentile(expected, 99), abs=scale[index])
    assert (stored[:, 1] == 0).sum() == (truth["pr"].values <= scale[1] / 2).sum() > 100  # dry cells are exactly 0
    assert [label.units for label in products.Bands.of(tiles.info).labels()] == ["K", "mm"]
    shown = products.Bands.of(tiles.info, displayed=True)
    assert [label.units for label in shown.labels()] == ["K", "mm", "mm"]
    table = tiles.accepted("sensing_time", "day_of_year", "lon", "lat")
    assert table["sensing_time"] == [f"1961-01-0{day}T12:00:00" for day in (1, 2, 3)]
    assert table["day_of_year"] == [1.5, 2.5, 3.5]
    np.testing.assert_allclose([table["lon"][0], table["lat"][0]], [10.0, 46.0], atol=1e-6)


def test_axes_of_any_direction_and_order_give_the_same_north_up_scene(tmp_path: Path) -> None:
    lat, lon = np.arange(6) * 2.0 - 5, np.arange(8) * 45.0  # south first, 0 to 315 degrees
    values = np.random.default_rng(0).normal(size=(6, 8))
    # -180 to 135 degrees, north first, for each of the files
    expected = values[::-1][:, [4, 5, 6, 7, 0, 1, 2, 3]]
    turned = {
        "ascending": (values, "lat lon", lat, lon),
        "descending": (values[::-1, ::-1], "lat lon", lat[::-1], lon[::-1]),
        "transposed": (values.T, "lon lat", lat, lon),
        "signed": (values, "lat lon", lat, np.where(lon >= 180, lon - 360, lon)),
    }
    for name, (array, dims, y, x) in turned.items():
        coordinates = {"lat": ("lat", y.astype(np.float32)), "lon": ("lon", x.astype(np.float32))}
        scene = read_one(write(tmp_path / name, array, dims=dims, **coordinates), bands=["v"])
        assert np.abs(physical(scene)[0] - expected).max() <= scene.scale[0] / 2, name
        assert scene.place.transform == (45.0, 0.0, -202.5, 0.0, -2.0, 6.0)
    pacific = {"lat": lat, "lon": [170.0, 174.0, 178.0, -178.0, -174.0, -170.0, -166.0, -162.0]}
    scene = read_one(write(tmp_path / "pacific", values, dims="lat lon", **pacific), bands=["v"])
    assert scene.place.transform == (4.0, 0.0, 168.0, 0.0, -2.0, 6.0)
    assert np.abs(physical(scene)[0] - values[::-1]).max() <= scene.scale[0] / 2
    assert scene.place.gsd_m == pytest.approx((444.8e3 * 221.2e3) ** 0.5, rel=0.01)  # 4 and 2 degrees at the equator


@pytest.mark.parametrize(
    ("mapping", "names", "units", "side"),
    [
        (LCC, ("projection_y_coordinate", "projection_x_coordinate"), "km", 12.5),
        (
            {
                "grid_mapping_name": "rotated_latitude_longitude",
                "grid_north_pole_latitude": 39.25,
                "grid_north_pole_longitude": -162.0,
            },
            ("grid_latitude", "grid_longitude"),
            "degrees",
            0.11,
        ),
        ({"crs_wkt": pyproj.CRS.from_epsg(32633).to_wkt()}, (None, None), "m", 1000.0),
    ],
    ids=["lambert", "rotated pole", "utm"],
)
def test_grid_mappings_place_cells_as_pyproj(
    tmp_path: Path, mapping: dict[str, Any], names: tuple[str, str], units: str, side: float
) -> None:
    start = 500.0 if units == "m" else 0.0
    y, x = (np.arange(6) - 2) * side + 5000 * start, (np.arange(8) - 3) * side + 1000 * start
    axes = {
        dim: (dim, values, {"units": units, **({"standard_name": name} if name else {})})
        for dim, values, name in zip("yx", (y, x), names, strict=True)
    }
    scene = read_one(write(tmp_path / "in", ramp(), mapping=mapping, **axes), bands=["v"])
    plain = {name: value[0] if isinstance(value, np.ndarray) else value for name, value in mapping.items()}
    factor = 1000.0 if units == "km" else 1.0
    expected = pyproj.Transformer.from_crs(pyproj.CRS.from_cf(plain), 4326, always_xy=True).transform(
        x[3] * factor, y[2] * factor
    )
    a, _, c, _, e, f = scene.place.transform
    row, column = np.argwhere(np.abs(physical(scene)[0] - ramp()[2, 3]) < 0.01)[0]
    centers = np.array([c + a * (column + 0.5)]), np.array([f + e * (row + 0.5)])
    np.testing.assert_allclose(np.ravel(degrees(*centers, crs=scene.place.crs)), expected, atol=1e-6)
    kilometers = {"km": side, "degrees": side * 111.2, "m": side / 1000}[units]
    assert scene.place.gsd_m == pytest.approx(kilometers * 1000, rel=0.01)


def test_packing_fill_values_and_masks_follow_xarray(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    values = 280 + 10 * rng.random((3, 6, 8))
    values[0, 0, 0], values[1, 2, 3], values[2, 5, 7] = np.nan, 1e30, -9999.0
    values[1, 2, 3] = np.nan
    files = {
        "scipy": {
            "dtype": "int16",
            "scale_factor": -0.01,
            "add_offset": 285.0,
            "_FillValue": -32767,
            "missing_value": -32767,
        },
        "h5netcdf": {"dtype": "float32", "zlib": True, "_FillValue": np.nan},
    }
    for engine, encoding in files.items():
        array = np.where(values == -9999.0, 285.0, values) if engine == "scipy" else values
        folder = write(
            tmp_path / engine, array, dims="time y x", engine=engine, encoding=encoding, attrs={"units": "K"}
        )
        truth = xr.open_dataset(folder / "a.nc", engine=engine)["v"].values
        scenes = read_all(folder, bands=["v"], nodata=-9999.0)
        for scene, expected in zip(scenes, truth, strict=True):
            valid = np.isfinite(expected) & (expected != -9999.0)
            np.testing.assert_array_equal(scene.mask == 1, valid)
            assert np.abs(physical(scene)[0] - expected)[valid].max() <= scene.scale[0] / 2
            assert (scene.units, scene.notes) == ("K", ("no-coordinates",))
            assert scene.pixels.dtype == np.int16
    assert not all(scene.mask.all() for scene in scenes)


@pytest.mark.parametrize(
    ("calendar", "first", "expected"),
    [
        ("standard", "1961-02-28", ["1961-02-28T12:00:00", "1961-03-01T12:00:00", "1961-03-02T12:00:00"]),
        ("360_day", "1961-02-29", ["1961-02-29T12:00:00", "1961-02-30T12:00:00", "1961-03-01T12:00:00"]),
        ("noleap", "2000-02-28", ["2000-02-28T12:00:00", "2000-03-01T12:00:00", "2000-03-02T12:00:00"]),
    ],
)
def test_times_follow_the_calendar(tmp_path: Path, calendar: str, first: str, expected: list[str]) -> None:
    attributes = {"units": f"days since {first}", "calendar": calendar}
    time = ("record", np.arange(3) + 0.5, attributes)  # recognized by its units, not by its name
    folder = write(tmp_path / "in", np.stack([ramp()] * 3), dims="record y x", record=time)
    assert [scene.properties["sensing_time"] for scene in read_all(folder, bands=["v"])] == expected
    assert cftime.num2date(0.5, attributes["units"], calendar).isoformat() == expected[0]


def test_static_bands_repeat_and_levels_select_by_value(tmp_path: Path) -> None:
    u = np.random.default_rng(2).normal(size=(2, 3, 6, 8))
    variables = {"u": (("time", "plev", "y", "x"), u), "orog": (("y", "x"), 100 * ramp())}
    (tmp_path / "in").mkdir()
    xr.Dataset(variables, {"plev": [20000.0, 50000.0, 85000.0]}).to_netcdf(tmp_path / "in/a.nc", engine="scipy")
    bands = ["u@85000", "orog", "u@20000"]
    for scene, expected in zip(read_all(tmp_path / "in", bands=bands), u, strict=True):
        truth = np.stack([expected[2], 100 * ramp(), expected[0]])
        assert (np.abs(physical(scene) - truth).max(axis=(1, 2)) <= np.array(scene.scale) / 2).all()


def test_a_level_selects_among_dimensions_of_one_value(tmp_path: Path) -> None:
    u = np.random.default_rng(2).normal(size=(1, 2, 1, 6, 8))
    coordinates = {"member": ["r1i1p1"], "plev": [850.0, 500.0], "height": [2.0]}
    folder = write(tmp_path / "in", u, dims="member plev height y x", **coordinates)
    single = write(tmp_path / "one", u[:, :1], dims="member plev height y x", **coordinates | {"plev": [500.0]})
    for source, name, expected in (
        (folder, "v@500", u[0, 1, 0]),
        (single, "v@500", u[0, 0, 0]),
        (single, "v@2", u[0, 0, 0]),
    ):
        scene = read_one(source, bands=[name])
        assert np.abs(physical(scene)[0] - expected).max() <= scene.scale[0] / 2
    assert "plev (1, no role)" in read_error(single, bands=["v@7"]).got


def test_wrong_files_are_rejected_with_the_reason(tmp_path: Path) -> None:
    cube = np.stack([ramp()] * 3)
    lat, lon = 10.0 + np.arange(6), np.arange(8.0)
    cases: list[tuple[Reason, str, dict[str, Any], dict[str, Any]]] = [
        (Reason.MISSING_BAND, "'w' is missing", {"values": ramp()}, {"bands": ["w"]}),
        (
            Reason.MISSING_BAND,
            "no value 300",
            {"values": cube, "dims": "p y x", "p": [1.0, 2, 3]},
            {"bands": ["v@300"]},
        ),
        (Reason.WRONG_LAYOUT, "ambiguous", {"values": cube, "dims": "month y x"}, {}),
        (Reason.WRONG_LAYOUT, "ambiguous", {"values": ramp()}, {"bands": ["v@5"]}),
        (Reason.GRID_MISMATCH, "y coordinates", {"values": ramp(), "dims": "lat lon", "lat": lat**2, "lon": lon}, {}),
        (Reason.GRID_MISMATCH, "x coordinates", {"values": ramp(), "dims": "lat lon", "lat": lat, "lon": lon**2}, {}),
        (Reason.OVERFLOW, "fill value", {"values": np.where(ramp() > 9, ramp(), 1e20)}, {}),
    ]
    for number, (reason, problem, content, settings) in enumerate(cases):
        error = read_error(write(tmp_path / f"{number}", **content), **{"bands": ["v"], **settings})
        assert error.reason == reason
        assert problem in error.problem
    folder = write(tmp_path / "damaged", np.random.default_rng(0).normal(size=(99, 99)))
    (folder / "a.nc").write_bytes((folder / "a.nc").read_bytes()[:20_000])
    (folder / "b.nc").write_text("CSV")
    (folder / "c.nc").write_bytes(b"CDF\5")
    rejections = read_all(folder, bands=["v"])
    assert [rejection.error.reason for rejection in rejections] == [Reason.READ_ERROR] * 3
    assert "nccopy" in rejections[2].error.fix


def test_fields_without_a_known_place_are_read_with_a_note_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("dithc"), "propagate", True)
    rotated = {"grid_mapping_name": "rotated_latitude_longitude", "grid_north_pole_latitude": 39.25}
    km = {dim: (dim, 12.5 * np.arange(side), {"units": "km"}) for dim, side in (("y", 6), ("x", 8))}
    cases: dict[str, tuple[float, dict[str, Any]]] = {
        "irregular-grid": (
            0.0,
            {"dims": "rlat rlon", "mapping": rotated, "rlat": np.arange(6), "rlon": np.arange(8) ** 2},
        ),
        "no-crs": (12_500.0, km),
        "no-coordinates": (0.0, {"dims": "p q"}),
    }
    for note, (gsd_m, content) in cases.items():
        scene = read_one(write(tmp_path / note, ramp(), **content), bands=["v"])
        assert (scene.place, scene.notes) == (Georeference(gsd_m=gsd_m), (note,))
        assert f"1 of 1 files have no complete georeference, such as a.nc ({note})" in caplog.text
    unitless = write(tmp_path / "units", ramp(), mapping=LCC, y=np.arange(6), x=np.arange(8))
    assert read_one(unitless, bands=["v"]).notes == ("no-crs",)  # m or km is not guessed


def test_a_band_whose_rounding_exceeds_a_hundredth_of_its_deviation_is_an_error(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(200, 200))
    values[0, 0] = 100.0
    with pytest.raises(
        UserError, match=r"too coarse for the band 'v'(.|\n)*expected: a rounding error of at most 0.01"
    ):
        read_all(write(tmp_path / "in", np.where(values > 9, 3e6, values)), bands=["v"])
    assert read_one(write(tmp_path / "fine", values), bands=["v"]).scale == [2.0**-9]
    with pytest.raises(UserError, match=r"too coarse for the band 'v'(.|\n)*errors up to 0\.0625 "):  # of float32
        read_all(write(tmp_path / "far", 1e6 + 1e-3 * values), bands=["v"])


def test_predictors_of_cordex_are_bands_of_a_coarse_grid(tmp_path: Path) -> None:
    write_cordex(tmp_path, days=2, seed=4, size=16)
    folder = tmp_path / "train/ESD_pseudo_reality/predictors"
    bands = [f"{name}_{level}" for name in "uvtqz" for level in (850, 700, 500)]
    *scenes, static = read_all(folder, bands=bands)
    assert static.error.reason == Reason.MISSING_BAND
    truth = xr.open_dataset(folder / "CNRM-CM5_1961-1980.nc", engine="h5netcdf")
    for day, scene in enumerate(scenes):
        expected = np.stack([truth[name].values[day, ::-1] for name in bands])  # (15, 16, 16), north first
        assert (np.abs(physical(scene) - expected).max(axis=(1, 2)) <= np.array(scene.scale) / 2).all()
        assert scene.place.transform == (2.0, 0.0, -7.0, 0.0, -2.0, 62.0)
    assert read_one(folder, bands=["orog"], include=["Static*"]).units == "m"


def test_a_copy_in_another_process_reads_the_same_scenes(tmp_path: Path) -> None:
    source = datasets.NetcdfSource(kind="netcdf", path=str(tmp_path), bands=["v"])
    scenes = read_scenes(source, write(tmp_path / "in", np.stack([ramp(), -ramp()]), dims="time y x"))
    for scene, copied in zip(scenes, pickle.loads(pickle.dumps(scenes)), strict=True):
        np.testing.assert_array_equal(scene.pixels, copied.pixels)


def test_new_extremes_read_all_scenes_again_with_one_scaling(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", ramp())
    source = {"kind": "netcdf", "path": str(folder), "bands": ["v"]}
    rendering = {"bands": ["v"] * 3, "low": 0, "high": 1}
    dataset = datasets.DatasetConfig.model_validate(
        {"title": "x", "codec": "n", "source": source, "rendering": rendering}
    )
    ingest_scenes(dataset, folder, out=tmp_path / "out")
    write(folder, 10 * ramp(), name="b.nc")
    assert ingest_scenes(dataset, folder, out=tmp_path / "out")["accepted"] == 2
    index = (tmp_path / "out" / "scenes.json").read_text()
    assert '"scale": [\n  0.0078125\n ]' in index  # 470 / 65,000 = 0.00723, rounded up to a power of two
