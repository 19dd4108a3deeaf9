"""Products that lack files, lead out of their folder or contain implausible numbers are rejected with a reason."""

import os
import re
import shutil
from pathlib import Path

import pytest

from dithc.config import datasets
from dithc.data.raster import read_raster, write_geotiff
from dithc.data.scene import Reason, Rejection, Scene
from tests.data.readers.scene_readers import reader

read_all, read_one, refusal = reader(datasets.Sentinel2Source, kind="sentinel2")


def images(product: Path, pattern: str) -> list[Path]:
    found = sorted(product.glob(f"GRANULE/*/IMG_DATA/{pattern}"))
    assert found
    return found


def replace(product: Path, name: str, pattern: str, by: str) -> None:
    text = (product / name).read_text()
    changed = re.sub(pattern, by, text, count=1)
    assert changed != text
    (product / name).write_text(changed)


@pytest.mark.parametrize(
    "pattern",
    [
        "*/*_B02_10m.jp2",
        "R10m/*_B0[2348]_10m.jp2",
        "*/*_B01_*",
        "*/*_B05_20m.jp2",
        "*/*_B8A_*",
        "*/*_SCL_20m.jp2",
        "*/*_SCL_*",
    ],
)
def test_product_without_listed_files_is_rejected(safe_folder: Path, safe_product: Path, pattern: str) -> None:
    for path in images(safe_product, pattern):
        path.unlink()
    rejection = refusal(safe_folder)
    assert rejection.reason in (Reason.INCOMPLETE, Reason.MISSING_BAND)


def test_missing_optional_files_are_noted_and_native_bands_are_required(safe_folder: Path, safe_product: Path) -> None:
    (unused,) = images(safe_product, "R60m/*_B03_60m.jp2")
    unused.unlink()
    rejection = refusal(safe_folder)
    assert rejection.reason == Reason.INCOMPLETE
    assert unused.name in rejection.got
    assert "optional_files" in rejection.fix
    assert refusal(safe_folder, optional_files=["*/QI_DATA/*"]).reason == Reason.INCOMPLETE
    scene = read_one(safe_folder, optional_files=["*/R60m/*"])
    assert scene.notes == ("incomplete",)
    (native,) = images(safe_product, "R10m/*_B03_10m.jp2")
    native.unlink()
    for settings in ({"optional_files": ["*"]}, {"checksum": "skip"}):
        rejection = refusal(safe_folder, **settings)
        assert rejection.reason == Reason.MISSING_BAND
        assert "B03 at 10 m" in rejection.got


@pytest.mark.parametrize("number", ["", "nan", "inf", "1e309", "1e300", "-40000", "1_000", "0x10"])
@pytest.mark.parametrize("name", ["BOA_ADD_OFFSET", "BOA_QUANTIFICATION_VALUE", "PROCESSING_BASELINE"])
def test_implausible_metadata_numbers_are_rejected(
    safe_folder: Path, safe_product: Path, name: str, number: str
) -> None:
    replace(safe_product, "MTD_MSIL2A.xml", rf"(<{name}\b[^>]*>)[^<]*", rf"\g<1>{number}")
    rejection = refusal(safe_folder, checksum="skip")
    assert name in rejection.problem
    assert repr(number) in rejection.got


@pytest.mark.parametrize("band", ["0", "13", "-1", "one"])
def test_invalid_or_repeated_band_id_of_an_offset_is_rejected(safe_folder: Path, safe_product: Path, band: str) -> None:
    replace(safe_product, "MTD_MSIL2A.xml", r'(<BOA_ADD_OFFSET band_id=)"5"', rf'\g<1>"{band}"')
    assert "BOA_ADD_OFFSET" in refusal(safe_folder, checksum="skip").problem


def test_missing_processing_baseline_is_rejected(safe_folder: Path, safe_product: Path) -> None:
    replace(safe_product, "MTD_MSIL2A.xml", r"<PROCESSING_BASELINE>[^<]*</PROCESSING_BASELINE>", "")
    assert "PROCESSING_BASELINE" in refusal(safe_folder, checksum="skip").problem


@pytest.mark.parametrize("href", ["../../outside/pipe", "{outside}/pipe", "/etc/passwd", "", ".", ".."])
def test_manifest_paths_outside_the_product_are_not_opened(safe_folder: Path, safe_product: Path, href: str) -> None:
    outside = safe_folder.parent / "outside"
    outside.mkdir()
    os.mkfifo(outside / "pipe")  # opening it would block forever
    replace(safe_product, "manifest.safe", r'href="[^"]*_60m\.jp2"', f'href="{href.format(outside=outside)}"')
    assert "manifest.safe" in refusal(safe_folder).problem


@pytest.mark.parametrize("checksum", ["verify", "skip"])
@pytest.mark.parametrize("kind", ["pipe", "zero", "outside", "dangling"])
@pytest.mark.parametrize("name", ["B02_10m.jp2", "MTD_MSIL2A.xml", "manifest.safe"])
def test_special_files_and_outside_links_in_a_product_are_not_opened(
    safe_folder: Path, safe_product: Path, name: str, kind: str, checksum: str
) -> None:
    path = next(safe_product.rglob(f"*{name}"))
    outside = safe_folder.parent / "outside"
    shutil.move(path, outside)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"zero": Path("/dev/zero"), "outside": outside, "dangling": Path("nowhere")}[kind])
    if name == "manifest.safe" and checksum == "skip":
        read_one(safe_folder, checksum=checksum)
    else:
        assert path.name in refusal(safe_folder, checksum=checksum).problem


def test_product_folder_linked_to_the_outside_is_not_traversed(safe_folder: Path, safe_product: Path) -> None:
    (granule,) = safe_product.glob("GRANULE/*/IMG_DATA")
    shutil.rmtree(granule)
    granule.symlink_to("/")
    assert "IMG_DATA" in refusal(safe_folder, checksum="skip").problem


def test_linked_product_is_read_and_invalid_safe_entries_are_rejected(safe_folder: Path, safe_product: Path) -> None:
    elsewhere = Path(shutil.move(safe_product, safe_folder.parent / "elsewhere.SAFE"))
    (safe_folder / "a.SAFE").symlink_to(elsewhere)
    (safe_folder / "b.SAFE").symlink_to("nowhere")
    os.mkfifo(safe_folder / "c.SAFE")
    assert [type(scene) for scene in read_all(safe_folder)] == [Scene, Rejection, Rejection]


def test_two_files_of_the_same_band_are_rejected(safe_folder: Path, safe_product: Path) -> None:
    (path,) = images(safe_product, "R10m/*_B03_10m.jp2")
    shutil.copy(path, path.with_name("T00AAA_20200101T000000_B03_10m.jp2"))
    assert refusal(safe_folder, checksum="skip").reason == Reason.WRONG_LAYOUT


@pytest.mark.parametrize("change", ["cut", "moved"])
def test_finest_band_with_a_different_extent_is_rejected(safe_folder: Path, safe_product: Path, change: str) -> None:
    """The finest band defines the grid, so that a cropped finest band would silently make a smaller scene."""
    (path,) = images(safe_product, "R10m/*_B02_10m.jp2")
    pixels, info = read_raster(path)
    a, b, c, d, e, f = info.transform
    cut, left = (pixels[:, :48], c) if change == "cut" else (pixels, c + 2 * a)
    write_geotiff(path.with_suffix(".tif"), cut, transform=(a, b, left, d, e, f), epsg=info.epsg)
    path.unlink()
    assert refusal(safe_folder, checksum="skip").reason == Reason.GRID_MISMATCH
