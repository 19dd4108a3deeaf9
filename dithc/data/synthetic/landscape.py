"""Generation of a landscape: fields, then forest, lakes, roads, rivers, towns and a highway, and light last."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.ndimage

from dithc.data.synthetic.cover import ROOFS, TREES, Cover, CoverMap, Landscape, Theme
from dithc.data.synthetic.noise import F32, Mask, PixelGrid, above_share, band_pass, combined, fractal, hashed, shifted
from dithc.data.synthetic.towns import build_town

# Sun in the south-east, as at the morning overpass of Sentinel-2 and Gaofen-2 (about 10:30 local solar time).
SUN_AZIMUTH_DEGREES = 148.0
SUN_ZENITH_DEGREES = 38.0
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


def grow(rng: np.random.Generator, grid: PixelGrid, theme: Theme) -> Landscape:
    """Generate a landscape. All sizes are in meters; the grid sets the resolution."""
    parcels = _cut(rng, grid, district_m=theme.district_m, length_m=theme.length_m, breadth_m=theme.breadth_m)
    height = fractal(rng, grid, largest_m=900.0, slope=2.8) * np.float32(theme.relief_m)
    land = _plant_crops(rng, grid, parcels, theme)
    _edge_fields(land, parcels, theme)
    _plant_forest(rng, land, parcels, theme)
    if theme.lake:
        _fill_lakes(rng, land, share=theme.lake)
    _lay_roads(land, parcels)
    if theme.river_m:
        _pour_river(rng, land, width_m=theme.river_m)
    for _ in range(_number_of_towns(rng, grid, theme)):
        build_town(rng, land, radius_m=theme.town_m * float(rng.uniform(0.75, 1.35)))
    if theme.highway:
        _lay_highway(rng, land)
    _apply_texture(rng, land)
    _apply_light(rng, land, height)
    return land


def _cut(rng: np.random.Generator, grid: PixelGrid, *, district_m: float, length_m: float, breadth_m: float) -> Parcels:
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
    shifted_along = along + hashed(strip, 14) * length
    column = np.floor(shifted_along / length)
    in_column = shifted_along - column * length
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
    flat_x, flat_y = seeds_x.ravel(), seeds_y.ravel()
    best = np.full(x.shape, np.inf, dtype=np.float32)
    second = best.copy()
    near = np.zeros(x.shape, dtype=np.int64)
    next_near = near.copy()
    for step_y in (-1, 0, 1):
        for step_x in (-1, 0, 1):
            index = (cell_y - low_y + step_y) * columns + (cell_x - low_x + step_x)
            squared = (x - flat_x[index]) ** 2 + (y - flat_y[index]) ** 2
            first, between = squared < best, squared < second
            second = np.where(first, best, np.where(between, squared, second))
            next_near = np.where(first, near, np.where(between, index, next_near))
            best, near = np.where(first, squared, best), np.where(first, index, near)
    apart = np.hypot(flat_x[near] - flat_x[next_near], flat_y[near] - flat_y[next_near])
    to_border = ((second - best) / (2 * np.maximum(apart, 1e-3))).astype(np.float32)
    name = rng.integers(1 << 40, size=seeds_x.size)  # random identifiers, because farms must depend on the seed
    near, next_near = name[near], name[next_near]
    return near, combined(np.minimum(near, next_near), np.maximum(near, next_near)), to_border


def _plant_crops(rng: np.random.Generator, grid: PixelGrid, parcels: Parcels, theme: Theme) -> Landscape:
    """Assign crop, tone, vigor and possibly visible plow rows to every parcel."""
    shares = np.cumsum([share for _, share in theme.crops])
    choice = np.searchsorted(shares / shares[-1], hashed(parcels.parcel, 20), side="right")
    kinds = np.array([cover for cover, _ in theme.crops], dtype=np.uint8)
    cover: CoverMap = kinds[np.minimum(choice, len(kinds) - 1)]
    tone = np.float32(0.84) + np.float32(0.32) * hashed(parcels.parcel, 21)
    period = np.maximum(14 + 22 * hashed(parcels.parcel, 22), 3.2 * grid.gsd)
    strength = np.float32(0.11) * np.maximum(hashed(parcels.parcel, 23) - np.float32(0.35), 0)
    tone += strength * np.sin(parcels.across_m * (2 * np.pi) / period)
    soil = fractal(rng, grid, largest_m=400.0, slope=1.6)
    vigor = (hashed(parcels.parcel, 24) - np.float32(0.5)) * np.float32(1.5) + np.float32(0.35) * soil
    tone *= 1 + np.float32(0.035) * soil
    return Landscape(
        grid=grid,
        cover=cover,
        tone=tone.astype(np.float32),
        vigor=vigor.astype(np.float32),
        shade=np.ones(grid.shape, dtype=np.float32),
    )


def _edge_fields(land: Landscape, parcels: Parcels, theme: Theme) -> None:
    """Draw hedges or grass strips between fields, by district."""
    edge = parcels.to_edge_m < max(2.5, 0.4 * land.grid.gsd)
    hedged = hashed(parcels.district, 30) < theme.hedged
    gap = hashed(parcels.parcel, 31) < 0.75
    land.tone[edge & ~hedged] *= np.float32(0.9)
    land.paint(edge & hedged & gap, Cover.HEDGE)


def _plant_forest(rng: np.random.Generator, land: Landscape, parcels: Parcels, theme: Theme) -> None:
    """Plant woods by a smooth noise. Offsets per parcel make some edges straight."""
    wild = fractal(rng, land.grid, largest_m=1400.0, slope=1.8) + 0.7 * (hashed(parcels.parcel, 32) - np.float32(0.5))
    wood = above_share(wild.astype(np.float32), theme.forest)
    needles = above_share(fractal(rng, land.grid, largest_m=600.0, slope=1.4), theme.conifer)
    land.paint(wood & ~needles, Cover.BROADLEAF)
    land.paint(wood & needles, Cover.CONIFER)
    land.vigor[wood] *= np.float32(0.4)


def _lay_roads(land: Landscape, parcels: Parcels) -> None:
    """Draw roads (40%) and tracks (35%) along district borders."""
    kind = hashed(parcels.border, 33)
    half_width = max(3.5, 0.5 * land.grid.gsd)
    on_border = (parcels.to_border_m < half_width) & (land.cover != Cover.WATER)
    land.paint(on_border & (kind < 0.4), Cover.ROAD)
    land.paint(on_border & (kind >= 0.4) & (kind < 0.75), Cover.TRACK)


def _curve_distance_m(rng: np.random.Generator, grid: PixelGrid, *, wavelength_m: float, amplitude_m: float) -> F32:
    """Return the first-order distance (H, W) in meters from a winding line.

    The line is the zero level of a tilted plane plus noise of the given wavelength and amplitude. Steep noise folds it
    into loops, and cuts off some of them as oxbow lakes.
    """
    x, y = grid.coordinates()
    angle = float(rng.uniform(0, np.pi))
    middle_x, middle_y = (n * grid.gsd * rng.uniform(0.35, 0.65) for n in (grid.width, grid.height))
    level = (x - middle_x) * np.sin(angle) + (y - middle_y) * np.cos(angle)
    level = level + band_pass(rng, grid, wavelength_m=wavelength_m, width=0.3) * amplitude_m
    down, right = np.gradient(level, grid.gsd)
    return np.asarray(np.abs(level) / np.maximum(np.hypot(down, right), 0.3), dtype=np.float32)


def _pour_river(rng: np.random.Generator, land: Landscape, *, width_m: float) -> None:
    """Draw a river with sand bars and trees. Natural meanders are eleven widths long."""
    grid = land.grid
    distance = _curve_distance_m(rng, grid, wavelength_m=11 * width_m, amplitude_m=1.5 * width_m)
    wide = fractal(rng, grid, largest_m=5 * width_m, slope=2.0)
    half = np.float32(width_m / 2) * np.clip(1 + np.float32(0.16) * wide, 0.6, 1.5)
    banks = fractal(rng, grid, largest_m=3 * width_m, slope=2.1)
    wooded = distance < half + np.float32(0.75 * width_m) * np.maximum(banks, 0)
    sandy = distance < half + np.float32(0.22 * width_m) * np.maximum(-banks - np.float32(0.2), 0)
    land.paint(wooded, Cover.BROADLEAF)
    land.paint(distance < half + max(4.0, 0.5 * grid.gsd), Cover.MEADOW)
    land.paint(sandy, Cover.SAND)
    water = distance < half
    land.paint(water, Cover.WATER)
    depth = np.clip((half - distance) / half, 0, 1)
    land.tone[water] = (1.3 - 0.4 * depth + 0.05 * wide)[water]


def _fill_lakes(rng: np.random.Generator, land: Landscape, *, share: float) -> None:
    """Fill the lowest `share` of a random relief with lakes and their shores."""
    bowl = fractal(rng, land.grid, largest_m=1200.0, slope=2.4) + 0.03 * fractal(rng, land.grid, largest_m=150.0)
    shore = np.quantile(bowl, share)
    near = (bowl - shore) / max(float(bowl.std()), 1e-6)
    land.paint(near < 0.10, Cover.MEADOW)
    land.paint(near < 0.035, Cover.SAND)
    water = near < 0
    land.paint(water, Cover.WATER)
    land.tone[water] = (1.15 - 0.35 * np.clip(-near, 0, 1))[water]


def _lay_highway(rng: np.random.Generator, land: Landscape) -> None:
    distance = _curve_distance_m(rng, land.grid, wavelength_m=3200.0, amplitude_m=160.0)
    half_width = max(13.0, 0.9 * land.grid.gsd)
    land.paint(distance < 1.7 * half_width, Cover.MEADOW)
    land.paint(distance < half_width, Cover.ROAD)
    land.paint(distance < 0.12 * half_width, Cover.MEADOW)


def _number_of_towns(rng: np.random.Generator, grid: PixelGrid, theme: Theme) -> int:
    if not theme.towns_per_km2:
        return 0
    area_km2 = grid.height * grid.width * grid.gsd**2 / 1e6
    return max(1, int(rng.poisson(theme.towns_per_km2 * area_km2)))


def _apply_texture(rng: np.random.Generator, land: Landscape) -> None:
    """Add grain: strong in woods and gardens, weak on fields, roads and water."""
    grain = band_pass(rng, land.grid, wavelength_m=max(9.0, 2.6 * land.grid.gsd), width=0.5)
    patches = fractal(rng, land.grid, largest_m=90.0, slope=1.2)
    strength = np.full(len(Cover), 0.025, dtype=np.float32)
    for cover, amount in ((Cover.BROADLEAF, 0.15), (Cover.CONIFER, 0.12), (Cover.HEDGE, 0.1), (Cover.GARDEN, 0.16)):
        strength[cover] = amount
    strength[Cover.SAND] = 0.07
    strength[[Cover.ROAD, Cover.WATER]] = 0.012
    land.tone *= np.maximum(1 + strength[land.cover] * (np.float32(0.8) * grain + np.float32(0.4) * patches), 0.2)


def _apply_light(rng: np.random.Generator, land: Landscape, height: F32) -> None:
    """Shade slopes, add tree crowns, and cast shadows of trees and roofs."""
    gsd, zenith, azimuth = land.grid.gsd, np.deg2rad(SUN_ZENITH_DEGREES), np.deg2rad(SUN_AZIMUTH_DEGREES)
    trees, roofs = np.isin(land.cover, TREES), np.isin(land.cover, ROOFS)
    crowns = band_pass(rng, land.grid, wavelength_m=max(11.0, 3.0 * gsd), width=0.3)
    surface = height + np.where(trees, crowns * np.float32(0.045 * max(11.0, 3.0 * gsd)), 0)
    surface = np.where(land.cover == Cover.WATER, scipy.ndimage.gaussian_filter(height, 8), surface)
    down, right = np.gradient(surface, gsd)
    flat = land.cover == Cover.WATER
    towards = np.cos(zenith) - np.sin(zenith) * (right * np.sin(azimuth) - down * np.cos(azimuth))
    lit = np.clip(towards / np.sqrt(1 + right**2 + down**2) / np.cos(zenith), 0.25, 1.45)
    lit[flat | roofs] = 1.0
    land.shade *= lit.astype(np.float32)
    shadow = np.zeros_like(trees)
    for tall, meters in ((trees, 11.0), (roofs, 7.0)):
        shadow |= _cast_shadow(tall, length_m=max(meters, 0.55 * gsd), azimuth=float(azimuth), gsd=gsd)
    land.shade[shadow & ~trees & ~roofs] *= np.float32(0.5)


def _cast_shadow(tall: Mask, *, length_m: float, azimuth: float, gsd: float) -> Mask:
    reached = np.zeros_like(tall)
    for step in range(1, round(length_m / gsd) + 1):
        reached |= shifted(tall, down=round(step * np.cos(azimuth)), right=round(-step * np.sin(azimuth)))
    return reached
