"""Generated Gaofen-2 scenes have the names, values and metadata of real orthorectified scenes."""

from pathlib import Path

import numpy as np
import pytest
import rasterio

from dithc.data.synthetic import synthesize


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    out = tmp_path_factory.mktemp("inputs") / "gf2"
    synthesize("gaofen2", out, seed=3, scenes=2, size=130, gsd=3.2)
    return sorted(out.glob("*.tiff"))


def test_scenes_are_four_bands_of_ten_bits_in_utm(scenes: list[Path]) -> None:
    for scene in scenes:
        with rasterio.open(scene) as source:
            assert (source.count, source.shape, set(source.dtypes)) == (4, (130, 130), {"uint16"})
            assert source.crs.to_epsg() == 32650
            assert source.res == (3.2, 3.2)
            assert source.nodata == 0
            pixels = source.read()
        assert pixels.max() <= 1023
        valid = pixels[:, pixels[0] > 0]
        assert valid.min() >= 1
        assert 100 < np.median(valid[1]) < 700


def test_first_scene_has_a_nodata_corner_and_second_scene_is_complete(scenes: list[Path]) -> None:
    with rasterio.open(scenes[0]) as source:
        absent = source.read() == 0
    assert (absent == absent[0]).all()
    assert absent[0, 0, 0]
    assert 0.005 < absent[0].mean() < 0.05
    with rasterio.open(scenes[1]) as source:
        assert source.read().min() > 0
