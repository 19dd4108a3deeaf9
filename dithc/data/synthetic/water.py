"""Meandering rivers and lakes, with their banks."""

import numpy as np

from dithc.data.synthetic.cover import Cover, Landscape
from dithc.data.synthetic.noise import F32, Grid, band_pass, fractal


def curve_distance_m(rng: np.random.Generator, grid: Grid, *, wavelength_m: float, amplitude_m: float) -> F32:
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


def pour_river(rng: np.random.Generator, land: Landscape, *, width_m: float) -> None:
    """Draw a river with sand bars and trees. Natural meanders are eleven widths long."""
    grid = land.grid
    distance = curve_distance_m(rng, grid, wavelength_m=11 * width_m, amplitude_m=1.5 * width_m)
    wide = fractal(rng, grid, largest_m=5 * width_m, slope=2.0)
    half = np.float32(width_m / 2) * np.clip(1 + np.float32(0.16) * wide, 0.6, 1.5)
    banks = fractal(rng, grid, largest_m=3 * width_m, slope=2.1)
    wooded = distance < half + np.float32(0.75 * width_m) * np.maximum(banks, 0)
    sandy = distance < half + np.float32(0.22 * width_m) * np.maximum(-banks - np.float32(0.2), 0)
    _fill(land, wooded, Cover.BROADLEAF)
    _fill(land, distance < half + max(4.0, 0.5 * grid.gsd), Cover.MEADOW)
    _fill(land, sandy, Cover.SAND)
    water = distance < half
    _fill(land, water, Cover.WATER)
    depth = np.clip((half - distance) / half, 0, 1)
    land.tone[water] = (1.3 - 0.4 * depth + 0.05 * wide)[water]


def fill_lakes(rng: np.random.Generator, land: Landscape, *, share: float) -> None:
    """Fill the lowest `share` of a random relief with lakes and their shores."""
    bowl = fractal(rng, land.grid, largest_m=1200.0, slope=2.4) + 0.03 * fractal(rng, land.grid, largest_m=150.0)
    shore = np.quantile(bowl, share)
    near = (bowl - shore) / max(float(bowl.std()), 1e-6)
    _fill(land, near < 0.10, Cover.MEADOW)
    _fill(land, near < 0.035, Cover.SAND)
    water = near < 0
    _fill(land, water, Cover.WATER)
    land.tone[water] = (1.15 - 0.35 * np.clip(-near, 0, 1))[water]


def _fill(land: Landscape, where: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], cover: Cover) -> None:
    land.cover[where] = cover
    land.tone[where] = 1.0
