"""Tests of the autoencoder for any bands: linear before training, and measured against independent references."""

import numpy as np
import pytest
import torch

from dithc.core.logging import UserError
from dithc.latents.codec_training.reconstruction_metrics import measure
from dithc.latents.codecs.autoencoder import CONFIG_FILE, FORMAT, WEIGHTS_FILE, Autoencoder, Sizes


def network(**changes) -> Autoencoder:
    torch.manual_seed(0)
    sizes = {
        "bands": 3,
        "downsampling_factor": 4,
        "latent_channels": 5,
        "hidden_channels": 8,
        "decoder_blocks": 2,
    }
    return Autoencoder(Sizes(**{**sizes, **changes})).eval().requires_grad_(False)


def images(count: int = 6, bands: int = 3, side: int = 16) -> torch.Tensor:
    """Return smooth images with noise, so that patches have few strong directions and many weak ones."""
    draws = np.random.default_rng(0)
    y, x = np.mgrid[:side, :side] / side
    planes = draws.normal(size=(count, bands, 3)) @ np.stack([y, x, y * x]).reshape(3, -1)
    return torch.from_numpy((planes + 0.1 * draws.normal(size=planes.shape)).reshape(count, bands, side, side)).float()


@pytest.mark.parametrize(("factor", "channels"), [(4, 5), (2, 3), (1, 2)])
def test_untrained_autoencoder_is_the_optimal_linear_codec(factor, channels):
    x = images()
    net = network(downsampling_factor=factor, latent_channels=channels)
    net.start_linear([x[:4], x[4:]])
    blocks = x.double().reshape(6, 3, 16 // factor, factor, 16 // factor, factor).permute(0, 2, 4, 1, 3, 5)
    rows = blocks.reshape(-1, 3 * factor**2).numpy()
    centred = rows - rows.mean(axis=0)
    values = np.linalg.svd(centred, compute_uv=False)  # Eckart & Young: the minimum of linear codecs of this size
    least = (values[channels:] ** 2).sum() / rows.size
    for back in (net.linear(x), net.decode(net.encode(x)[0])):
        assert float((back - x).double().square().mean()) == pytest.approx(least, rel=1e-3)
    mean, logvar = net.encode(x)
    torch.testing.assert_close(mean.var(dim=(0, 2, 3), correction=0), torch.ones(channels), rtol=1e-3, atol=0)
    assert bool((logvar == -6).all())


def test_constant_bands_and_surplus_channels_are_reconstructed():
    x = torch.full((2, 3, 8, 8), 0.25)
    net = network(downsampling_factor=1, latent_channels=5)
    net.start_linear([x])
    torch.testing.assert_close(net.decode(net.encode(x)[0]), x)


def test_standardized_latents_decode_to_the_same_images():
    x = images()
    net = network(latent_channels=4)
    net.start_linear([x])
    for layer in (net.encoder[-1], net.decoder[-1]):
        torch.nn.init.normal_(layer.weight, std=0.1)
        torch.nn.init.normal_(layer.bias)
    mean, logvar = net.encode(x)
    before = net.decode(mean)
    for _ in range(2):  # a repetition must not change the result
        spread = mean.var(dim=(0, 2, 3), correction=0) + logvar.exp().mean(dim=(0, 2, 3))
        net.standardize(mean.mean(dim=(0, 2, 3)), spread.sqrt())
        mean, logvar = net.encode(x)
        torch.testing.assert_close(net.decode(mean), before, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mean.mean(dim=(0, 2, 3)), torch.zeros(4), rtol=0, atol=1e-4)
        again = mean.var(dim=(0, 2, 3), correction=0) + logvar.exp().mean(dim=(0, 2, 3))
        torch.testing.assert_close(again, torch.ones(4), rtol=1e-3, atol=1e-3)


def test_saved_autoencoder_is_loaded_and_invalid_files_are_rejected(tmp_path):
    net = network()
    net.start_linear([images()])
    net.save(tmp_path)
    again = Autoencoder.load(tmp_path, fix="-")
    assert torch.equal(again.decode(again.encode(images())[0]), net.decode(net.encode(images())[0]))
    config = (tmp_path / CONFIG_FILE).read_text()
    for fault in (
        config.replace(FORMAT, "dithc autoencoder 9"),
        config.replace('"hidden_channels": 8', '"hidden_channels": 9'),
        "[]",
        "{}",
    ):
        (tmp_path / CONFIG_FILE).write_text(fault)
        with pytest.raises(UserError, match="cannot be loaded"):
            Autoencoder.load(tmp_path, fix="-")
    (tmp_path / CONFIG_FILE).write_text(config)
    (tmp_path / WEIGHTS_FILE).unlink()
    with pytest.raises(UserError, match="cannot be loaded"):
        Autoencoder.load(tmp_path, fix="-")


def test_reconstruction_metrics_of_known_errors_match_references():
    x = images(bands=2)
    off = torch.tensor([0.1, 0.2]).view(1, 2, 1, 1)
    found = measure([(x[:2], x[:2] + off), (x[2:], x[2:] + off)], bands=["R", "NIR"], physical=lambda a: a + 5)
    assert found["psnr_db"] == pytest.approx(10 * np.log10(4 / 0.025), abs=1e-4)
    assert found["psnr_db_by_band"]["NIR"] == pytest.approx(10 * np.log10(4 / 0.04), abs=1e-4)
    red, infrared = (x[:, place].numpy().astype(np.float64) + 5 for place in (0, 1))
    index = (infrared - red) / (infrared + red)
    shifted = (infrared + 0.2 - red - 0.1) / (infrared + red + 0.3)
    assert found["ndvi_error"] == pytest.approx(np.abs(index - shifted).mean(), rel=1e-4)
    angle = np.degrees(np.arctan2(infrared + 0.2, red + 0.1) - np.arctan2(infrared, red))
    assert found["spectral_angle_deg"] == pytest.approx(np.abs(angle).mean(), rel=1e-3)
    same = measure([(x, x)], bands=["a", "b"], physical=lambda a: a)
    assert (same["ssim"], same["ndvi_error"]) == (pytest.approx(1.0), None)
    assert same["spectral_angle_deg"] == pytest.approx(0.0, abs=1e-4)
