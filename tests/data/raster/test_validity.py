"""Validity that a raster declares, compared with GDAL's own masks over drawn files."""

import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.enums import ColorInterp

from dithc.config import datasets
from dithc.core.logging import UserError
from dithc.data import products
from dithc.data.raster import read_raster
from dithc.data.readers import read_scenes
from dithc.data.scene import Rejection, Scene, find_invalid

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
DTYPES = ("uint8", "uint16", "int16", "int32", "uint32", "float32", "float64")
MASKS = ["none", "nodata", "internal", "beside", "alpha", "values"]
MASKS += ["internal+nodata", "beside+nodata", "internal+alpha"]
COMPRESSIONS = ("none", "deflate", "lzw", "packbits", "zstd")
SYSTEMS = ("EPSG:32633", "EPSG:3857", None)
COLORS = [ColorInterp.gray, *[ColorInterp.undefined] * 7]


def write_random_raster(draws: random.Random, path: Path) -> str:
    """Write a raster with validity declared in a drawn way; return a description."""
    dtype, mask, count = draws.choice(DTYPES), draws.choice(MASKS), draws.randint(1, 5)
    height, width = draws.randint(1, 70), draws.randint(1, 70)
    random_of = np.random.default_rng(draws.getrandbits(32))
    pixels = random_of.integers(0, 4, (count, height, width)).astype(dtype)
    nodata = draws.choice([0, 1, 3] + ([float("nan")] if dtype.startswith("f") else []))
    valid = random_of.random((height, width)) < draws.choice([0.0, 0.5, 0.9, 1.0])
    alpha = "alpha" in mask
    options: dict[str, Any] = {"compress": draws.choice(COMPRESSIONS), "interleave": draws.choice(["pixel", "band"])}
    if draws.random() < 0.5:
        options |= {"tiled": True, "blockxsize": 16, "blockysize": 32}
    if alpha and count == 3 and dtype == "uint8" and draws.random() < 0.5:
        options |= {"photometric": "RGB"}
    crs = draws.choice(SYSTEMS)
    if crs is not None:
        options |= {"crs": crs, "transform": rasterio.Affine(10, 0, 5e5, 0, -10, 5e6)}
    shape = {"count": count + alpha, "height": height, "width": width, "dtype": dtype}
    with (
        rasterio.Env(GDAL_TIFF_INTERNAL_MASK="YES" if "internal" in mask else "NO"),
        rasterio.open(
            path, "w", driver="GTiff", nodata=nodata if "nodata" in mask else None, **shape, **options
        ) as raster,
    ):
        raster.colorinterp = [*COLORS[:count], *([ColorInterp.alpha] if alpha else [])]
        opaque = random_of.choice([0, 1, 255], (1, height, width)).astype(dtype)
        raster.write(np.concatenate([pixels, opaque]) if alpha else pixels)
        if "internal" in mask or "beside" in mask:
            raster.write_mask(valid)
        if mask == "values":
            raster.update_tags(NODATA_VALUES=" ".join(["1"] * count))
    return f"{mask}, {count} bands of {dtype}, nodata {nodata}, {options}"


def gdal_validity(path: Path) -> np.ndarray[Any, Any]:
    """Return where GDAL reads all data bands and the alpha band as valid, (H, W)."""
    with rasterio.open(path) as raster:
        alpha = [number for number, color in enumerate(raster.colorinterp, 1) if color == ColorInterp.alpha]
        data = [number for number in raster.indexes if number not in alpha]
        pixels = raster.read(data)
        valid = (raster.read_masks(data) != 0).all(axis=0) & np.isfinite(pixels).all(axis=0)
        for number in alpha:
            valid &= raster.read(number) != 0
        return valid


def compare_with_gdal(draws: random.Random, folder: Path) -> None:
    path = folder / "x.tif"
    drawn = write_random_raster(draws, path)
    pixels, info = read_raster(path)
    expected = gdal_validity(path)
    found = ~find_invalid(pixels, info.nodata, masked=info.masked).any(axis=0)
    np.testing.assert_array_equal(found, expected, err_msg=drawn)
    scene = read_bands(folder, *(f"x{number}" for number in range(info.count)), units="reflectance", gsd_m=10.0)
    if isinstance(scene, Rejection):
        assert not expected.any(), (drawn, scene.error)
        assert scene.error.reason == "all_nodata"
    else:
        np.testing.assert_array_equal(scene.mask != 0, expected, err_msg=drawn)
        assert scene.pixels.shape == pixels.shape
        np.testing.assert_array_equal(scene.pixels[:, expected], pixels[:, expected] * 10_000.0)


