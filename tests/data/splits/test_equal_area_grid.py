"""Cells of the Earth grid: equal areas, independence from UTM zones, and tiles that touch one split only."""

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.spatial import cKDTree

from dithc.config import datasets
from dithc.core.logging import UserError
from dithc.data.grids import degrees, reproject_points
from dithc.data.splits.equal_area_grid import RADIUS_M, EarthGrid
from dithc.data.splits.split import Splitter, TilePlacement, lattice, place_tiles

SETTINGS = datasets.SplitConfig(train_fraction=0.5, val_fraction=0.3, cell_size_m=1500.0)


def ease(longitudes: np.ndarray, latitudes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return sine of authalic latitude and longitude fraction by PROJ's equal-area projection (EPSG:6933)."""
    xs, ys = reproject_points(longitudes.tolist(), latitudes.tolist(), source_epsg=4326, target_epsg=6933)
    _, (north_end,) = reproject_points([0.0], [90.0], source_epsg=4326, target_epsg=6933)
    (east_end,), _ = reproject_points([180.0], [0.0], source_epsg=4326, target_epsg=6933)
    return np.array(ys) / north_end, np.array(xs) / (2 * east_end) + 0.5


@pytest.mark.parametrize("side", [900.0, 10_000.0, 777_777.0])
def test_rows_and_columns_match_an_equal_area_projection(side: float) -> None:
    random = np.random.default_rng(0)
    longitudes, latitudes = random.uniform(-180, 180, 5000), random.uniform(-89.99, 89.99, 5000)
    sine, share = ease(longitudes, latitudes)
    expected_rows = np.floor(6371007.1809 * np.arcsin(sine) / side)
    ends = np.sin(
        np.clip([expected_rows * side / RADIUS_M, (expected_rows + 1) * side / RADIUS_M], -np.pi / 2, np.pi / 2)
    )
    count = np.maximum(
        np.rint((ends[1] - ends[0]) * 510_065_621_724_088 / 2 / side**2), 1
    )  # half of the Earth's area, m2
    rows, columns = EarthGrid(side_m=side).cells(longitudes, latitudes)
    same = (rows == expected_rows) & (columns == np.floor(share * count))
    assert same.mean() > 0.999  # rounding decides for points on a border
    assert abs(count - EarthGrid(side_m=side).count(expected_rows.astype(np.int64))).max() <= 1


def test_cell_count_matches_the_earth_area_and_longitudes_wrap() -> None:
    grid = EarthGrid(side_m=100_000.0)
    first, last = grid.rows(np.array([-90.0, 90.0])).tolist()
    counts = grid.count(np.arange(first, last + 1))
    assert counts.sum() == pytest.approx(510_065_621_724_088 / 1e10, rel=1e-3)
    assert counts.min() >= 1
    assert grid.cells(np.array([-180.0, 180.0, 540.0]), np.array([47.0, 47.0, 47.0]))[1].tolist() == [0, 0, 0]


def utm(zone: int, longitude: float, latitude: float, gsd: float) -> tuple[str, tuple[float, ...]]:
    """Return a UTM system and a north-up grid with its upper-left corner near a place."""
    epsg = (32600 if latitude > 0 else 32700) + zone
    (x,), (y,) = reproject_points([longitude], [latitude], source_epsg=4326, target_epsg=epsg)
    return f"EPSG:{epsg}", (gsd, 0.0, round(x / gsd) * gsd, 0.0, -gsd, round(y / gsd) * gsd)


def pixel_splits(
    splitter: Splitter, place: tuple[str, tuple[float, ...]], placed: TilePlacement, size: int
) -> list[set[str]]:
    """Return the splits of the cells of all pixel centers of each tile."""
    crs, (a, _, c, _, e, f) = place
    grid, found = EarthGrid(side_m=SETTINGS.cell_size_m or 0.0), []
    rows, columns = np.meshgrid(np.arange(size) + 0.5, np.arange(size) + 0.5, indexing="ij")
    for y, x in zip(placed.y, placed.x, strict=True):
        points = degrees((a * (columns + x) + c).ravel(), (e * (rows + y) + f).ravel(), crs=crs)
        cells = set(zip(*(part.tolist() for part in grid.cells(*points)), strict=True))
        found.append({splitter.split_of(f"1500m/{row}/{column}") for row, column in cells})
    return found


PLACES = [
    (32, 11.9, 47.0, 10.0),
    (33, 12.1, 47.0, 10.0),
    (33, 12.0, 47.0, 20.0),
    (60, 179.97, -16.5, 10.0),
    (31, 3.2, 78.0, 10.0),
]


@pytest.mark.parametrize(("zone", "longitude", "latitude", "gsd"), PLACES)
def test_all_pixels_of_a_tile_are_in_cells_of_the_tile_split(
    zone: int, longitude: float, latitude: float, gsd: float
) -> None:
    splitter, place, size = Splitter(SETTINGS, seed=1), utm(zone, longitude, latitude, gsd), 32
    placed = place_tiles(splitter, (400, 420), size=size, stride=size, place=place[0], transform=place[1])
    kept = 0
    for split, found in zip(placed.splits, pixel_splits(splitter, place, placed, size), strict=True):
        kept += split is not None
        assert split is None or found == {split}
    y, x = lattice((400, 420), size=size, stride=size)
    _, unmoved = splitter.assign(y, x, size=size, place=place[0], transform=place[1])
    assert unmoved.count(None) > 5
    assert placed.num_moved > 0.6 * unmoved.count(None)
    assert kept == len(y) - unmoved.count(None) + placed.num_moved
    positions = list(zip(placed.y.tolist(), placed.x.tolist(), strict=True))
    assert len(set(positions)) == len(positions) == len(y)
    assert all(0 <= north_end <= y.max() and 0 <= left <= x.max() for north_end, left in positions)
    middles = {cell for cell, split in zip(placed.cells, placed.splits, strict=True) if split}
    assert len({splitter.split_of(cell) for cell in middles}) > 1


def test_tiles_of_two_splits_are_separated_by_the_buffer() -> None:
    place, size, gsd = utm(32, 10.0, 55.0, 10.0), 16, 10.0
    apart = {}
    for buffer_m in (0.0, 400.0):
        splitter = Splitter(SETTINGS.model_copy(update={"train_fraction": 0.4, "buffer_m": buffer_m}), seed=0)
        placed = place_tiles(splitter, (420, 420), size=size, stride=size, place=place[0], transform=place[1])
        edge = np.array([(v, u) for v in range(size) for u in range(size) if {v, u} & {0, size - 1}])
        tiles = np.stack([placed.y, placed.x], axis=1)[:, np.newaxis] + edge  # (n, 60, 2)
        pixels = {
            name: tiles[[split == name for split in placed.splits]].reshape(-1, 2) for name in ("train", "val", "test")
        }
        assert all(map(len, pixels.values()))
        apart[buffer_m] = gsd * min(
            cKDTree(pixels[one]).query(pixels[other])[0].min() - 2**0.5  # centers are at most half a pixel inside
            for one, other in (("train", "val"), ("train", "test"), ("val", "test"))
        )
    assert apart[400.0] > 399.0  # UTM shortens a meter by up to 0.4 mm
    assert apart[0.0] < 200.0


def test_same_place_in_two_utm_zones_has_the_same_cell() -> None:
    splitter = Splitter(SETTINGS, seed=0)
    for longitude, latitude, zones in ((12.0, 47.3, (32, 33)), (179.9999, -16.0, (60, 1)), (6.0, -33.0, (31, 32))):
        cells = []
        for zone in zones:
            crs, (a, b, c, d, e, f) = utm(zone, longitude, latitude, 0.01)
            tile = np.zeros(1, np.int64)
            cells += splitter.assign(tile, tile, size=2, place=crs, transform=(a, b, c, d, e, f))[0]
        assert cells[0] == cells[1]


def test_joined_cells_have_the_split_of_the_first_cell() -> None:
    cells = [f"1500m/{i}/0" for i in range(60)]
    splitter = Splitter(SETTINGS, seed=0, joined=dict.fromkeys(cells, cells[3]))
    assert {splitter.split_of(cell) for cell in cells} == {Splitter(SETTINGS, seed=0).split_of(cells[3])}


def test_tile_at_a_pole_has_no_split_and_tile_off_the_earth_raises() -> None:
    splitter = Splitter(SETTINGS, seed=0)
    tile = np.zeros(1, np.int64)
    polar = (10.0, 0.0, -160.0, 0.0, -10.0, 160.0)
    assert splitter.assign(tile, tile, size=32, place="EPSG:3413", transform=polar)[1] == [None]
    with pytest.raises(UserError, match=r"(?s)outside of the Earth.*fix:.*cell_size_m"):
        splitter.assign(tile, tile, size=32, place="EPSG:32632", transform=(10.0, 0.0, 1e30, 0.0, -10.0, 1e30))


def test_buffer_without_cell_size_in_meters_is_rejected() -> None:
    with pytest.raises(ValidationError, match="buffer_m"):
        datasets.SplitConfig(buffer_m=100.0)


@pytest.mark.parametrize("side", [900.0, 10_000.0, 777_777.0])
def test_cell_bounds_contain_exactly_the_points_of_the_cell(side: float) -> None:
    grid, random = EarthGrid(side_m=side), np.random.default_rng(1)
    rows, columns = grid.cells(random.uniform(-180, 180, 200), random.uniform(-89.9, 89.9, 200))
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        west, south, east, north = grid.bounds(row, column)
        inside, outside = np.array([0.001, 0.5, 0.999]), np.array([-0.001, 1.001])
        along = (west + inside * (east - west), np.full(3, (south + north) / 2))
        across = (np.full(3, (west + east) / 2), south + inside * (north - south))
        for points in (along, across):
            assert [set(part.tolist()) for part in grid.cells(*points)] == [{row}, {column}]
        if abs(south) < 80 and abs(north) < 80:
            assert row not in grid.rows(south + outside * (north - south))
        if grid.count(np.array(row)) > 1:
            assert column not in grid.cells(west + outside * (east - west), np.full(2, (south + north) / 2))[1]
