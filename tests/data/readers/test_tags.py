"""Tags of bands against the declared bands: contradictions are errors with both values, everything else passes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.enums import ColorInterp

from dithc.config import datasets
from dithc.data.raster import BandLabel, write_geotiff
from dithc.data.readers import read_scenes
from dithc.data.readers.tags import check_tags
from dithc.data.scene import Reason, Scene, SceneRejectedError

S2 = [f"B{number:02}" for number in range(1, 9)] + ["B8A", "B09", "B11", "B12"]
FILE = Path("x.tif")


def check(bands: list[str], names: list[str | None] | None = None, **tags: Any) -> None:
    """Check labels; `tags` are lists of values of labels, or arguments of `check_tags`."""
    rows: list[dict[str, Any]] = [{"name": name or "", "units": ""} for name in names or [None] * len(bands)]
    for key in ("units", "scale", "offset", "wavelength_nm", "shown"):
        for row, value in zip(rows, tags.pop(f"of_{key}", []), strict=False):
            row[key] = value
    check_tags(FILE, [BandLabel(**row) for row in rows], bands=bands, **tags)


HARMLESS: list[tuple[list[str], list[str | None]]] = [
    (["B02", "B03", "B04"], ["B2", "B3", "B4"]),
    (["b2", "b3", "b4"], ["B02", "B03", "B04"]),
    (["B02", "B03", "B04"], ["Band 2", "band_3", "BAND4"]),
    (["B02", "B03", "B04"], ["Band 1", "Band 2", "Band 3"]),
    (["B04", "B03", "B02"], ["Band 1", "Band 2", "Band 3"]),
    (["B04", "B03", "B02"], ["1", "2", "3"]),
    (["B04", "B03", "B02"], ["b1", "b2", "b3"]),
    (["B02", "B03", "B04"], ["Band 1 (Blue)", "Band 2 (Green)", "Band 3 (Red)"]),
    (["B02", "B03", "B04"], ["B2, central wavelength 490 nm", "B3, central wavelength 560 nm", None]),
    (["B02", "B03", "B04"], ["S2A_MSIL2A_T32TMR_B02_10m", "S2A_MSIL2A_T32TMR_B03_10m", "S2A_MSIL2A_T32TMR_B04_10m"]),
    (["B4", "B5"], ["SR_B4", "SR_B5"]),
    (["B4", "B5"], ["Red", "Near Infrared (NIR)"]),
    (["B02", "B03", "B04"], ["blue", "GREEN", "Red"]),
    (["R", "G", "B", "NIR"], ["red", "green", "blue", "near-infrared"]),
    (["R", "G", "B", "N"], ["Red", "Green", "Blue", "NIR1"]),
    (["blue_sr", "green_sr"], ["Surface reflectance, blue", "Surface reflectance, green"]),
    (["R", "G", "B"], ["bands", "bands", "bands"]),
    (["R", "G", "B"], [None, None, None]),
    (["R", "NIR", "NDVI"], ["red", "nir", "NDVI = (NIR - Red) / (NIR + Red)"]),
    (["R", "NIR", "index"], ["red", "nir", "(NIR - Red) / (NIR + Red)"]),
    (
        ["CB", "B", "G1", "G", "Y", "R", "RE", "NIR"],
        ["coastal_blue", "blue", "green_i", "green", "yellow", "red", "rededge", "nir"],
    ),
    (["swir1", "swir2"], ["swir16", "swir22"]),
    (["VV", "VH"], ["Sigma0_VV_db", "Sigma0_VH_db"]),
    (["R", "G", "B"], ["Layer_1", "Layer_2", "Layer_3"]),
    (["a", "b"], ["elevation", "slope"]),
    (S2, [name.replace("B0", "B") for name in S2]),
    (S2, S2),
]
SWAPPED: list[tuple[list[str], list[str | None]]] = [
    (["B04", "B03", "B02"], ["B2", "B3", "B4"]),
    (["B3", "B2", "B1"], ["B1", "B2", "B3"]),
    (["B02", "B03", "B04"], ["B08", "B03", "B04"]),
    (["B02", "B03", "B04"], ["red", "green", "blue"]),
    (["B", "G", "R", "NIR"], ["red", "green", "blue", "nir"]),
    (["B", "G", "R", "NIR"], ["Red band", "Green band", "Blue band", "NIR band"]),
    (["R", "G", "B"], ["nir", "red", "green"]),
    (["B02", "B03"], ["Band 3", "Band 2"]),
    (["B08", "B8A"], ["B8A", "B8"]),
    (["blue_sr", "green_sr"], ["green_sr", "blue_sr"]),
    ([*S2[:-1], "B12"], [*S2[1:-1], "B11", "B12"]),
    (["B02", "B03", "B04"], [None, None, "B02"]),
]


@pytest.mark.parametrize(("bands", "names"), HARMLESS)
def test_alternative_spellings_and_free_text_are_accepted(bands: list[str], names: list[str | None]) -> None:
    check(bands, names)


@pytest.mark.parametrize(("bands", "names"), SWAPPED)
def test_description_of_another_band_is_rejected(bands: list[str], names: list[str | None]) -> None:
    with pytest.raises(SceneRejectedError) as caught:
        check(bands, names)
    error = caught.value
    assert error.reason == Reason.TAGS_CONTRADICTION
    number = next(number for number, band in enumerate(bands) if f"band {band} in x.tif" in error.problem)
    assert (names[number] or "") in error.got
    assert bands[number] in error.expected


def test_band_order_that_differs_from_the_declaration_is_rejected() -> None:
    draws = np.random.default_rng(0)
    for names in (S2, ["R", "G", "B", "NIR"], ["blue", "green", "red", "nir", "swir1", "swir2"], ["VV", "VH", "HH"]):
        for _ in range(30):
            bands = draws.permutation(names).tolist()
            check(bands, [str(name).lower() for name in bands])
            if bands != names:
                with pytest.raises(SceneRejectedError):
                    check(bands, [*names])


def test_colors_are_compared_if_descriptions_are_missing(caplog: pytest.LogCaptureFixture) -> None:
    check(["R", "G", "B"], of_shown=["red", "green", "blue"])
    check(["NIR", "R", "G"], ["NIR", "R", "G"], of_shown=["red", "green", "blue"])  # a composite in false colors
    check(["B04", "x"], of_shown=["gray", None])
    for bands in (["B", "G", "R"], ["B02", "B03", "B04"], ["NIR", "R", "G"]):
        with pytest.raises(SceneRejectedError, match="red"):
            check(bands, of_shown=["red", "green", "blue"])
        with caplog.at_level("WARNING"):  # the default of GDAL for bytes
            check(bands, of_shown=["red", "green", "blue"], default_colors=True)
        assert f"declares {', '.join(bands)}" in caplog.text
    with pytest.raises(SceneRejectedError, match="blue"):
        check(["R", "G", "B"], of_shown=["blue", "green", "red"], default_colors=True)


def test_wavelengths_of_other_bands_are_rejected() -> None:
    declared = [490.0, 560.0, 665.0, 842.0, 865.0]
    bands = ["B02", "B03", "B04", "B08", "B8A"]
    tags = [492.7, 559.8, 664.6, 832.8, 864.7]
    check(bands, of_wavelength_nm=tags, wavelengths_nm=declared)
    check(bands, of_wavelength_nm=tags)
    check(["R"], of_wavelength_nm=[640.0], wavelengths_nm=[660.0])
    for first, second in ((0, 2), (3, 4)):
        swapped = list(tags)
        swapped[first], swapped[second] = swapped[second], swapped[first]
        with pytest.raises(SceneRejectedError, match=f"{swapped[first]:g} nm"):
            check(bands, of_wavelength_nm=swapped, wavelengths_nm=declared)
    with pytest.raises(SceneRejectedError, match=r"664\.6 nm"):
        check(["B", "G", "R"], of_wavelength_nm=[664.6, 559.8, 492.7])


@pytest.mark.parametrize(
    ("tagged", "declared"),
    [
        ((1e-4, 0.0), (1e-4, 0.0)),
        ((1.0, 0.0), (1e-4, -0.1)),
        ((float(np.float32(2.75e-5)), -0.2), (2.75e-5, -0.2)),
        ((1e-4, -0.1), (1e-4, 0.0)),
        ((1e-4, 0.0), (1e-4, -0.1)),
        ((1e-4, -0.1), (1.0, 0.0)),
        ((1.0, -0.1), (1.0, 0.0)),
        ((0.01, 0.0), (1e-4, 0.0)),
    ],
)
def test_scale_and_offset_are_compared_if_the_units_are_scaled(
    tagged: tuple[float, float], declared: tuple[float, float]
) -> None:
    arguments = {"of_scale": [tagged[0]] * 2, "of_offset": [tagged[1]] * 2, "scale": declared[0], "offset": declared[1]}
    check(["a", "b"], **arguments, units="dn")
    if tagged == (1.0, 0.0) or np.allclose(tagged, declared, atol=0):
        check(["a", "b"], **arguments, units="reflectance")
        return
    with pytest.raises(SceneRejectedError, match=f"scale {tagged[0]:g}, offset {tagged[1]:g}") as caught:
        check(["a", "b"], **arguments, units="reflectance")
    assert f"scale {declared[0]:g}, offset {declared[1]:g}" in caught.value.expected


@pytest.mark.parametrize("units", ["reflectance", "radiance"])
@pytest.mark.parametrize(
    "tag", ["Reflectance", "surface reflectance", "W m-2 sr-1 um-1", "W/m^2/sr/um", "K", "m", "dB", "DN"]
)
def test_units_of_another_quantity_are_rejected(units: str, tag: str) -> None:
    kind = "reflectance" if "reflect" in tag.lower() else "radiance" if tag.startswith("W") else "other"
    check(["a"], of_units=[tag], units="dn")
    if kind == units:
        check(["a"], of_units=[tag], units=units)
    else:
        with pytest.raises(SceneRejectedError, match="units"):
            check(["a"], of_units=[tag], units=units)
    check(["a"], of_units=["DN"], units=units, scale=0.01)
    for text in ("", "1", "unitless", "none"):
        check(["a"], of_units=[text], units=units)


def test_percent_units_are_compared_as_a_scale() -> None:
    check(["a"], of_units=["%"], units="reflectance", scale=0.01)
    check(["a"], of_units=["percent"], of_scale=[0.01], units="reflectance", scale=1e-4)
    with pytest.raises(SceneRejectedError, match=r"scale 0\.01"):
        check(["a"], of_units=["%"], units="reflectance")


def write(path: Path, pixels: np.ndarray[Any, Any], describe: Callable[[Any], object]) -> None:
    write_geotiff(path, pixels, epsg=32633, transform=(10.0, 0.0, 5e5, 0.0, -10.0, 5e6))
    with rasterio.open(path, "r+") as raster:
        describe(raster)


def describe_offset(raster: Any) -> None:
    raster.scales, raster.offsets = [1e-4] * raster.count, [-0.1] * raster.count


def describe_order(raster: Any) -> None:
    raster.descriptions = ["B02", "B03", "B04"][: raster.count]


def describe_colors(raster: Any) -> None:
    raster.colorinterp = [ColorInterp.blue, ColorInterp.green, ColorInterp.red][: raster.count]


def describe_wavelengths(raster: Any) -> None:
    for number, um in zip(raster.indexes, (0.49, 0.56, 0.665), strict=True):
        raster.update_tags(number, wavelength=f"{um * 1000:g}", wavelength_units="nm")


ORDER = ["B04", "B03", "B02"]
SOURCES: dict[str, Any] = {
    "geotiff": lambda path: datasets.GeoTiffSource(
        kind="geotiff", path=path, bands=ORDER, units="reflectance", scale=1e-4, offset=-0.2
    ),
    "array": lambda path: datasets.Sentinel2ArraySource(
        kind="sentinel2-array", path=path, bands=ORDER, units="dn", offset=0.0, check_offset=False
    ),
    "gaofen2": lambda path: datasets.Gaofen2Source(kind="gaofen2", path=path, bands=ORDER),
}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("describe", [describe_offset, describe_order, describe_colors, describe_wavelengths, len])
def test_contradictory_file_tags_are_rejected_by_every_reader(
    tmp_path: Path, kind: str, describe: Callable[[Any], object]
) -> None:
    pixels = np.random.default_rng(0).integers(1100, 4000, (3, 16, 16), dtype=np.uint16)
    write(tmp_path / "x.tif", pixels, describe if describe is not len else lambda raster: None)
    (scene,) = read_scenes(SOURCES[kind](str(tmp_path)), tmp_path)
    if describe is len or (describe is describe_offset and kind == "gaofen2"):
        assert isinstance(scene, Scene), scene.error
    else:
        assert scene.error.reason == Reason.TAGS_CONTRADICTION


def test_each_band_file_is_compared_with_the_declared_band(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(1100, 4000, (1, 16, 16), dtype=np.uint16)
    names = {"_B4.tif": "Band 1", "_B3.tif": "B03", "_B2.tif": "blue"}
    source = datasets.GeoTiffSource(kind="geotiff", path=str(tmp_path), bands=ORDER, units="dn", suffixes=list(names))
    for suffix, name in names.items():
        write(tmp_path / f"x{suffix}", pixels, lambda raster, name=name: setattr(raster, "descriptions", [name]))
    (scene,) = read_scenes(source, tmp_path)
    assert isinstance(scene, Scene), scene.error
    write(tmp_path / "x_B3.tif", pixels, lambda raster: setattr(raster, "descriptions", ["B02"]))
    (scene,) = read_scenes(source, tmp_path)
    assert "band B03 in x_B3.tif" in scene.error.problem
