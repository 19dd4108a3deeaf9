"""Preview image of a dataset: some of its train tiles as displayed."""

from pathlib import Path

import numpy as np

from dithc.data.pictures import write_png
from dithc.data.tiles.reading import Tiles

GRID_TILES, GRID_COLUMNS, GRID_GAP = 64, 8, 2


def draw_grid(tiles: Tiles, path: Path) -> None:
    """Draw up to 64 evenly selected train tiles as displayed, eight per row."""
    train = tiles.rows("train")
    chosen = train[np.linspace(0, len(train) - 1, min(GRID_TILES, len(train))).round().astype(np.int64)]
    pictures = tiles.rgb(chosen)  # (N, 3, S, S)
    step = tiles.info["size"] + GRID_GAP
    lines = -(-len(chosen) // GRID_COLUMNS)
    grid = np.full((lines * step - GRID_GAP, GRID_COLUMNS * step - GRID_GAP, 3), 255, np.uint8)
    for i, picture in enumerate(pictures):
        top, left = i // GRID_COLUMNS * step, i % GRID_COLUMNS * step
        grid[top : top + step - GRID_GAP, left : left + step - GRID_GAP] = picture.transpose(1, 2, 0)
    write_png(path, grid)
