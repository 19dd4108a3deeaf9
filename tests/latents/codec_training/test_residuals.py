"""Tests of the decoder's noise and bands on tiles of known distribution, and of its reproducible draws."""

import copy

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dithc.latents.codec_training.residuals import MAX_GAIN, NOISE_SHARE, fit_bands, fit_noise
from dithc.latents.codecs.autoencoder import Autoencoder, Sizes
from dithc.sample.generate import with_decoder_noise
from dithc.sample.parallel.windows import decode_by_rows

FACTOR, BANDS, SIDE = 4, 2, 64
DEVIATIONS, CORRELATION = (0.01, 0.08), 0.8  # of dark and bright halves; between the two bands
NOISE = torch.tensor([[1.0, 0.0], [CORRELATION, (1 - CORRELATION**2) ** 0.5]])


def tiles(seed: int) -> Tensor:
    """Return tiles (16, 2, 64, 64): dark left halves, bright right halves, with white noise of known strength."""
    draws = torch.Generator().manual_seed(seed)
    deviation = torch.full((SIDE,), DEVIATIONS[0])
    deviation[SIDE // 2 :] = DEVIATIONS[1]
    noise = torch.einsum("bc,nchw->nbhw", NOISE, torch.randn(16, BANDS, SIDE, SIDE, generator=draws))
    base = torch.linspace(-0.1, 0.1, 16)[:, None, None, None] + torch.where(deviation > 0.05, 0.5, -0.5)
    return base + deviation * noise


def fitted() -> Autoencoder:
    """Return a linear codec with one component per band and an untrained convolutional branch, with its noise."""
    torch.manual_seed(0)
    sizes = Sizes(bands=BANDS, downsampling_factor=FACTOR, latent_channels=2, hidden_channels=64, decoder_blocks=1)
    net = Autoencoder(sizes).eval().requires_grad_(False)
    net.start_linear([tiles(0)])
    fit_noise(net, lambda: (tiles(number) for number in range(3)))
    return net


@pytest.fixture(scope="module")
def net() -> Autoencoder:
    return fitted()


def noise_of(net: Autoencoder, latent: Tensor, seed: int = 0) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(len(latent), net.sizes.noise_channels, *latent.shape[2:], generator=draws)


def test_sampled_residuals_have_the_strength_and_correlation_of_real_ones(net: Autoencoder) -> None:
    x = tiles(9)
    z = net.encode(x)[0]
    mean = net.decode(z)
    sampled = net.decode(torch.cat([z, noise_of(net, z)], dim=1)) - mean
    real = x - mean
    for half in (slice(0, SIDE // 2), slice(SIDE // 2, SIDE)):
        ours, theirs = sampled[..., half], real[..., half]
        torch.testing.assert_close(
            ours.std(dim=(0, 2, 3)), NOISE_SHARE * theirs.std(dim=(0, 2, 3)), rtol=0.15, atol=0.0
        )
        pairs = [torch.corrcoef(part.movedim(1, 0).flatten(1))[0, 1] for part in (ours, theirs)]
        assert float(pairs[0]) == pytest.approx(float(pairs[1]), abs=0.05)
    averages = functional.avg_pool2d(sampled, FACTOR)
    torch.testing.assert_close(averages, torch.zeros_like(averages), rtol=0.0, atol=1e-6)
    assert real[..., SIDE // 2 :].std() > 5 * real[..., : SIDE // 2].std()  # control: the halves differ


def test_noise_of_zero_does_not_change_the_image(net: Autoencoder) -> None:
    z = net.encode(tiles(9))[0]
    assert torch.equal(net.decode(z), net.decode(torch.cat([z, 0 * noise_of(net, z)], dim=1)))


def colored(seed: int) -> Tensor:
    """Return tiles (16, 2, 64, 64) of different mean colors, with structures larger than a patch that few bands share."""
    draws = torch.Generator().manual_seed(seed)
    structures = torch.einsum("bc,nchw->nbhw", NOISE, torch.randn(16, BANDS, SIDE // 8, SIDE // 8, generator=draws))
    means = torch.rand(16, BANDS, 1, 1, generator=draws) - 0.5
    return means + 0.1 * functional.interpolate(structures, scale_factor=8)


def distorted_codec(images: list[Tensor]) -> Autoencoder:
    """Return a linear codec with changed bands: the second contains the first, and is weaker."""
    sizes = Sizes(bands=BANDS, downsampling_factor=FACTOR, latent_channels=2, hidden_channels=8, decoder_blocks=1)
    net = Autoencoder(sizes).eval().requires_grad_(False)
    net.start_linear(images)
    mixing = torch.kron(torch.tensor([[1.0, 0.0], [0.3, 0.4]]), torch.eye(FACTOR**2))  # (P, P)
    net.synthesis.copy_(mixing @ net.synthesis)
    fit_noise(net, lambda: images)
    return net


def test_sampled_bands_have_the_covariance_of_real_ones() -> None:
    x, net = colored(9), distorted_codec([colored(number) for number in range(3)])
    z = net.encode(x)[0]
    mean, noise = net.decode(z), noise_of(net, z)
    added = net.decode(torch.cat([z, noise], dim=1)) - mean
    fit_bands(net, [colored(number) for number in range(3)])
    zero = torch.cat([z, 0 * noise], dim=1)
    of_tiles, of_mean, of_samples = (covariance(images) for images in (x, mean, net.decode(zero)))
    torch.testing.assert_close(of_samples, of_tiles, rtol=0.1, atol=0.02)
    assert of_mean[1, 1] < 0.7 * of_tiles[1, 1]  # control
    assert torch.equal(net.decode(z), mean)  # of restorations
    torch.testing.assert_close(net.decode(zero).mean(dim=(2, 3)), mean.mean(dim=(2, 3)), rtol=0.0, atol=0.01)
    torch.testing.assert_close(net.decode(torch.cat([z, noise], dim=1)) - net.decode(zero), added)  # not amplified


@pytest.mark.parametrize("bands", [1, 2])
def test_bands_of_exact_reconstructions_do_not_change(bands: int) -> None:
    """Check also with constant tiles, which have no covariance, and a constant band."""
    images = [colored(1)[:, :bands], torch.full((8, bands, SIDE, SIDE), 0.7), colored(2)[:, :bands]]
    images = [torch.cat([part, torch.ones(len(part), 1, SIDE, SIDE)], dim=1) for part in images]
    sizes = Sizes(bands=bands + 1, downsampling_factor=1, latent_channels=3, hidden_channels=4, decoder_blocks=0)
    exact = Autoencoder(sizes).eval().requires_grad_(False)
    exact.start_linear(images)
    fit_bands(exact, images)
    torch.testing.assert_close(exact.band_change, torch.zeros(bands + 1, bands + 1), rtol=0.0, atol=1e-4)


def test_gains_of_bands_are_limited() -> None:
    """Check a decoder without the second band."""
    images = [colored(1), colored(2)]
    net = distorted_codec(images)
    net.synthesis[FACTOR**2 :] *= 1e-3
    fit_bands(net, images)
    assert float(torch.linalg.eigvalsh(net.band_change).max()) <= MAX_GAIN - 1 + 1e-5


def covariance(images: Tensor) -> Tensor:
    """Return the covariance of bands within images (N, C, H, W), of averages over patches: (C, C) of trace 1."""
    values = functional.avg_pool2d(images, FACTOR).flatten(2).double()
    values = values - values.mean(dim=2, keepdim=True)
    total = (values @ values.mT).mean(dim=0)
    return total / total.trace()


def test_strength_stays_within_the_range_of_training(net: Autoencoder) -> None:
    z = net.encode(tiles(9))[0]
    far = 100 * z
    residual = net.decode(torch.cat([far, noise_of(net, z)], dim=1)) - net.decode(far)
    assert float(residual.std()) < 2 * DEVIATIONS[1]


def test_samples_are_independent_of_the_number_of_threads(net: Autoencoder) -> None:
    """Check that ranks with other numbers of cores decode equal bits."""
    net = copy.deepcopy(net)
    net.band_change.copy_(torch.tensor([[0.1, 0.2], [-0.3, -0.1]]))
    z = torch.randn(1, 2, 40, 32, generator=torch.Generator().manual_seed(3))
    latent, threads, found = torch.cat([z, noise_of(net, z)], dim=1), torch.get_num_threads(), []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            found.append(net.decode(latent))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


def test_fit_is_reproducible(net: Autoencoder) -> None:
    again = fitted()
    assert all(torch.equal(a, b) for a, b in zip(net.buffers(), again.buffers(), strict=True))


def test_patches_too_large_for_a_covariance_have_no_noise() -> None:
    large = Autoencoder(Sizes(bands=4, downsampling_factor=32, latent_channels=2, hidden_channels=4, decoder_blocks=0))
    fit_noise(large, lambda: pytest.fail("tiles are not needed"))
    fit_bands(large, iter(()))
    assert large.sizes.noise_channels == 0


def test_decoder_noise_depends_on_seed_index_and_place_only(net: Autoencoder) -> None:
    codec = type("Codec", (), {"noise_channels": net.sizes.noise_channels, "downsampling_factor": FACTOR})
    codec.reach, codec.decode = net.reach, staticmethod(net.decode)
    latents = torch.randn(3, 2, 40, 36, generator=torch.Generator().manual_seed(1))
    together = net.decode(with_decoder_noise(codec, 7, [4, 5, 6], latents))
    alone = net.decode(with_decoder_noise(codec, 7, [5], latents[1:2]))
    torch.testing.assert_close(alone[0], together[1])

    def with_noise(crop: Tensor, origin: tuple[int, int]) -> Tensor:
        return with_decoder_noise(codec, 7, [5], crop, origin)

    by_rows = torch.cat(list(decode_by_rows(codec, latents[1], tile=(9, 8), with_noise=with_noise)), dim=1)
    torch.testing.assert_close(by_rows, together[1], rtol=1e-5, atol=1e-5)
    other = net.decode(with_decoder_noise(codec, 8, [5], latents[1:2]))
    assert (other - alone).std() > 0.001
