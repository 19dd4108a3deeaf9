"""Tests of clusters: statistics without orientation, equal sizes, and separation of kinds of tiles."""

import numpy as np
import pytest
import torch
from PIL import Image

from dithc.core.logging import UserError
from dithc.latents.clusters import cluster_labels, tile_statistics
from dithc.latents.codecs.codec import PixelCodec
from dithc.latents.encode import GRID_FILE, apply_view, encode_tiles
from dithc.latents.reader import Latents


def test_statistics_are_equal_for_all_views_of_a_tile():
    tile = np.random.default_rng(0).uniform(-1, 1, (3, 4, 16, 16)).astype(np.float32)
    plain = np.concatenate(tile_statistics(tile), axis=1)
    assert plain.shape == (3, 4 + 4 * 4 + 4)
    for view in range(1, 8):
        turned = np.ascontiguousarray(apply_view(torch.from_numpy(tile), view).numpy())
        np.testing.assert_allclose(np.concatenate(tile_statistics(turned), axis=1), plain, rtol=1e-5, atol=1e-6)


def test_coherence_is_one_for_parallel_edges_and_small_for_noise():
    diagonal = np.add.outer(np.arange(64), np.arange(64))[None, None] / 64 - 1
    noise = np.random.default_rng(0).uniform(-1, 1, (1, 1, 64, 64))
    _, _, coherence = tile_statistics(np.concatenate([diagonal, noise]).astype(np.float32))
    np.testing.assert_allclose(coherence[0], 1.0, atol=0.01)
    assert coherence[1, 0] < 0.1


@pytest.mark.parametrize("count", [2, 4, 8])
def test_each_cluster_has_an_equal_share_of_the_train_tiles(fake_tiles, count):
    tiles = fake_tiles(count=61, splits="ttve", classes=1)
    labels = cluster_labels(tiles, count)
    sizes = np.bincount(labels[tiles.rows("train")], minlength=count)
    assert (labels.dtype, labels.shape) == (np.int32, (61,))
    assert labels.max() < count
    assert sizes.max() - sizes.min() <= 1


def test_kinds_of_tiles_are_separated_and_other_tiles_follow(fake_tiles):
    tiles = fake_tiles(count=80, splits="ttvv", classes=1)
    tiles.physical[:] = 0.5
    rough = np.arange(80) % 2 == 0
    noise = np.random.default_rng(0).uniform(-0.4, 0.4, tiles.physical[rough].shape)
    tiles.physical[rough] = np.clip(tiles.physical[rough] + noise, 0, 1)
    labels = cluster_labels(tiles, 2)
    assert len(np.unique(labels[rough])) == 1
    assert len(np.unique(labels[~rough])) == 1
    assert labels[0] != labels[1]


def test_identical_tiles_have_equal_shares(fake_tiles):
    tiles = fake_tiles(count=12, classes=1)
    tiles.physical[:] = tiles.physical[0]
    assert np.array_equal(np.bincount(cluster_labels(tiles, 4)), [3, 3, 3, 3])


def test_latents_have_the_clusters_as_classes(tmp_path, fake_tiles):
    tiles = fake_tiles(count=20, classes=1)
    numbers = encode_tiles(tiles, PixelCodec(tiles.info), tmp_path, tiles_digest="0123456789ab", clusters=4)
    latents = Latents(tmp_path)
    assert numbers["num_classes"] == latents.num_classes == 4
    assert np.array_equal(latents.labels, cluster_labels(tiles, 4))
    height, width, _ = np.asarray(Image.open(tmp_path / GRID_FILE)).shape
    side = tiles.info["size"]
    assert (height // side, width // side) == (4, 5)  # each cluster has five train tiles


def test_more_clusters_than_train_tiles_are_rejected(tmp_path, fake_tiles):
    tiles = fake_tiles(count=20, splits="tv", classes=1)
    with pytest.raises(UserError, match="16 clusters of 10 train tiles"):
        encode_tiles(tiles, PixelCodec(tiles.info), tmp_path, tiles_digest="0123456789ab", clusters=16)
    assert not list(tmp_path.iterdir())
