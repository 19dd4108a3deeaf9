"""Tests of the latents stage and its reader: exact round trip, and rejection of damaged files."""

import logging

import numpy as np
import pytest
import torch

from dithc.core.artifacts import outputs
from dithc.core.logging import UserError
from dithc.latents.codecs.autoencoder import Autoencoder, Sizes
from dithc.latents.codecs.codec import KlCodec, PixelCodec
from dithc.latents.encode import encode_tiles
from dithc.latents.reader import Latents

DIGEST = "0123456789ab"


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    network = Autoencoder(Sizes(bands=4, downsampling_factor=2, latent_channels=4, hidden_channels=8, decoder_blocks=1))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return network.eval().requires_grad_(False)


@pytest.fixture
def codec(net, fake_tiles):
    info = fake_tiles().info
    return KlCodec(net, info, id="kl-vae-test", scale=0.5, bands=tuple(info["bands"]))


@pytest.fixture
def encoded_latents(tmp_path, fake_tiles, codec):
    tiles = fake_tiles(count=10, splits="ttve", classes=3)
    numbers = encode_tiles(tiles, codec, tmp_path, tiles_digest=DIGEST, shard_size=4, batch=3)
    return tiles, tmp_path, numbers


def test_shards_contain_mean_and_log_variance_in_fp16(encoded_latents, codec):
    tiles, folder, numbers = encoded_latents
    latents = Latents(folder, codec_id="kl-vae-test", tiles_digest=DIGEST)
    assert numbers["count"] == latents.count == 10
    assert numbers["shape"] == [4, 8, 8]
    assert latents.shape == (4, 8, 8)
    assert latents.scale == 0.5
    assert latents.num_classes == 3
    assert [shard["rows"] for shard in latents.info["shards"]] == [4, 4, 2]
    rows = np.arange(10)
    mean, logvar = codec.encode(codec.input(tiles, rows))
    expected = torch.cat([mean, logvar], dim=1).numpy()
    np.testing.assert_allclose(latents.moments(rows).astype(np.float32), expected, rtol=2e-3, atol=2e-3)


