"""Restoration with a prior of latents: choice of the observed latents, and members of a prior with a closed form."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from dithc.core.logging import UserError
from dithc.data import Tiles
from dithc.diffusion.restoration import RadialCovariance
from dithc.latents import Codec
from dithc.latents.codecs import KlCodec
from dithc.latents.codecs.autoencoder import Autoencoder, Sizes
from dithc.sample.restoration import RestorationJob
from dithc.sample.restoration.latent_space import TOLERANCE, LatentSpace
from dithc.sample.restoration.scenes import Flag
from tests.sample.restoration.test_members import BAND_COVARIANCE, MEAN, white_prior, whole


class Rearranged(Codec):
    """Codec without loss: a latent contains the pixels of a 2 x 2 patch."""

    id, latent_channels, downsampling_factor, scale, has_logvar, reach = "rearranged", 12, 2, 1.0, False, 0

    def __init__(self, info: dict[str, object]) -> None:
        super().__init__(info)
        self.bands = ("B02", "B03", "B04")

    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return pixel_unshuffle(x, 2), None

    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        return pixel_shuffle(latent, 2)


def test_members_have_the_distribution_of_the_prior_in_a_gap(make_job: Callable[..., RestorationJob]) -> None:
    job = make_job(members=16, steps=48)
    sampler, scenes = white_prior(job)
    codec, of_pixels, info = Rearranged(scenes.info), sampler._predict, Tiles(job.tiles.parent).info
    variances, basis = np.linalg.eigh(np.kron(BAND_COVARIANCE, np.eye(4)))
    state = {"mean": np.repeat(MEAN, 4), "basis": basis, "radial": variances[:, None], "offset": np.zeros(12)}
    config = replace(sampler._model.config, in_channels=12, input_size=8)
    sampler._model.config, sampler.factor = config, 2
    sampler._latents = LatentSpace.of(codec, info, state)
    sampler._images = pixel_unshuffle(sampler._images, 2)
    sampler._predict = lambda x, t, y: pixel_unshuffle(of_pixels(pixel_shuffle(x, 2), t, y), 2)
    block = whole(scenes, 0)
    members = sampler.members(0, block, range(16))[0].astype(np.float64)
    place = 0, block.rows.domain, block.columns.domain
    observed = scenes.states(*place) == Flag.OBSERVED
    scaled = scenes.scaling.scaled(scenes.stored(*place)[None])[0]
    assert (members[:, observed] == scaled[observed]).all()
    values = np.moveaxis(members[..., 20:44, 16:40], 1, 0).reshape(3, -1)
    assert np.abs(values.mean(1) - MEAN).max() < 0.01
    assert np.abs(np.cov(values) - BAND_COVARIANCE).max() < 0.08 * BAND_COVARIANCE.max()  # of the integration


def test_observed_latents_are_those_of_the_clear_image(make_job: Callable[..., RestorationJob]) -> None:
    info = Tiles(make_job().tiles.parent).info
    torch.manual_seed(0)
    net = Autoencoder(Sizes(bands=3, downsampling_factor=2, latent_channels=4, hidden_channels=8, decoder_blocks=1))
    net.analysis.data.normal_(std=0.3)
    net.encoder[-1].weight.data.normal_(std=0.05)
    codec = KlCodec(net, info, id="kl", scale=1.0, bands=tuple(info["bands"]))
    image = torch.randn(3, 40, 40) * 0.3
    space = LatentSpace(codec, LatentSpace.state(codec, torch.randn(8, 3, 16, 16)))
    observed = torch.ones(40, 40, dtype=torch.bool)
    observed[13:22, 10:30] = False
    found = space.observe(torch.where(observed, image, 1e3), observed)
    again = space.observe(torch.where(observed, image, -7.0), observed)
    assert found is not None
    assert again is not None
    assert torch.equal(found.values, again.values)
    truth = codec.encode(image[None])[0]
    clear = found.operator.adjoint(torch.ones(1, found.operator.size))[0] > 0  # (4, 20, 20)
    assert (found.operator.apply(truth)[0] - found.values).abs().max() < 4 * TOLERANCE
    assert clear[:, :2].all()  # beyond the reach of the encoder
    assert not clear[:, 6:11, 5:15].any()
    assert space.observe(image, torch.zeros(40, 40, dtype=torch.bool)) is None


def test_codec_of_other_bands_is_rejected(make_job: Callable[..., RestorationJob]) -> None:
    info = Tiles(make_job().tiles.parent).info
    state = RadialCovariance.of(torch.randn(8, 12, 8, 8)).state()
    with pytest.raises(UserError, match="bands of the codec"):
        LatentSpace.of(Rearranged(info), info | {"bands": ["B02"]}, state)
