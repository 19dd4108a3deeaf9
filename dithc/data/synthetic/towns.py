"""Towns: a street grid, lots with rectangular buildings, gardens, parks and a few large halls."""

import numpy as np

from dithc.data.synthetic.cover import Cover, Landscape
from dithc.data.synthetic.noise import F32, Mask, combined, hashed

LOT_M = 26.0
STREET_M = 8.0
# Lots of a block along the street, and rows across it.
LOTS_ALONG, LOTS_ACROSS = 5, 2
# Coarse grids have larger lots, because a house must be a few pixels wide to be visible.
LOT_PIXELS = 4.4
# Blocks belong to a town if the distance of their center, in units of its radius, is below 1 plus half this value.
RAGGEDNESS = 0.4
RIM_REACH = 1 + RAGGEDNESS / 2


def build_town(rng: np.random.Generator, land: Landscape, *, radius_m: float) -> None:
    """Build a town at a random dry place. It replaces all cover except water and sand."""
    scale = max(1.0, LOT_PIXELS * land.grid.gsd / LOT_M)
    row, column = _dry_place(rng, land)
    reach = round((RIM_REACH * radius_m + LOTS_ALONG * LOT_M * scale) / land.grid.gsd)
    part = land.window(row - reach, row + reach, column - reach, column + reach)
    x, y = part.grid.coordinates()
    from_x = x - np.float32((min(column, reach) + 0.5) * land.grid.gsd)
    from_y = y - np.float32((min(row, reach) + 0.5) * land.grid.gsd)
    angle = float(rng.uniform(0, np.pi / 2))
    along = from_x * np.float32(np.cos(angle)) + from_y * np.float32(np.sin(angle))
    across = from_y * np.float32(np.cos(angle)) - from_x * np.float32(np.sin(angle))
    dry = (part.cover != Cover.WATER) & (part.cover != Cover.SAND)
    streets = _Streets(along, across, radius_m=radius_m, scale=scale, salt=int(rng.integers(1 << 40)))
    streets.paint(part, dry & streets.is_town)


def _dry_place(rng: np.random.Generator, land: Landscape) -> tuple[int, int]:
    """Return a random pixel in the middle of the grid, if possible on land."""
    height, width = land.grid.shape
    row, column = height // 2, width // 2
    for _ in range(20):
        row, column = int(height * rng.uniform(0.12, 0.88)), int(width * rng.uniform(0.12, 0.88))
        if land.cover[row, column] != Cover.WATER:
            break
    return row, column


class _Streets:
    """Street grid of a town in rotated coordinates; every layer is (H, W)."""

    def __init__(self, along: F32, across: F32, *, radius_m: float, scale: float, salt: int) -> None:
        self.lot_m = LOT_M * scale
        street = STREET_M * scale
        long, deep = LOTS_ALONG * self.lot_m + street, LOTS_ACROSS * self.lot_m + street
        block_u, block_v = np.floor(along / long), np.floor(across / deep)
        u, v = along - block_u * long - street, across - block_v * deep - street
        self.is_street: Mask = (u < 0) | (v < 0)
        lot_u, lot_v = np.floor(u / self.lot_m), np.floor(v / self.lot_m)
        self.block = combined(block_u.astype(np.int64) + salt, block_v.astype(np.int64))
        self.lot = combined(self.block, lot_u.astype(np.int64), lot_v.astype(np.int64))
        self.in_lot_u, self.in_lot_v = u - (lot_u + 0.5) * self.lot_m, v - (lot_v + 0.5) * self.lot_m
        self.in_block_u, self.in_block_v = u - (long - street) / 2, v - (deep - street) / 2
        self.half_block = ((long - street) / 2, (deep - street) / 2)
        # Distance of the block's center from the center of the town: 0 there, 1 at the rim.
        self.rim = np.hypot((block_u + np.float32(0.5)) * long, (block_v + np.float32(0.5)) * deep) / np.float32(
            radius_m
        )
        self.is_town: Mask = self.rim + np.float32(RAGGEDNESS) * (hashed(self.block, 50) - np.float32(0.5)) < 1

    def paint(self, land: Landscape, town: Mask) -> None:
        use = hashed(self.block, 51) + np.float32(0.25) * (self.rim - np.float32(0.6))
        park, hall = use < 0.10, use > 0.90
        land.paint(town, Cover.GARDEN, 0.85 + 0.3 * hashed(self.lot, 52))
        land.paint(town & park, Cover.MEADOW)
        land.paint(town & park & (hashed(self.lot, 53) < 0.45), Cover.BROADLEAF)
        land.paint(town & hall, Cover.ROAD, 1.1 + 0.2 * hashed(self.block, 54))
        land.paint(town & self.is_street, Cover.ROAD, 1.05)
        house = town & ~park & ~hall & ~self.is_street & self._house_mask()
        roof = hashed(self.lot, 55)
        tone = 0.75 + 0.5 * hashed(self.lot, 56)
        land.paint(house & (roof < 0.6), Cover.ROOF_TILE, tone)
        land.paint(house & (roof >= 0.6) & (roof < 0.92), Cover.ROOF_GRAY, tone)
        land.paint(house & (roof >= 0.92), Cover.ROOF_WHITE, 0.8 * tone)
        big = town & hall & ~self.is_street & self._hall_mask()
        white = hashed(self.block, 57) < 0.5
        land.paint(big & white, Cover.ROOF_WHITE, 0.7 + 0.4 * hashed(self.block, 58))
        land.paint(big & ~white, Cover.ROOF_GRAY, 0.8 + 0.5 * hashed(self.block, 58))

    def _house_mask(self) -> Mask:
        """Return the mask of houses. Lots near the rim of the town are often empty."""
        half_u = self.lot_m * (0.24 + 0.16 * hashed(self.lot, 61))
        half_v = self.lot_m * (0.24 + 0.16 * hashed(self.lot, 62))
        off_u = (hashed(self.lot, 63) - 0.5) * 0.16 * self.lot_m
        off_v = (hashed(self.lot, 64) - 0.5) * 0.16 * self.lot_m
        inside = (np.abs(self.in_lot_u - off_u) < half_u) & (np.abs(self.in_lot_v - off_v) < half_v)
        return np.asarray(inside & (hashed(self.lot, 65) < 1.35 - 0.75 * self.rim))

    def _hall_mask(self) -> Mask:
        share = 0.55 + 0.35 * hashed(self.block, 66)
        half_u, half_v = self.half_block
        inside = (np.abs(self.in_block_u) < share * half_u) & (np.abs(self.in_block_v) < 0.8 * half_v)
        aisle = (hashed(self.block, 67) < 0.5) & (np.abs(self.in_block_u) < 0.07 * half_u)
        return np.asarray(inside & ~aisle)
