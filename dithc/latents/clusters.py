"""Classes of unlabeled tiles: groups of equal size with similar color, texture and share of parallel edges.

A diffusion network that is conditioned on clusters learns the share of each kind of image (Hu et al. 2023,
arXiv 2210.06462). The statistics are equal for all views of a tile, if its side is a multiple of 8.

Legend: N tiles, C bands, H, W tile, F statistics.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from dithc.core.logging import progress, user_error
from dithc.data import Rows, Tiles, downsample, mosaic, write_png

FACTORS = 1, 2, 4, 8  # sides of the averaged squares in pixels; gradients are measured between averages
BATCH_VALUES = 1 << 22  # of pixels and bands in one batch
SMALLEST_ENERGY = 1e-6  # of gradients, in squares of the range from -1 to 1
GRID_ROWS, GRID_COLUMNS, GRID_SIDE = 16, 8, 128  # clusters, tiles of each, pixels of a tile


def cluster_labels(tiles: Tiles, count: int) -> npt.NDArray[np.int32]:
    """Assign each tile to one of `count` clusters, a power of two; return labels int32 (N,).

    The train tiles are halved at the median of their first principal component, and each half again in the same way. The
    numbers of train tiles in the clusters therefore differ by at most one. The other tiles follow the same thresholds.

    Raises:
        UserError: There are fewer train tiles than clusters.
    """
    train = tiles.rows("train")
    if len(train) < count:
        raise user_error(
            "`clusters` of the dataset",
            got=f"{count} clusters of {len(train)} train tiles",
            expected="at least one train tile per cluster",
            fix="reduce `clusters`, or add scenes",
        )
    batch = max(1, BATCH_VALUES // (len(tiles.info["bands"]) * tiles.info["size"] ** 2))
    parts = []
    with progress(total=tiles.count, label="clusters", unit="tile") as bar:
        for start in range(0, tiles.count, batch):
            rows = np.arange(start, min(start + batch, tiles.count), dtype=np.int64)
            parts.append(tile_statistics(tiles.scaled(rows)))
            bar.update(len(rows))
    color, energy, coherence = (np.concatenate(group) for group in zip(*parts, strict=True))
    statistics = np.concatenate([_standardized(group, train) for group in (color, energy, coherence)], axis=1)
    is_train = np.zeros(tiles.count, np.bool_)
    is_train[train] = True
    groups = [np.arange(tiles.count, dtype=np.int64)]
    while len(groups) < count:
        groups = [half for rows in groups for half in _halves(rows, statistics[rows], is_train[rows])]
    labels = np.empty(tiles.count, np.int32)
    for label, rows in enumerate(groups):
        labels[rows] = label
    return labels


def draw_clusters(tiles: Tiles, labels: npt.NDArray[np.int32], path: Path) -> None:
    """Draw train tiles as PNG, one cluster per row; of many clusters at most 16, evenly spaced in label order."""
    train = tiles.rows("train")
    clusters = np.unique(labels[train])
    members = [train[labels[train] == label] for label in clusters[:: -(-len(clusters) // GRID_ROWS)]]
    columns = min(GRID_COLUMNS, *map(len, members))
    drawn = (tiles.rgb(rows[np.arange(columns) * len(rows) // columns]) for rows in members)
    write_png(path, mosaic(np.concatenate([downsample(rgb, GRID_SIDE) for rgb in drawn]), columns=columns))


def tile_statistics(x: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float64], ...]:
    """Return the statistics of tiles (N, C, H, W) in three groups, (N, F) each; equal for all views of a tile.

    Mean of each band; log energy of the gradients of each band after averaging by each of `FACTORS`; coherence of the
    structure tensor of all bands (0: no direction, 1: parallel edges) at the same scales.
    """
    values = x.astype(np.float64)
    n, channels, height, width = values.shape
    energies, coherences = [], []
    for factor in FACTORS:
        h, w = height // factor, width // factor
        if min(h, w) < 2:
            break
        cropped = values[:, :, : h * factor, : w * factor]
        average = cropped.reshape(n, channels, h, factor, w, factor).mean(axis=(3, 5))
        # Mean of the two differences of each 2 x 2 square in each direction, at its center
        dx = (average[:, :, 1:, 1:] + average[:, :, :-1, 1:] - average[:, :, 1:, :-1] - average[:, :, :-1, :-1]) / 2
        dy = (average[:, :, 1:, 1:] + average[:, :, 1:, :-1] - average[:, :, :-1, 1:] - average[:, :, :-1, :-1]) / 2
        xx, yy, xy = ((a * b).mean(axis=(2, 3)) for a, b in ((dx, dx), (dy, dy), (dx, dy)))  # (N, C)
        energies.append(np.log(xx + yy + SMALLEST_ENERGY))
        difference, sum_, cross = (xx - yy).sum(axis=1), (xx + yy).sum(axis=1), 2 * xy.sum(axis=1)  # (N)
        coherences.append(np.hypot(difference, cross) / (sum_ + SMALLEST_ENERGY))
    return values.mean(axis=(2, 3)), np.concatenate(energies, axis=1), np.stack(coherences, axis=1)


def _standardized(group: npt.NDArray[np.float64], train: Rows) -> npt.NDArray[np.float64]:
    """Return statistics (N, F) with mean 0 and deviation 1 over the train tiles; the group has a total variance of 1."""
    mean, deviation = group[train].mean(axis=0), group[train].std(axis=0)
    scaled: npt.NDArray[np.float64] = (group - mean) / np.maximum(deviation, 1e-9) / np.sqrt(group.shape[1])
    return scaled


def _halves(rows: Rows, statistics: npt.NDArray[np.float64], is_train: npt.NDArray[np.bool_]) -> tuple[Rows, Rows]:
    """Divide rows (n,) with statistics (n, F) at the median of the train rows along their first principal component."""
    train = np.flatnonzero(is_train)
    centered = statistics - statistics[train].mean(axis=0)
    direction = np.linalg.eigh(centered[train].T @ centered[train])[1][:, -1]
    direction *= np.sign(direction[np.abs(direction).argmax()])  # independent of the sign that LAPACK chooses
    position = (centered @ direction).round(9)  # independent of the last digits of BLAS
    order = train[np.argsort(position[train], kind="stable")]
    middle = len(order) // 2
    upper = position > position[order[middle - 1 : middle + 1]].mean()
    upper[order] = np.arange(len(order)) >= middle  # equal sizes, also of identical tiles
    return rows[~upper], rows[upper]
