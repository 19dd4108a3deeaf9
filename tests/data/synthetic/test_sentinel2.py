"""Generated Sentinel-2 products have the folders, names, grids, values, metadata and checksums of real products."""

from pathlib import Path

import numpy as np
import pytest
import rasterio

from dithc.data.synthetic import synthesize
from dithc.data.synthetic.safe import MAX_PRODUCTS, SafeProduct
from dithc.data.xml import find_text, read_xml

SIZE = 192


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    out = tmp_path_factory.mktemp("inputs") / "s2"
    synthesize("sentinel2", out, seed=3, scenes=2, size=SIZE)
    return sorted(out.glob("*.SAFE"), key=lambda path: read_text(path, "PRODUCT_START_TIME"))


def read_text(product: Path, name: str) -> str:
    text = find_text(read_xml(product / "MTD_MSIL2A.xml"), name)
    assert text is not None
    return text


def read_band(product: Path, name: str) -> np.ndarray:
    (path,) = product.glob(f"GRANULE/*/IMG_DATA/R*/*_{name}.jp2")
    with rasterio.open(path) as source:
        return source.read(1)


def test_grids_share_a_corner_in_utm_and_have_the_named_resolution(products: list[Path]) -> None:
    for product in products:
        tile = read_xml(next(product.glob("GRANULE/*/MTD_TL.xml")))
        left, top = (float(find_text(tile, name) or "nan") for name in ("ULX", "ULY"))
        for path in product.glob("GRANULE/*/IMG_DATA/R*/*.jp2"):
            resolution = int(path.parent.name[1:-1])
            with rasterio.open(path) as source:
                assert f"EPSG:{source.crs.to_epsg()}" == find_text(tile, "HORIZONTAL_CS_CODE")
                assert tuple(source.transform)[:6] == (resolution, 0, left, 0, -resolution, top)
                assert source.shape == (SIZE * 10 // resolution,) * 2
                expected = "uint8" if "SCL" in path.name else "uint16"
                assert set(source.dtypes) == {expected}


def test_values_are_reflectance_with_the_offset_of_1000(products: list[Path]) -> None:
    clear = products[1]
    scl = read_band(clear, "SCL_20m")
    red, near_infrared = read_band(clear, "B04_20m"), read_band(clear, "B8A_20m")
    reflectance = {name: (band.astype(float) - 1000) / 10_000 for name, band in (("R", red), ("N", near_infrared))}
    vegetation = scl == 4
    assert 0.01 < np.median(reflectance["R"][vegetation]) < 0.1
    assert 0.2 < np.median(reflectance["N"][vegetation]) < 0.5
    assert np.median(reflectance["N"][scl == 6]) < 0.03


def test_first_scene_has_nodata_and_a_cloud_and_second_scene_is_clear(products: list[Path]) -> None:
    scl = [read_band(product, "SCL_20m") for product in products]
    assert 0.01 < (scl[0] == 0).mean() < 0.12
    without_value = read_band(products[0], "B8A_20m") == 0
    assert (scl[0][without_value] == 0).all()
    assert 0 < ((scl[0] == 0) & ~without_value).mean() < 0.01  # they disagree along the edge, as in real products
    assert 0.003 < (scl[0] == 9).mean() < 0.12
    assert (scl[0] == 3).any()
    assert not np.isin(scl[1], (0, 3, 8, 9, 10)).any()
    assert (read_band(products[1], "B02_10m") > 0).all()
    cloud = read_band(products[0], "B02_20m")[scl[0] == 9]
    assert np.median(cloud) > 5000


@pytest.mark.filterwarnings("ignore:Dataset has no geotransform")
def test_gdal_recognizes_the_product(products: list[Path]) -> None:
    with rasterio.open(products[0] / "MTD_MSIL2A.xml") as source:
        assert source.driver == "SENTINEL2"
        subdatasets = source.subdatasets
    assert len(subdatasets) == 4  # 10 m, 20 m, 60 m, and a true-color image, which GDAL always lists
    with rasterio.open(subdatasets[0]) as source:
        assert np.array_equal(source.read(1), read_band(products[0], "B04_10m"))


def test_tile_names_and_corners_match_the_real_tiling_grid() -> None:
    first = SafeProduct(index=0, size=96)
    assert (first.tile, first.epsg, first.left_top) == ("50TLL", 32650, (300_000.0, 4_600_020.0))
    assert SafeProduct(index=1, size=96).left_top == (399_960.0, 4_600_020.0)
    assert SafeProduct(index=1, size=96).tile == "50TML"
    every = [SafeProduct(index=index, size=96) for index in range(MAX_PRODUCTS)]
    assert len({product.tile for product in every}) == MAX_PRODUCTS
    # Zone 52: columns A to H, so 600 km is F; an even zone starts its rows at F, so 5200 km (52 % 20 = 12) is T.
    assert every[-1].tile == "52TFT"
