"""Nearest real tiles of generated images, in the features of their score.

Legend: n images, m real tiles, d features.
"""

import numpy as np
from numpy.typing import NDArray

from dithc.data import Rows, Tiles
from dithc.report.galleries.image_sets import arrays
from dithc.report.records import EvaluationFacts

AT_ONCE = 4096  # rows of features per block, to limit memory


def nearest_tiles(item: EvaluationFacts, tiles: Tiles, *, seed: int, count: int) -> Rows | str:
    """Return the nearest real tile (n,) of each first image, or the reason why it is unknown."""
    if item.files is None or item.files.features is None or item.files.real_features is None:
        return "the features of both sides are not among the results"
    split, images = item.real_split, item.settings.get("num_real_images")
    rows = tiles.rows(split) if not images else tiles.drawn(split, int(images), seed=seed)  # type: ignore[arg-type]
    first = next(arrays(item.files.features, "features", "shard"), None)
    if first is None:
        return "the features of the images were not stored"
    generated = first[:count].astype(np.float64)  # (n, d)
    best, places, begin = np.full(len(generated), np.inf), np.zeros(len(generated), np.int64), 0
    for block in arrays(item.files.real_features, "features", "shard"):
        for start in range(0, len(block), AT_ONCE):
            part = block[start : start + AT_ONCE].astype(np.float64)  # (m, d)
            squared = _squared(generated, part)
            here = squared.argmin(axis=1)
            closer = squared[np.arange(len(here)), here] < best
            best[closer] = squared[np.arange(len(here)), here][closer]
            places[closer] = here[closer] + begin + start
        begin += len(block)
    if begin != len(rows):
        return f"the features are of {begin:,} real tiles, the dataset has {len(rows):,}"
    found: Rows = rows[places]
    return found


def _squared(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return squared distances (n, m)."""
    center = other.mean(axis=0)  # small lengths reduce the rounding of differences
    one, other = one - center, other - center
    found: NDArray[np.float64] = (one**2).sum(axis=1)[:, None] - 2 * one @ other.T + (other**2).sum(axis=1)
    return found