def compare_random_rasters(seed: int, count: int, folder: Path) -> None:
    draws = random.Random(seed)
    for number in range(count):
        (folder / str(number)).mkdir()
        compare_with_gdal(draws, folder / str(number))
        shutil.rmtree(folder / str(number))


def test_validity_matches_gdal_for_random_rasters(tmp_path: Path) -> None:
    compare_random_rasters(1, 30, tmp_path)


@pytest.mark.parametrize(
    ("dtype", "nodata"),
    [
        ("float32", -3.40282e38),
        ("float32", 3.40282e38),
        ("float32", -3.4028234663852886e38),
        ("float32", -9999.001),
        ("float32", 0.1),
        ("float32", np.inf),
        ("float64", -1.79769e308),
        ("float64", -9999.000000000002),
        ("uint8", 0.5),
        ("uint16", 65535),
        ("int16", -32768),
        ("int32", -2147483648),
        ("complex64", -9999),
    ],
)
def test_nodata_comparison_matches_gdal(tmp_path: Path, dtype: str, nodata: float) -> None:
    """Text of the largest numbers often has six digits. Pixels are the value, its neighbors and other values."""
    kind = np.dtype(dtype)
    limits = np.iinfo(kind) if kind.kind in "iu" else np.finfo(kind)
    values = [np.array(nodata).astype(kind), *np.array([0, 1, 100, limits.min, limits.max]).astype(kind)]
    if kind.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            values += [values[0] * kind.type(1 + step * 1e-8) for step in range(-60, 61)]
    values = np.array(values)
    grid = {"crs": "EPSG:32633", "transform": rasterio.Affine(10, 0, 5e5, 0, -10, 5e6)}
    shape = {"count": 1, "height": 1, "width": len(values), "dtype": dtype}
    with rasterio.open(tmp_path / "a.tif", "w", driver="GTiff", nodata=nodata, **shape, **grid) as raster:
        raster.write(values[None, None])
    pixels, info = read_raster(tmp_path / "a.tif")
    found = ~find_invalid(pixels, info.nodata, masked=info.masked)[0]
    with rasterio.open(tmp_path / "a.tif") as raster:
        expected = raster.read_masks(1) != 0
    np.testing.assert_array_equal(found, expected & np.isfinite(values))
    assert not found[0, 0]


def write_rgb(
    path: Path, pixels: np.ndarray[Any, Any], *, internal: bool = True, valid: Any = None, **options: Any
) -> None:
    count, height, width = pixels.shape
    shape = {"count": count, "height": height, "width": width, "dtype": pixels.dtype}
    grid = {"crs": "EPSG:32633", "transform": rasterio.Affine(10, 0, 5e5, 0, -10, 5e6)}
    with (
        rasterio.Env(GDAL_TIFF_INTERNAL_MASK="YES" if internal else "NO"),
        rasterio.open(path, "w", driver=options.pop("driver", "GTiff"), **shape, **grid, **options) as raster,
    ):
        raster.write(pixels)
        if valid is not None:
            raster.write_mask(valid)


LAND = np.random.default_rng(3).integers(1, 250, (4, 64, 64), dtype=np.uint8)
VALID = np.random.default_rng(4).random((64, 64)) < 0.5


def test_mask_file_of_a_jpeg_2000_raster_is_read(tmp_path: Path) -> None:
    lossless = {"QUALITY": "100", "REVERSIBLE": "YES", "YCBCR420": "NO"}
    write_rgb(tmp_path / "x.jp2", LAND[:3], driver="JP2OpenJPEG", **lossless)
    write_rgb(tmp_path / "y.tif", LAND[:3], internal=False, valid=VALID)
    (tmp_path / "y.tif.msk").rename(tmp_path / "x.jp2.msk")
    masked = read_raster(tmp_path / "x.jp2")[1].masked
    assert masked is not None
    np.testing.assert_array_equal(~masked, VALID)


