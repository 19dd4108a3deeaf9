"""Mosaics contain the named images, nearest tiles are nearest, and power matches known waves."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dithc.data import Tiles, downsample, write_png
from dithc.report.galleries import gallery
from dithc.report.galleries.gallery import composites, galleries
from dithc.report.galleries.image_sets import first_images, nearest_tiles
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
    pictures = [picture for one in found for picture in one.pictures]
    assert [one.title for one in found][:2] == ["Generated and real", "False colors"]
    assert len(found[0].pictures) == 3
    assert len(found[1].pictures) == 4
    assert all(picture.text.endswith(".") and picture.webp[:4] == b"RIFF" for picture in pictures)
    assert galleries(records, "landscape", None) == []


def test_clusters_are_shown_if_there_are_any(records: ReportRecords, tmp_path: Path) -> None:
    dataset = records.dataset("sentinel2")
    assert gallery._clusters(dataset).pictures == []
    path = tmp_path / "grid.png"
    write_png(path, np.zeros((40, 30, 3), np.uint8))
    (picture,) = gallery._clusters(replace(dataset, cluster_grid=path)).pictures
    assert (picture.height, picture.width) == (40, 30)


def test_answer_names_the_place_of_each_real_image(records: ReportRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    item, dataset = _evaluation(records, "sentinel2-final"), records.dataset("sentinel2")
    assert item.files is not None
    assert dataset.tiles_folder is not None
    monkeypatch.setattr(gallery, "SHOWN", 0)
    drawn = []
    build = gallery.build_mosaic
    monkeypatch.setattr(
        gallery, "build_mosaic", lambda title, images, **more: drawn.append(images) or build(title, images, **more)
    )
    found = gallery._pairs(records, dataset, item)
    real = [tile.tobytes() for tile in Tiles(dataset.tiles_folder).rgb(np.arange(Tiles(dataset.tiles_folder).count))]
    generated = [image.tobytes() for image in first_images(item.files.samples, gallery.PAIRS)]
    places = {place: found.answer.partition(f"{place} in ")[2].partition(";")[0] for place in ("above", "below")}
    pair = 0
    for images in drawn:
        for above, below in zip(images[: len(images) // 2], images[len(images) // 2 :], strict=True):
            pair += 1
            is_above = str(pair) in re.findall(r"\d+", places["above"])
            assert is_above != (str(pair) in re.findall(r"\d+", places["below"]))
            tile, image = (above, below) if is_above else (below, above)
            assert tile.tobytes() in real
            assert image.tobytes() in generated
    assert pair == min(gallery.PAIRS, len(generated), len(real))


@pytest.mark.parametrize(("bands", "names"), [("R G B", []), ("B G R NIR", ["color infrared"]), ("B02 B03", [])])
def test_composites_require_all_bands(bands: str, names: list[str]) -> None:
    assert [name for name, _, _ in composites(bands.split())] == names


def test_large_images_are_averaged() -> None:
    images = np.arange(3, dtype=np.uint8)[:, None, None, None] * np.ones((1, 3, 520, 520), np.uint8)
    np.testing.assert_array_equal(downsample(images, 256), images[..., :173, :173])


@pytest.mark.parametrize("cycles", [1, 3, 7])
def test_power_of_a_wave_is_confined_to_one_ring(cycles: int) -> None:
    x = np.arange(16) / 16
    wave = np.cos(2 * np.pi * cycles * x)[None, None, None, :] * np.ones((2, 3, 16, 1))
    power = radial_power(wave.astype(np.float32) + 5)
    assert int(power.argmax()) == cycles - 1
    assert np.delete(power, cycles - 1).max() < 1e-9 * power.max() + 1e-12
