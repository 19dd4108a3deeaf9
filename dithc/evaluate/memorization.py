"""Copies of train tiles: images much nearer to one train tile than to any other (Yoon et al. 2023), in any orientation.

Distances are between thumbnails: 5 x 5 mean levels of each band without the mean of the band. They need no network.
Noise, blur and brightness change them little. A thumbnail has 3 x 3 shifted windows, so its 8 orientations are
reversed and transposed thumbnails. The distance of an image to a train tile is the least over windows and orientations.
A blank tile counts as a further train tile, so that an image without structure is not a copy. Held-out tiles are
measured in the same way.

In float64. Legend: n queries, m train tiles, C bands, H, W image, S = 3 windows of 5 cells, d = 25 C.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dithc.evaluate.statistics import FloatArray

COPY_RATIO = 1 / 3  # of the distances to the nearest and second nearest train tile, below which an image is a copy
MAX_QUERIES = 2048  # of a set, evenly spaced: the error of a share is then below 0.011
CELLS, CELL_PARTS, WINDOWS = 5, 4, 3  # per axis: cells of a window, parts of a cell, windows one part apart
ROUNDING = 1e-6  # squared levels, above the error of a distance: equal distances remain equal
BLOCK_ROWS = 1024  # train tiles per block, so that their distances need tens of MB
Blocks = Sequence[NDArray[np.floating]]
Rows = NDArray[np.int64]
Thumbnails = NDArray[np.floating]


def evenly(rows: Rows) -> Rows:
    """Return at most MAX_QUERIES rows, evenly spaced."""
    count = min(len(rows), MAX_QUERIES)
    queries: Rows = rows[np.arange(count) * len(rows) // max(count, 1)]
    return queries


def take(blocks: Blocks, rows: Rows) -> NDArray[np.floating]:
    """Return ascending rows of consecutive blocks."""
    starts = np.cumsum([0, *map(len, blocks)])
    edges = np.searchsorted(rows, starts)
    parts = [
        block[rows[first:last] - start]
        for block, start, first, last in zip(blocks, starts, edges[:-1], edges[1:], strict=False)
    ]
    return np.concatenate(parts)


def thumbnails(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return thumbnails (n, C, S, S) of images (n, C, H, W): the means of the cells of each window."""
    rows, columns = (_cell_weights(size) for size in images.shape[2:])
    means: NDArray[np.float32] = rows @ images.astype(np.float32) @ columns.T
    return means


def _cell_weights(size: int) -> NDArray[np.float32]:
    """Return the weights (S, size) of the pixels of an axis in each cell."""
    part = size / (CELLS * CELL_PARTS + WINDOWS - 1)  # 1/22 of the image
    firsts = np.arange(WINDOWS)[:, None] + CELL_PARTS * np.arange(CELLS)  # (WINDOWS, CELLS)
    starts, pixels = part * firsts.reshape(-1, 1), np.arange(size)
    covered = np.minimum(starts + CELL_PARTS * part, pixels + 1) - np.maximum(starts, pixels)  # (S, size)
    weights: NDArray[np.float32] = (np.maximum(covered, 0.0) / (CELL_PARTS * part)).astype(np.float32)
    return weights


def copied_share(images: Thumbnails, real: Blocks, is_train: NDArray[np.bool_]) -> float:
    """Return the share of copies among images (n, C, S, S), n > 0.

    `real` contains blocks of thumbnails (m, C, S, S); `is_train` selects at least two training rows.
    """
    best = np.full((len(images), 2), np.inf)  # squared distances to the nearest and second nearest train tile
    for rows, part in pieces(real, BLOCK_ROWS):
        tiles = _windows(part[is_train[rows]])[WINDOWS**2 // 2]  # (m, d)
        best = np.partition(np.concatenate([best, _least_squared(images, tiles)], axis=1), 1, axis=1)[:, :2]
    blank = _least_squared(images, np.zeros((1, CELLS**2 * images.shape[1])))[:, 0]
    return float((best[:, 0] < COPY_RATIO**2 * np.minimum(best[:, 1], blank)).mean())


def pieces(blocks: Blocks, size: int) -> Iterator[tuple[slice, NDArray[np.floating]]]:
    """Yield positions and features of at most `size` rows at a time."""
    offset = 0
    for block in blocks:
        for start in range(0, len(block), size):
            part = block[start : start + size]
            yield slice(offset + start, offset + start + len(part)), part
        offset += len(block)


def _least_squared(images: Thumbnails, tiles: FloatArray) -> FloatArray:
    """Return the least squared distance of any view of images to tiles (m, d), (n, m)."""
    least, product = np.full((2, len(images), len(tiles)), np.inf)
    factors = np.vstack([tiles.T, np.ones(len(tiles))])  # (d + 1, m)
    for transposed in (images, images.swapaxes(2, 3)):
        for turned in (transposed[:, :, ::rows, ::columns] for rows in (1, -1) for columns in (1, -1)):
            for view in _windows(turned):
                terms = np.concatenate([-2 * view, (view**2).sum(axis=1, keepdims=True)], axis=1)  # (n, d + 1)
                np.matmul(terms, factors, out=product)
                np.minimum(least, product, out=least)
    squared: FloatArray = np.maximum(least + (tiles**2).sum(axis=1), ROUNDING)
    return squared


def _windows(images: Thumbnails) -> FloatArray:
    """Return the cells of each window without the mean of the band, (WINDOWS^2, n, d)."""
    count, bands = images.shape[:2]
    cells = images.astype(np.float64).reshape(count, bands, WINDOWS, CELLS, WINDOWS, CELLS)
    cells -= cells.mean(axis=(3, 5), keepdims=True)
    return cells.transpose(2, 4, 0, 1, 3, 5).reshape(WINDOWS**2, count, bands * CELLS**2)
