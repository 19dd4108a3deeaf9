"""Tests of codecs: one interface for pixels, Stable Diffusion's autoencoder and the built-in autoencoder."""

import json

import numpy as np
import pytest
import torch

from dithc.config import codecs
from dithc.core.logging import UserError
from dithc.latents import open_codec

PIXEL = codecs.PixelCodecConfig(kind="pixel")


@pytest.fixture
def sd_folder(tmp_path):
    """Return a tiny RGB autoencoder in the diffusers layout, with attention in the middle as in Stable Diffusion."""
    from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL

    torch.manual_seed(0)
    net = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        norm_num_groups=4,
    )
    net.save_pretrained(tmp_path / "sd")
    return tmp_path / "sd"


def sd(path):
    return codecs.SdVaeConfig(kind="sd-vae", path=str(path))


def test_pixel_codec_round_trip_returns_the_tiles(fake_tiles):
    tiles = fake_tiles()
    codec = open_codec(PIXEL, info=tiles.info)
    rows = np.arange(3)
    x = codec.input(tiles, rows)
    mean, logvar = codec.encode(x)
    assert logvar is None
    assert not codec.has_logvar
    assert (codec.in_bands, codec.latent_channels, codec.downsampling_factor, codec.scale) == (4, 4, 1, 1.0)
    assert torch.equal(codec.decode(mean * codec.scale), x)
    assert np.array_equal(codec.to_rgb(codec.decode(mean)), tiles.rgb(rows))


def test_pixel_codec_id_does_not_depend_on_the_dataset(fake_tiles):
    ids = {open_codec(PIXEL, info=fake_tiles(bands=bands).info).id for bands in (("R", "G", "B"), ("1", "2", "3", "4"))}
    assert len(ids) == 1


def test_sd_vae_matches_diffusers(fake_tiles, sd_folder):
    from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL

    reference = AutoencoderKL.from_pretrained(str(sd_folder), local_files_only=True, low_cpu_mem_usage=False).eval()
    tiles = fake_tiles()
    codec = open_codec(sd(sd_folder), info=tiles.info)
    assert codec.bands == ("B04", "B03", "B02")
    assert (codec.in_bands, codec.latent_channels, codec.downsampling_factor, codec.scale) == (3, 4, 2, 0.18215)
    assert np.array_equal(codec.to_rgb(codec.input(tiles, np.arange(2))), tiles.rgb(np.arange(2)))
    assert codec.to_rgb(torch.tensor([-3.0, 0.0, 3.0]).view(1, 3, 1, 1)).ravel().tolist() == [0, 128, 255]
    x = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1)) * 2 - 1
    mean, logvar = codec.encode(x)
    with torch.no_grad():
        posterior = reference.encode(x).latent_dist
        image = reference.decode(posterior.mean).sample
    torch.testing.assert_close(mean, posterior.mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logvar, posterior.logvar, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(codec.decode(mean * codec.scale), image, rtol=1e-3, atol=1e-3)


def test_sd_vae_id_is_stable_and_depends_on_the_scaling_factor(fake_tiles, sd_folder):
    info = fake_tiles().info
    first = open_codec(sd(sd_folder), info=info)
    other = open_codec(codecs.SdVaeConfig(kind="sd-vae", path=str(sd_folder), scaling_factor=0.2), info=info)
    assert first.id.startswith("sd-vae-")
    assert first.id == open_codec(sd(sd_folder), info=info).id
    assert first.id != other.id


def test_missing_sd_vae_folder_error_lists_required_files(fake_tiles, tmp_path):
    with pytest.raises(
        UserError, match=r"no such folder[\s\S]*config.json and diffusion_pytorch_model.safetensors[\s\S]*copy"
    ):
        open_codec(sd(tmp_path / "nowhere"), info=fake_tiles().info)


def test_weights_with_a_missing_tensor_are_rejected(fake_tiles, sd_folder):
    from safetensors.torch import load_file, save_file

    path = sd_folder / "diffusion_pytorch_model.safetensors"
    state = load_file(path)
    del state["decoder.conv_out.weight"]
    save_file(state, path, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"decoder\.conv_out\.weight"):
        open_codec(sd(sd_folder), info=fake_tiles().info)


def test_weights_with_the_old_attention_names_are_read(fake_tiles, sd_folder):
    from safetensors.torch import load_file, save_file

    info = fake_tiles().info
    x = torch.zeros(1, 3, 16, 16)
    before = open_codec(sd(sd_folder), info=info).encode(x)[0]
    path = sd_folder / "diffusion_pytorch_model.safetensors"
    state = {}
    for key, value in load_file(path).items():
        for new, old in {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}.items():
            key = key.replace(f"attentions.0.{new}.", f"attentions.0.{old}.")
        state[key] = value
    save_file(state, path, metadata={"format": "pt"})
    assert torch.equal(open_codec(sd(sd_folder), info=info).encode(x)[0], before)


def test_multispectral_autoencoder_is_rejected_as_sd_vae(fake_tiles, tmp_path):
    from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL

    AutoencoderKL(in_channels=4, out_channels=4, block_out_channels=(8,), norm_num_groups=2).save_pretrained(
        str(tmp_path)
    )
    with pytest.raises(UserError, match="4 bands"):
        open_codec(sd(tmp_path), info=fake_tiles().info)


def test_autoencoder_with_shift_factor_is_rejected_as_sd_vae(fake_tiles, sd_folder):
    config = json.loads((sd_folder / "config.json").read_text())
    (sd_folder / "config.json").write_text(json.dumps(config | {"shift_factor": 0.1159}))
    with pytest.raises(UserError, match="kind: diffusers"):
        open_codec(sd(sd_folder), info=fake_tiles().info)
