"""Placement of tiles: a lattice from the upper-left corner of a scene, with some tiles moved into one split."""

from dataclasses import dataclass

import numpy as np

from dithc.data.grids import GeoTransform
from dithc.data.places.earth import Ints
from dithc.data.places.split import Splits, Splitter

PARTS = 8
"""Steps per tile side for moves, which cover at most half of the side."""


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Tiles of a scene: row and column of first pixels (n,), cells and splits; the last `moved` left the lattice."""

    y: Ints
    x: Ints
    cells: list[str]
    splits: Splits
    moved: int = 0


def lattice(shape: tuple[int, int], *, size: int, stride: int) -> tuple[Ints, Ints]:
    """Return rows and columns of the first pixels of all tiles of a scene (H, W), row by row."""
    tops, lefts = (np.arange(0, side - size + 1, stride, dtype=np.int64) for side in shape)
    y, x = np.meshgrid(tops, lefts, indexing="ij")
    return y.ravel(), x.ravel()


def place_tiles(
    splitter: Splitter, shape: tuple[int, int], *, size: int, stride: int, place: str, transform: GeoTransform | None
) -> Placed:
    """Return the tiles of a scene (H, W), of `size` pixels at distances of `stride`.

    Cells of the Earth grid do not align with the scene. A lattice tile in two splits moves by at most half its side,
    the shortest way to the split of its center. It then overlaps its neighbors, but no pixel is in tiles of two
    splits. Without a suitable position it stays, without a split. `place` is the coordinate reference system, or the
    scene's name without georeference; `transform` is None then.
    """
    y, x = lattice(shape, size=size, stride=stride)
    cells, splits = splitter.assign(y, x, size=size, place=place, transform=transform)
    placed = Placed(y=y, x=x, cells=cells, splits=splits)
    across = np.array([i for i, split in enumerate(splits) if split is None], dtype=np.int64)
    if transform is None or splitter.settings.cell_m is None or not size // PARTS or not len(across):
        return placed
    shifts = _shifts(size, stride)  # (k, 2)
    to = np.stack([y[across], x[across]], axis=1)[:, np.newaxis] + shifts  # (m, k, 2)
    owner = np.repeat(across, len(shifts))
    to = to.reshape(-1, 2)
    inside = ((to >= 0) & (to <= [y.max(), x.max()])).all(axis=1)
    to, owner = to[inside], owner[inside]
    new_cells, new_splits = splitter.assign(to[:, 0], to[:, 1], size=size, place=place, transform=transform)
    chosen: dict[int, int] = {}
    taken: set[tuple[int, ...]] = set()
    for i, (tile, split) in enumerate(zip(owner.tolist(), new_splits, strict=True)):
        wanted = split is not None and split == splitter.split_of(cells[tile])
        if wanted and tile not in chosen and (position := tuple(to[i].tolist())) not in taken:
            chosen[tile] = i
            taken.add(position)
    kept = [i for i in range(len(y)) if i not in chosen]
    new = sorted(chosen.values())
    return Placed(
        y=np.concatenate([y[kept], to[new, 0]]),
        x=np.concatenate([x[kept], to[new, 1]]),
        cells=[cells[i] for i in kept] + [new_cells[i] for i in new],
        splits=[splits[i] for i in kept] + [new_splits[i] for i in new],
        moved=len(new),
    )


def _shifts(size: int, stride: int) -> Ints:
    """Return moves (k, 2) down and right, nearest first, without moves onto other tiles of the lattice."""
    step = size // PARTS
    steps = np.array([k * step for k in range(-PARTS // 2, PARTS // 2 + 1) if abs(k * step) < stride], np.int64)
    moves = np.stack(np.meshgrid(steps, steps, indexing="ij"), axis=-1).reshape(-1, 2)
    moves = moves[moves.any(axis=1)]
    return moves[np.argsort((moves**2).sum(axis=1), kind="stable")]
