"""Tests of codec training: reproducibility, measures, and complete output."""

import json
import shutil

import numpy as np
import pytest
import torch

from dithc.config import codecs
from dithc.core.artifacts import outputs
from dithc.core.logging import UserError, read_metrics
from dithc.latents import open_codec
from dithc.latents.batches import SampleOrder
from dithc.latents.codec_training import training
from dithc.latents.codec_training.training import Crops, train_codec
from tests.latents.conftest import FakeTiles

FILES = {"codec.json", "config.json", "autoencoder.safetensors", "grid.png", "bands.png"}


def content(folder):
    return {path.name: path.read_bytes() for path in outputs.files_of(folder) if path.parent == folder}


def names(folder):
    return {path.name for path in folder.iterdir()} - {outputs.MARKER_FILE}


def settings(**changes):
    small = {
        "downsampling_factor": 2,
        "hidden_channels": 8,
        "latent_channels": 4,
        "steps": 4,
        "batch_size": 4,
        "train_dataset": "planes",
    }
    return codecs.KlVaeConfig(kind="kl-vae", **{**small, **changes})


def planes():
    return FakeTiles(splits="ttv")


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("codec")
    return folder, train_codec(settings(), planes(), folder, seed=1)


@pytest.fixture
def trained_codec(trained_once, tmp_path):
    """Return tiles, a private copy of a codec folder trained on them, and its numbers."""
    folder, numbers = trained_once
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return planes(), tmp_path, numbers


def test_trained_codec_opens_with_the_configured_shapes(trained_codec):
    tiles, folder, numbers = trained_codec
    assert names(folder) == FILES | {"metrics"}
    codec = open_codec(settings(), info=tiles.info, folder=folder)
    description = json.loads((folder / "codec.json").read_text())
    assert (codec.id, codec.scale, list(codec.bands)) == (description["id"], 1.0, description["bands"])
    assert (codec.in_bands, codec.latent_channels, codec.downsampling_factor, codec.has_logvar) == (4, 4, 2, True)
    mean, logvar = codec.encode(codec.input(tiles, np.arange(2)))
    assert mean.shape == logvar.shape == (2, 4, 8, 8)
    assert codec.decode(mean * codec.scale).shape == (2, 4, 16, 16)
    assert codec.to_rgb(codec.decode(mean * codec.scale)).shape == (2, 3, 16, 16)
    assert numbers["steps"] == 4
    assert numbers["psnr_split"] == "val"


def test_latents_are_standardized_on_train_tiles(trained_codec):
    tiles, folder, _ = trained_codec
    codec = open_codec(settings(), info=tiles.info, folder=folder)
    mean, logvar = codec.encode(codec.input(tiles, tiles.rows("train")))
    std = (mean.var(dim=(0, 2, 3), correction=0) + logvar.exp().mean(dim=(0, 2, 3))).sqrt()
    torch.testing.assert_close(std * codec.scale, torch.ones(4), rtol=0.02, atol=0)
    assert float(mean.mean(dim=(0, 2, 3)).abs().max()) < 0.02


@pytest.mark.slow
def test_equal_seeds_train_equal_codecs_and_preserve_the_global_rng_state(tmp_path, fake_tiles):
    tiles = fake_tiles()
    ids = []
    for name, seed in [("a", 3), ("b", 3), ("c", 4)]:
        torch.manual_seed(len(ids))  # the state of the caller's generator must not matter
        state = torch.get_rng_state()
        train_codec(settings(), tiles, tmp_path / name, seed=seed)
        assert torch.equal(torch.get_rng_state(), state)
        ids.append(json.loads((tmp_path / name / "codec.json").read_text())["id"])
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.slow
def test_longer_training_improves_psnr(tmp_path, fake_tiles):
    tiles = fake_tiles(count=16)
    short = train_codec(settings(steps=2, batch_size=8), tiles, tmp_path / "short", seed=0)
    longer = train_codec(settings(steps=60, batch_size=8, lr=2e-2), tiles, tmp_path / "long", seed=0)
    assert longer["psnr_db"] > short["psnr_db"] + 0.8
    assert longer["psnr_db"] > longer["psnr_linear_db"] + 0.8
    assert longer["psnr_linear_db"] == short["psnr_linear_db"]


