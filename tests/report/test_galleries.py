"""Mosaics contain the named images, nearest tiles are nearest, and power matches known waves."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dithc.data import Tiles
from dithc.report.galleries.gallery import _downsample, composites, galleries
from dithc.report.galleries.image_sets import nearest_tiles
from dithc.report.galleries.spectra import radial_power
from dithc.report.records import EvaluationRecord, ReportRecords


@pytest.fixture(scope="module")
def records(tree: Any) -> ReportRecords:
    return tree.records()


def _evaluation(records: ReportRecords, name: str) -> EvaluationRecord:
    return next(item for item in records.evaluations if item.name == name)


def test_nearest_tiles_have_the_nearest_features(records: ReportRecords) -> None:
    item = _evaluation(records, "sentinel2-final")
    folder = records.dataset("sentinel2").tiles_folder
    assert folder is not None
    found = nearest_tiles(item, Tiles(folder), seed=0, count=4)
    np.testing.assert_array_equal(found, [0, 2, 4, 6])  # samples are at 0.1, 2.1, ..., tiles at 0, 1, 2, ...
    other = _evaluation(records, "sentinel2-start")
    assert nearest_tiles(other, Tiles(folder), seed=0, count=4) == "the features of the images were not stored"
    assert item.files is not None
    none = replace(item, files=replace(item.files, real_features=None))
    assert "not among the results" in str(nearest_tiles(none, Tiles(folder), seed=0, count=4))


def test_galleries_of_a_dataset_have_texts_and_false_colors(records: ReportRecords) -> None:
    found = galleries(records, "sentinel2", _evaluation(records, "sentinel2-final"))
    pictures = [picture for gallery in found for picture in gallery.pictures]
    assert [gallery.title for gallery in found][:2] == ["Generated and real", "False colors"]
    assert len(found[0].pictures) == 3
    assert len(found[1].pictures) == 4
    assert all(picture.text.endswith(".") and picture.webp[:4] == b"RIFF" for picture in pictures)
    assert galleries(records, "landscape", None) == []


@pytest.mark.parametrize(("bands", "names"), [("R G B", []), ("B G R NIR", ["color infrared"]), ("B02 B03", [])])
def test_composites_require_all_bands(bands: str, names: list[str]) -> None:
    assert [name for name, _, _ in composites(bands.split())] == names


def test_large_images_are_averaged() -> None:
    images = np.arange(3, dtype=np.uint8)[:, None, None, None] * np.ones((1, 3, 520, 520), np.uint8)
    np.testing.assert_array_equal(_downsample(images), images[..., :173, :173])


@pytest.mark.parametrize("cycles", [1, 3, 7])
def test_power_of_a_wave_is_confined_to_one_ring(cycles: int) -> None:
    x = np.arange(16) / 16
    wave = np.cos(2 * np.pi * cycles * x)[None, None, None, :] * np.ones((2, 3, 16, 1))
    power = radial_power(wave.astype(np.float32) + 5)
    assert int(power.argmax()) == cycles - 1
    assert np.delete(power, cycles - 1).max() < 1e-9 * power.max() + 1e-12
