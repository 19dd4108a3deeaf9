"""Tests of batches: a pure function of seed and step for any number of ranks and resumption points."""

import numpy as np
import pytest
import torch

from dithc.core.logging import UserError
from dithc.latents.batches import Batches, generator
from dithc.latents.codecs.codec import PixelCodec
from dithc.latents.encode import encode_tiles
from dithc.latents.reader import Latents

CLASSES = 3


class FakeLatents:
    """Posteriors with a mean that encodes the row: negated in mirror images, plus a quarter per turn."""

    def __init__(self, *, count=30, train=None, logvar=0.0, shape=(2, 3, 3), scale=1.0, num_views=2):
        self.folder, self.count, self.shape, self.scale = "folder", count, shape, scale
        self.num_views = num_views
        self.has_logvar, self.num_classes, self._logvar = logvar is not None, CLASSES, logvar
        self.labels = (np.arange(count) % CLASSES).astype(np.int32)
        self._train = np.arange(count) if train is None else np.array(train, dtype=np.int64)

    def rows(self, split):
        assert split == "train"
        return self._train

    def moments(self, rows, *, views):
        mean = np.broadcast_to(
            ((rows + 1 + views // 2 * 0.25) * np.where(views % 2, -1.0, 1.0)).reshape(-1, 1, 1, 1),
            (len(rows), *self.shape),
        )
        parts = [mean] if self._logvar is None else [mean, np.full_like(mean, self._logvar)]
        return np.concatenate(parts, axis=1).astype(np.float16)


def timestep_map(count):
    """Return a uniform map to timesteps 0 to count - 1."""
    return lambda uniform: (uniform * count).astype(np.int64)


def batches(latents=None, **changes):
    chosen = {
        "seed": 1,
        "global_batch_size": 12,
        "label_dropout": 0.1,
        "augment": "mirror",
        "times": timestep_map(1000),
        **changes,
    }
    return Batches(latents or FakeLatents(), **chosen)


def drawn_rows(source, step):
    """Return the rows of a step's samples, read from the mean of latents without noise."""
    return source.batch(step).x[:, 0, 0, 0].abs().floor().long().numpy() - 1


def equal(first, second):
    return all(torch.equal(getattr(first, name), getattr(second, name)) for name in ("x", "y", "t", "noise"))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_rank_slices_concatenate_to_the_complete_batch(ranks):
    source = batches()
    share = 12 // ranks
    for step in (0, 2, 7):
        whole = source.batch(step)
        parts = [batches().batch(step, slice(rank * share, (rank + 1) * share)) for rank in range(ranks)]
        for name in ("x", "y", "t", "noise"):
            assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))


def test_batch_of_a_step_does_not_depend_on_earlier_steps():
    running = batches()
    history = [running.batch(step) for step in range(9)]
    assert equal(batches().batch(8), history[8])
    assert equal(running.batch(3), history[3])


def test_batch_has_expected_dtypes_shapes_and_ranges():
    batch = batches(times=timestep_map(10), global_batch_size=300).batch(0)
    assert (batch.x.dtype, batch.y.dtype, batch.t.dtype, batch.noise.dtype) == (
        torch.float32,
        torch.int64,
        torch.int64,
        torch.float32,
    )
    assert batch.x.shape == batch.noise.shape == (300, 2, 3, 3)
    assert set(batch.t.tolist()) == set(range(10))
    assert set(batch.y.tolist()) == set(range(CLASSES + 1))