@pytest.mark.parametrize("damage", ["text", "shape", "other raster", "link", "pipe", "cut"])
def test_unusable_mask_file_raises_an_error_with_the_file_name(tmp_path: Path, damage: str) -> None:
    path, mask_file = tmp_path / "x.tif", tmp_path / "x.tif.msk"
    write_rgb(path, LAND, internal=False, valid=VALID, compress="deflate")
    intact = mask_file.read_bytes()
    mask_file.unlink()
    if damage == "text":
        mask_file.write_text("<GDAL_WMTS/>")
    elif damage == "cut":
        mask_file.write_bytes(intact[: len(intact) // 2])
    elif damage == "link":
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "y").write_bytes(intact)
        mask_file.symlink_to(tmp_path / "other" / "y")
    elif damage == "pipe":
        os.mkfifo(mask_file)
    else:
        write_rgb(mask_file, LAND[:1, :32] if damage == "shape" else LAND[:1])
    with pytest.raises(UserError, match=r"x\.tif\.msk") as caught:
        read_raster(path)
    assert len(str(caught.value).splitlines()) == 4


def test_linked_raster_uses_companions_of_the_link_or_target(tmp_path: Path) -> None:
    for folder in ("files", "links"):
        (tmp_path / folder).mkdir()
    write_rgb(tmp_path / "files" / "x.tif", LAND[:3], internal=False, valid=VALID)
    link = tmp_path / "links" / "y.tif"
    link.symlink_to(tmp_path / "files" / "x.tif")
    for valid in (VALID, ~VALID):
        masked = read_raster(link)[1].masked
        assert masked is not None
        np.testing.assert_array_equal(~masked, valid)
        write_rgb(tmp_path / "links" / "z.tif", LAND[:3], internal=False, valid=~VALID)
        (tmp_path / "links" / "z.tif.msk").rename(tmp_path / "links" / "y.tif.msk")


def test_altered_byte_of_a_deflated_mask_raises_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.tif"
    write_rgb(path, LAND, valid=VALID, compress="deflate", tiled=True, blockxsize=32, blockysize=32)
    intact = path.read_bytes()
    with rasterio.open(f"GTIFF_DIR:2:{path}") as mask:
        offset = int(mask.tags(1, ns="TIFF").get("BLOCK_OFFSET_0_0", 0)) or intact.rindex(b"\x78")
    for position in range(offset + 4, offset + 24, 4):
        path.write_bytes(intact[:position] + bytes([intact[position] ^ 8]) + intact[position + 1 :])
        with pytest.raises(OSError, match=r"block|mask"):
            read_raster(path)


def read_bands(folder: Path, *bands: str, **settings: Any) -> Scene | Rejection:
    source = datasets.GeoTiffSource(kind="geotiff", path=str(folder), bands=[*bands], **{"units": "byte", **settings})
    (scene,) = read_scenes(source, folder)
    return scene


def test_alpha_band_is_validity_but_default_alpha_tag_is_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pixels = LAND.copy()
    pixels[3] = np.where(VALID, 255, 0)
    write_rgb(tmp_path / "x.tif", pixels)  # GDAL tags the fourth of four byte bands as alpha
    scene = read_bands(tmp_path, "R", "G", "B")
    assert scene.pixels.shape == (3, 64, 64)
    np.testing.assert_array_equal(scene.mask != 0, VALID)
    for fourth in ("A", "NIR"):
        rejected = read_bands(tmp_path, "R", "G", "B", fourth)
        assert rejected.error.reason == "band_count"
        assert "alpha" in rejected.error.got
    write_rgb(tmp_path / "x.tif", LAND)
    with caplog.at_level("INFO"):
        scene = read_bands(tmp_path, "R", "G", "B", "NIR")
    np.testing.assert_array_equal(scene.pixels, LAND)
    assert scene.mask.all()
    assert "band 4 of x.tif as NIR" in caplog.text


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16"])
def test_exported_validity_survives_a_round_trip(tmp_path: Path, dtype: str) -> None:
    units = {"uint8": "byte", "uint16": "dn", "int16": "reflectance"}[dtype]
    scale = 1e-4 if dtype == "int16" else 1.0
    info = {"bands": ["R", "G", "B"], "units": units, "dtype": dtype, "scale": scale, "offset": 0.0}
    bands = products.Bands.of({**info, "display": {"bands": ["R", "G", "B"]}})
    pixels = LAND[:3].astype(dtype)
    pixels[:, :8] = 0  # valid zeros, which only a mask distinguishes
    grid = {"crs": "EPSG:32633", "transform": (10.0, 0.0, 5e5, 0.0, -10.0, 5e6)}
    products.write_geotiff(tmp_path, products.Image(name="x", pixels=pixels, tags={}, valid=VALID, **grid), bands=bands)
    scene = read_bands(tmp_path, "R", "G", "B", units=units, scale=scale)
    assert isinstance(scene, Scene), scene.error
    np.testing.assert_array_equal(scene.mask != 0, VALID)
    np.testing.assert_array_equal(scene.pixels[:, VALID], pixels[:, VALID])
