"""Division of farmland into districts (Voronoi cells with roads along their borders) and rows of parcels."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dithc.data.synthetic.noise import F32, Grid, Mask, band_pass, combined, hashed

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Parcels:
    """District and parcel of each pixel; every layer is (H, W)."""

    district: I64
    parcel: I64
    border: I64  # combines the districts at the nearest border
    to_border_m: F32
    to_edge_m: F32  # of the field
    across_m: F32  # coordinate across the plow rows


def cut(rng: np.random.Generator, grid: Grid, *, district_m: float, length_m: float, breadth_m: float) -> Parcels:
    """Divide a grid into districts, and districts into rotated rows of fields."""
    x, y = grid.coordinates()
    bend = band_pass(rng, grid, wavelength_m=2.5 * district_m) * np.float32(0.07 * district_m)
    district, border, to_border_m = _districts(rng, x + bend, y - bend, district_m=district_m)
    angle = hashed(district, 11) * np.float32(np.pi)
    along = x * np.cos(angle) + y * np.sin(angle)
    across = y * np.cos(angle) - x * np.sin(angle)
    breadth = np.float32(breadth_m) * (np.float32(0.7) + np.float32(0.7) * hashed(district, 12))
    row = np.floor(across / breadth)
    in_row = across - row * breadth
    strip = combined(district, row.astype(np.int64))
    length = np.float32(length_m) * (np.float32(0.6) + np.float32(0.9) * hashed(strip, 13))
    moved = along + hashed(strip, 14) * length
    column = np.floor(moved / length)
    in_column = moved - column * length
    parcel = combined(strip, column.astype(np.int64))
    halved: Mask = hashed(parcel, 15) < 0.3
    breadth = np.where(halved, breadth / 2, breadth)
    upper = halved & (in_row >= breadth)
    in_row = np.where(upper, in_row - breadth, in_row)
    to_edge = np.minimum(np.minimum(in_row, breadth - in_row), np.minimum(in_column, length - in_column))
    return Parcels(
        district=district,
        parcel=combined(parcel, upper.astype(np.int64)),
        border=border,
        to_border_m=to_border_m,
        to_edge_m=np.minimum(to_edge, to_border_m).astype(np.float32),
        across_m=across.astype(np.float32),
    )


def _districts(rng: np.random.Generator, x: F32, y: F32, *, district_m: float) -> tuple[I64, I64, F32]:
    """Return Voronoi cell, border and distance to it, for seeds on a jittered lattice."""
    cell_x = np.floor(x / district_m).astype(np.int64)
    cell_y = np.floor(y / district_m).astype(np.int64)
    low_x, low_y = int(cell_x.min()) - 1, int(cell_y.min()) - 1
    columns, rows = int(cell_x.max()) - low_x + 2, int(cell_y.max()) - low_y + 2
    jitter = rng.uniform(0.1, 0.9, size=(2, rows, columns)).astype(np.float32)
    seeds_x = ((jitter[0] + np.arange(low_x, low_x + columns)[None, :]) * district_m).astype(np.float32)
    seeds_y = ((jitter[1] + np.arange(low_y, low_y + rows)[:, None]) * district_m).astype(np.float32)
    best = np.full(x.shape, np.inf, dtype=np.float32)
    second = best.copy()
    near = np.zeros(x.shape, dtype=np.int64)
    next_near = near.copy()
    for step_y in (-1, 0, 1):
        for step_x in (-1, 0, 1):
            index = (cell_y - low_y + step_y) * columns + (cell_x - low_x + step_x)
            squared = (x - seeds_x.ravel()[index]) ** 2 + (y - seeds_y.ravel()[index]) ** 2
            first, between = squared < best, squared < second
            second = np.where(first, best, np.where(between, squared, second))
            next_near = np.where(first, near, np.where(between, index, next_near))
            best, near = np.where(first, squared, best), np.where(first, index, near)
    apart = np.hypot(
        seeds_x.ravel()[near] - seeds_x.ravel()[next_near], seeds_y.ravel()[near] - seeds_y.ravel()[next_near]
    )
    to_border = ((second - best) / (2 * np.maximum(apart, 1e-3))).astype(np.float32)
    name = rng.integers(1 << 40, size=seeds_x.size)  # random identifiers, because farms must depend on the seed
    near, next_near = name[near], name[next_near]
    return near, combined(np.minimum(near, next_near), np.maximum(near, next_near)), to_border