@pytest.mark.parametrize("global_batch_size", [1, 7, 12, 30, 70])
def test_every_epoch_visits_each_train_row_once(global_batch_size):
    train = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]
    source = batches(FakeLatents(train=train, logvar=None), global_batch_size=global_batch_size, augment="none")
    stream = np.concatenate([drawn_rows(source, step) for step in range(-(-40 // global_batch_size))])[:40].reshape(
        4, 10
    )
    assert [sorted(epoch.tolist()) for epoch in stream] == [train] * 4
    assert len({tuple(epoch.tolist()) for epoch in stream}) == 4


def test_negative_and_large_seeds_produce_distinct_draws():
    draws = [generator(seed=seed, epoch=0).random() for seed in (-2, -1, 0, 1, 2**63, 2**63 + 1)]
    assert len(set(draws)) == 6


def test_row_has_new_noise_in_every_epoch():
    source = batches(FakeLatents(count=1), global_batch_size=2)
    first, second = source.batch(0).noise
    assert not torch.equal(first, second)


def test_posterior_samples_match_mean_and_standard_deviation():
    latents = FakeLatents(count=1, logvar=-2.0, scale=0.5, shape=(4, 16, 16))
    x = batches(latents, global_batch_size=200, augment="none").batch(0).x
    std = 0.5 * np.exp(-1.0)
    assert abs(float(x.mean()) - 0.5) < 5 * std / x.numel() ** 0.5
    assert abs(float(x.std()) / std - 1) < 5 / (2 * x.numel()) ** 0.5


def test_noise_is_standard_normal_and_independent_of_the_posterior():
    latents = FakeLatents(count=1, shape=(4, 16, 16))
    batch = batches(latents, global_batch_size=200, augment="none").batch(0)
    posterior, count = batch.x - 1.0, batch.noise.numel()
    assert abs(float(batch.noise.mean())) < 5 / count**0.5
    assert abs(float(batch.noise.std()) - 1) < 5 / (2 * count) ** 0.5
    assert abs(float((batch.noise * posterior).mean())) < 5 / count**0.5


def test_flip_and_dropped_label_rates_match_the_settings():
    source = batches(FakeLatents(logvar=None), global_batch_size=4000, label_dropout=0.3)
    batch = source.batch(0)
    assert abs(float((batch.x[:, 0, 0, 0] < 0).float().mean()) - 0.5) < 5 * 0.5 / 4000**0.5
    assert abs(float((batch.y == CLASSES).float().mean()) - 0.3) < 5 * 0.46 / 4000**0.5
    kept = batch.y != CLASSES
    assert torch.equal(batch.y[kept], torch.from_numpy(drawn_rows(source, 0) % CLASSES)[kept])


def test_eight_views_are_uniform_and_share_the_mirror_draw():
    chosen = {"global_batch_size": 4000, "label_dropout": 0.0}
    latents = FakeLatents(logvar=None, num_views=8)
    one, other = (batches(latents, augment=augment, **chosen) for augment in ("dihedral", "mirror"))
    x = one.batch(0).x[:, 0, 0, 0]
    views = 8 * (x.abs() - x.abs().floor()) + (x < 0)  # two per quarter turn
    counts = torch.bincount(views.round().long(), minlength=8).double()
    assert float(((counts - 500) ** 2 / 500).sum()) < 40.0  # chi-squared with 7 degrees of freedom
    is_mirrored = other.batch(0).x[:, 0, 0, 0] < 0
    assert torch.equal(is_mirrored, views < 3.5)  # int(8 u); u < 1/2 is the mirror image
    assert np.array_equal(drawn_rows(one, 0), drawn_rows(other, 0))
    assert torch.equal(one.batch(0).noise, other.batch(0).noise)


def test_missing_encoded_views_raise_an_error():
    with pytest.raises(UserError, match=r"lack views[\s\S]*2 views of each tile[\s\S]*views: 8"):
        batches(augment="dihedral")


def test_times_views_and_label_dropout_do_not_change_other_draws():
    one, other = batches().batch(3), batches(times=lambda uniform: (1000 * uniform).astype(np.float32)).batch(3)
    none = batches(augment="none", label_dropout=0.0).batch(3)
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.y, other.y)
    for batch in (other, none):
        assert torch.equal(one.noise, batch.noise)
    assert torch.equal(one.t, none.t)
    assert other.t.dtype == torch.float32
    assert torch.equal(other.t.long(), one.t)  # from the same draws


def test_empty_train_split_raises_an_error():
    with pytest.raises(UserError, match="0 of 30 rows in the train split"):
        batches(FakeLatents(train=[]))


@pytest.mark.parametrize(("augment", "views"), [("mirror", 2), ("dihedral", 8)])
def test_batches_of_stored_latents_contain_tile_views_and_labels(tmp_path, fake_tiles, augment, views):
    tiles = fake_tiles(count=7, splits="ttv", classes=CLASSES)
    encode_tiles(tiles, PixelCodec(tiles.info), tmp_path, tiles_digest="d", views=views, shard_size=3)
    settings = {"seed": 0, "global_batch_size": 5, "label_dropout": 0.0, "times": timestep_map(1000)}
    source = Batches(Latents(tmp_path), augment=augment, **settings)
    batch = source.batch(0)
    rows = source.order.lookup(np.arange(5))[1]
    assert sorted(rows.tolist()) == tiles.rows("train").tolist()
    for x, y, row in zip(batch.x, batch.y, rows, strict=True):
        image = torch.from_numpy(tiles.scaled(np.array([row]))[0].astype(np.float16)).float()
        sides = [side.rot90(rotations, (-2, -1)) for rotations in range(views // 2) for side in (image, image.flip(-1))]
        assert sum(torch.equal(x, side) for side in sides) == 1
        assert int(y) == tiles.labels[row]
