"""Nearest real tiles of generated images, in the features of their score.

Legend: n images, m real tiles, d features.
"""

import numpy as np
from scipy.spatial.distance import cdist

from dithc.data import Rows, Tiles
from dithc.report.galleries.image_sets import arrays
from dithc.report.records import EvaluationFacts


def nearest_tiles(item: EvaluationFacts, tiles: Tiles, *, seed: int, count: int) -> Rows | str:
    """Return the nearest real tile (n,) of each first image, or the reason why it is unknown."""
    if item.files is None or item.files.features is None or item.files.real_features is None:
        return "the features of both sides are not among the results"
    split, images = item.real_split, item.settings.get("num_real_images")
    rows = tiles.rows(split) if not images else tiles.drawn(split, int(images), seed=seed)  # type: ignore[arg-type]
    first = next(arrays(item.files.features, "features", "shard"), None)
    if first is None:
        return "the features of the images were not stored"
    shards = arrays(item.files.real_features, "features", "shard")
    distances = np.concatenate([cdist(first[:count], shard, "sqeuclidean") for shard in shards], axis=1)  # (n, m)
    if distances.shape[1] != len(rows):
        return f"the features are of {distances.shape[1]:,} real tiles, the dataset has {len(rows):,}"
    nearest_rows: Rows = rows[distances.argmin(axis=1)]
    return nearest_rows