def test_all_rotations_of_tile_and_mirror_image_are_encoded(tmp_path, fake_tiles):
    tiles = fake_tiles(count=5)
    encode_tiles(tiles, PixelCodec(tiles.info), tmp_path, tiles_digest=DIGEST, views=8, shard_size=2, batch=2)
    latents = Latents(tmp_path)
    assert (latents.num_views, latents.has_logvar, latents.shape) == (8, False, (4, 16, 16))
    rows = np.array([3, 1, 4])
    upright = torch.from_numpy(tiles.scaled(rows)).half()
    mirrored = upright.flip(-1)
    turned = [[image, image.mT.flip(-2), image.flip(-2).flip(-1), image.mT.flip(-1)] for image in (upright, mirrored)]
    views_read = [latents.moments(rows, views=np.full(3, view)) for view in range(8)]
    for view, found in enumerate(views_read):
        assert np.array_equal(found, turned[view % 2][view // 2].numpy())
    assert len({found.tobytes() for found in views_read}) == 8
    mixed = latents.moments(rows, views=np.array([7, 0, 2]))
    assert all(np.array_equal(mixed[place], views_read[view][place]) for place, view in enumerate((7, 0, 2)))


def test_views_are_encoded_from_rotated_tiles_not_rotated_latents(tmp_path, fake_tiles, codec):
    tiles = fake_tiles(count=2)
    encode_tiles(tiles, codec, tmp_path, tiles_digest=DIGEST, views=8)
    latents, rows = Latents(tmp_path), np.arange(2)
    x = codec.input(tiles, rows).flip(-1).rot90(3, (-2, -1))
    stored = latents.moments(rows, views=np.full(2, 7)).astype(np.float32)
    np.testing.assert_allclose(stored, torch.cat(codec.encode(x), dim=1).numpy(), rtol=2e-3, atol=2e-3)
    turned = np.rot90(latents.moments(rows)[..., ::-1], 3, axes=(-2, -1))
    assert np.abs(stored - turned).max() > 1e-3


def test_shards_are_reused_if_views_change_from_two_to_eight_and_back(encoded_latents, codec, monkeypatch):
    tiles, folder, _ = encoded_latents
    before = {path.name: path.read_bytes() for path in outputs.files_of(folder)}
    encoded_tiles = []
    encode = codec.encode
    monkeypatch.setattr(codec, "encode", lambda x: encoded_tiles.append(len(x)) or encode(x))
    encode_tiles(tiles, codec, folder, tiles_digest=DIGEST, views=8, shard_size=4, batch=3)
    assert sum(encoded_tiles) == 6 * 10
    assert len(list(folder.glob("*-*.npy"))) == 8 * 3
    assert all((folder / name).read_bytes() == content for name, content in before.items() if name != "index.json")
    encode_tiles(tiles, codec, folder, tiles_digest=DIGEST, shard_size=4, batch=3)
    assert sum(encoded_tiles) == 6 * 10
    assert {path.name: path.read_bytes() for path in outputs.files_of(folder)} == before


def test_altered_byte_of_a_view_is_detected_on_read(tmp_path, fake_tiles):
    tiles = fake_tiles(count=3)
    encode_tiles(tiles, PixelCodec(tiles.info), tmp_path, tiles_digest=DIGEST, views=8)
    latents, rows = Latents(tmp_path), np.arange(3)
    path = tmp_path / "dihedral5-00000.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    latents.moments(rows, views=np.array([0, 1, 6]))
    with pytest.raises(UserError, match=r"dihedral5-00000\.npy cannot be used"):
        latents.moments(rows, views=np.array([0, 5, 6]))


def test_rows_labels_and_splits_match_the_tiles(encoded_latents):
    tiles, folder, _ = encoded_latents
    latents = Latents(folder)
    for split in ("train", "val", "test", "all"):
        assert np.array_equal(latents.rows(split), tiles.rows(split))
    assert np.array_equal(latents.labels, tiles.labels)


def test_channel_statistics_cover_only_train_rows(encoded_latents):
    tiles, folder, numbers = encoded_latents
    moments = Latents(folder).moments(tiles.rows("train")).astype(np.float64)
    mean, variance = moments[:, :4], np.exp(moments[:, 4:])
    np.testing.assert_allclose(numbers["mean"], mean.mean(axis=(0, 2, 3)), rtol=1e-9)
    expected = np.sqrt(mean.var(axis=(0, 2, 3)) + variance.mean(axis=(0, 2, 3)))
    np.testing.assert_allclose(numbers["std"], expected, rtol=1e-9)


def test_dataset_without_classes_has_one_class(tmp_path, fake_tiles):
    tiles = fake_tiles(classes=1)
    tiles.info["classes"] = []
    encode_tiles(tiles, PixelCodec(tiles.info), tmp_path, tiles_digest=DIGEST)
    assert Latents(tmp_path).num_classes == 1


def test_only_missing_or_damaged_shards_are_reencoded(encoded_latents, codec, monkeypatch, caplog):
    tiles, folder, _ = encoded_latents
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "index.json").unlink()
    (folder / "flip-00001.npy").write_bytes(b"torn")
    (folder / "shard-00002.json").unlink()
    encoded_tiles = []
    encode = codec.encode
    monkeypatch.setattr(codec, "encode", lambda x: encoded_tiles.append(len(x)) or encode(x))
    with caplog.at_level(logging.INFO, logger="dithc"):
        encode_tiles(tiles, codec, folder, tiles_digest=DIGEST, shard_size=4, batch=3)
    assert sum(encoded_tiles) == 4 + 2
    assert "encoding flip-00001.npy again: it has other tiles, another codec, or is damaged" in caplog.text
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_shards_of_a_different_codec_or_tiles_are_rebuilt(encoded_latents, codec, fake_tiles):
    _, folder, _ = encoded_latents
    fewer = fake_tiles(count=3)
    codec.id = "kl-vae-other"
    encode_tiles(fewer, codec, folder, tiles_digest="other", shard_size=4)
    latents = Latents(folder, codec_id="kl-vae-other", tiles_digest="other")
    assert latents.count == 3
    assert sorted(path.name for path in folder.glob("*-*.npy")) == ["flip-00000.npy", "shard-00000.npy"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 65504.0])