@pytest.mark.parametrize("orientations", [2, 8])
def test_training_batch_contains_crops_in_configured_orientations(orientations, monkeypatch, fake_tiles):
    monkeypatch.setattr(codecs, "CROP", 8)
    order = SampleOrder(np.arange(4), seed=0)
    tiles = fake_tiles(count=4, size=16)
    x = Crops(settings(downsampling_factor=4, orientations=orientations), tiles, seed=0).batch(0)
    assert x.shape == (4, 4, 8, 8)
    whole = torch.from_numpy(tiles.scaled(order.lookup(np.arange(4))[1]))
    for crop, image in zip(x, whole, strict=True):
        places = [image[:, top : top + 8, left : left + 8] for top in (0, 4, 8) for left in (0, 4, 8)]
        views = [
            torch.rot90(view, rotations, (1, 2))
            for place in places
            for view in (place, place.flip(-1))
            for rotations in range(orientations // 2)
        ]
        assert any(torch.equal(crop, view) for view in views)


def test_tile_size_must_be_a_multiple_of_the_factor(tmp_path, fake_tiles):
    with pytest.raises(UserError, match="multiples of 4"):
        train_codec(settings(downsampling_factor=4), fake_tiles(size=18), tmp_path, seed=0)


def test_empty_train_split_raises_an_error(tmp_path, fake_tiles):
    with pytest.raises(UserError, match="no training tiles"):
        train_codec(settings(), fake_tiles(splits="v"), tmp_path, seed=0)


def test_non_finite_tiles_are_rejected(tmp_path, fake_tiles):
    tiles = fake_tiles()
    tiles.physical[:] = np.nan
    with pytest.raises(UserError, match="not finite"):
        train_codec(settings(), tiles, tmp_path / "out", seed=0)
    assert not (tmp_path / "out").exists()


def test_diverged_training_raises_and_leaves_only_metrics(tmp_path, fake_tiles, monkeypatch):
    batch = Crops.batch
    monkeypatch.setattr(Crops, "batch", lambda crops, step: batch(crops, step) * torch.inf)
    with pytest.raises(UserError, match="diverged at step 0"):
        train_codec(settings(), fake_tiles(), tmp_path / "out", seed=0)
    assert names(tmp_path / "out") == {"metrics"}


def test_full_disk_preserves_the_existing_codec(trained_codec, limit_files):
    tiles, folder, _ = trained_codec
    before = content(folder)
    limit_files(10_000)
    with pytest.raises(UserError, match="could not be written"):
        train_codec(settings(), tiles, folder, seed=2)
    assert content(folder) == before


def test_interrupted_training_preserves_the_existing_codec(monkeypatch, trained_codec):
    tiles, folder, _ = trained_codec
    before = content(folder)

    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "_draw_images", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_codec(settings(), tiles, folder, seed=2)
    assert content(folder) == before


def test_altered_weights_are_rejected(trained_codec):
    tiles, folder, _ = trained_codec
    path = folder / "autoencoder.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match=r"does not match its codec\.json"):
        open_codec(settings(), info=tiles.info, folder=folder)


def test_missing_codec_json_is_rejected(trained_codec):
    tiles, folder, _ = trained_codec
    (folder / "codec.json").unlink()
    with pytest.raises(UserError, match=r"codec\.json cannot be read"):
        open_codec(settings(), info=tiles.info, folder=folder)


def test_codec_with_a_different_number_of_bands_is_rejected(trained_codec, fake_tiles):
    other = fake_tiles(bands=("R", "G", "B"))
    with pytest.raises(UserError, match="number of bands of the codec"):
        open_codec(settings(), info=other.info, folder=trained_codec[1])


def test_codec_with_different_band_names_logs_a_warning(trained_codec, fake_tiles, caplog):
    other = fake_tiles(bands=("B", "G", "R", "NIR"))
    with caplog.at_level("WARNING", logger="dithc"):
        codec = open_codec(settings(), info=other.info, folder=trained_codec[1])
    assert codec.bands == ("B", "G", "R", "NIR")
    assert "trained on bands B02" in caplog.text


def test_metrics_contain_every_step_of_the_last_training_run(trained_codec):
    tiles, folder, _ = trained_codec
    assert len(read_metrics(folder / "metrics")) == 4
    train_codec(settings(steps=3), tiles, folder, seed=1)
    rows = read_metrics(folder / "metrics")
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(row["loss"] > 0 and row["lr"] >= 0 for row in rows)
    assert list((folder / "metrics" / "tensorboard").glob("events.*"))


@pytest.mark.slow
def test_leftover_files_of_a_killed_training_run_are_removed(tmp_path, fake_tiles):
    outputs.make_scratch(tmp_path / ".build")
    (tmp_path / ".codec.json.tmp.host.1").touch()
    train_codec(settings(), fake_tiles(), tmp_path, seed=1)
    assert names(tmp_path) == FILES | {"metrics"}
