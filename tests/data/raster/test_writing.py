"""Written rasters return identical pixels and georeference from GDAL."""

from pathlib import Path

import numpy as np
import pytest
import rasterio

from dithc.data.grids import north_up, reproject_points
from dithc.data.raster import write_geotiff

PLACE = {"transform": north_up(left=300_000.0, top=4_600_020.0, gsd=10.0), "epsg": 32650}


@pytest.mark.parametrize("driver", ["GTiff", "JP2OpenJPEG"])
@pytest.mark.parametrize(("dtype", "bands"), [("uint8", 1), ("uint8", 3), ("uint16", 1), ("uint16", 4)])
def test_written_raster_equals_the_array_and_grid_read_by_gdal(
    tmp_path: Path, driver: str, dtype: str, bands: int
) -> None:
    rng = np.random.default_rng(1)
    array = rng.integers(0, np.iinfo(dtype).max, (bands, 37, 50), dtype=dtype, endpoint=True)
    write_geotiff(tmp_path / "a", array, driver=driver, **PLACE)
    with rasterio.open(tmp_path / "a") as source:
        assert np.array_equal(source.read(), array)
        assert source.driver == driver
        assert source.crs.to_epsg() == 32650
        assert tuple(source.transform)[:6] == PLACE["transform"]
        assert source.nodata is None


def test_writing_to_a_missing_folder_raises_an_error_with_the_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        write_geotiff(tmp_path / "nowhere" / "a.tif", np.zeros((1, 4, 4), np.uint16), **PLACE)


def test_points_are_reprojected_as_x_then_y() -> None:
    (x,), (y,) = reproject_points([117.0], [40.0], source_epsg=4326, target_epsg=32650)
    assert x == pytest.approx(500_000, abs=0.01)  # the central meridian of zone 50 is at 500 km
    assert y == pytest.approx(4_427_757.2, abs=1)