def test_fp16_overflow_error_contains_shard_and_tile(tmp_path, fake_tiles, value):
    tiles = fake_tiles(count=6)
    tiles.physical[4, 0, 0, 0] = value
    with pytest.raises(UserError, match=r"tile 4 for .*shard-00001\.npy"):
        encode_tiles(tiles, PixelCodec(tiles.info), tmp_path, tiles_digest=DIGEST, shard_size=3)
    assert not (tmp_path / "index.json").exists()
    assert (tmp_path / "shard-00000.json").exists()


def test_full_disk_preserves_finished_shards_and_leaves_no_partial_file(tmp_path, fake_tiles, limit_files):
    tiles = fake_tiles(count=40)
    codec = PixelCodec(tiles.info)
    encode_tiles(tiles, codec, tmp_path, tiles_digest=DIGEST, shard_size=4)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*-0000?.npy")}
    (tmp_path / "shard-00003.json").unlink()
    limit_files(5_000)
    with pytest.raises(UserError, match=r"could not be written[\s\S]*finished shards are kept"):
        encode_tiles(tiles, codec, tmp_path, tiles_digest=DIGEST, shard_size=4)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*-0000?.npy")} == before
    assert not list(tmp_path.glob(".*tmp*"))


def test_dataset_without_tiles_raises_an_error(tmp_path, fake_tiles):
    tiles = fake_tiles(count=0)
    with pytest.raises(UserError, match="no tiles to encode"):
        encode_tiles(tiles, PixelCodec(tiles.info), tmp_path, tiles_digest=DIGEST)


def test_reader_rejects_a_different_codec_or_tiles_digest(encoded_latents):
    _, folder, _ = encoded_latents
    with pytest.raises(UserError, match=r"made by another codec[\s\S]*kl-vae-test[\s\S]*kl-vae-wanted"):
        Latents(folder, codec_id="kl-vae-wanted")
    with pytest.raises(UserError, match="made of other tiles"):
        Latents(folder, tiles_digest="other")


@pytest.mark.parametrize("content", [None, "{", "[]", '{"schema_version": 99}'])
def test_reader_rejects_a_missing_or_damaged_index(encoded_latents, content):
    _, folder, _ = encoded_latents
    (folder / "index.json").unlink()
    if content is not None:
        (folder / "index.json").write_text(content)
    with pytest.raises(UserError, match=r"index\.json cannot be used"):
        Latents(folder)


@pytest.mark.parametrize("name", ["shard-00001.npy", "flip-00000.npy", "labels.npy"])
@pytest.mark.parametrize("damage", ["cut", "removed"])
def test_reader_rejects_a_truncated_or_missing_file(encoded_latents, name, damage):
    _, folder, _ = encoded_latents
    path = folder / name
    content = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(content[:-10])
    with pytest.raises(UserError, match=f"{name} cannot be used"):
        Latents(folder)


@pytest.mark.parametrize("label", [-1, 3])
def test_reader_rejects_labels_out_of_range(encoded_latents, label):
    _, folder, _ = encoded_latents
    labels = np.load(folder / "labels.npy")
    labels[2] = label
    np.save(folder / "labels.npy", labels)
    with pytest.raises(UserError, match=r"labels[\s\S]*0 to 2 \(3 classes\)"):
        Latents(folder)
