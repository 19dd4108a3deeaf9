"""Members of a prior with a closed form: pixels are independent, bands are correlated.

The posterior of a block of pixels then follows from linear algebra in float64.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dithc.config import training
from dithc.data import Tiles
from dithc.diffusion import Objective
from dithc.diffusion.restoration import RadialCovariance
from dithc.sample.load_network import load_network
from dithc.sample.restoration import RestorationJob
from dithc.sample.restoration.blocks import Block, blocks
from dithc.sample.restoration.scenes import Flag, RestorableScenes
from dithc.sample.restoration.work import BlockSampler

MEAN = np.array([-0.2, 0.1, 0.0])
BAND_COVARIANCE = 0.04 * np.array([[1.0, 0.8, 0.5], [0.8, 1.0, 0.7], [0.5, 0.7, 1.0]])


def white_prior(job: RestorationJob) -> tuple[BlockSampler, RestorableScenes]:
    """Return a sampler with the exact velocity of the prior as network."""
    info = Tiles(job.tiles.parent).info
    scenes = RestorableScenes(job.scenes.parent, info, job.settings, training=job.training.parent)
    values, basis = np.linalg.eigh(BAND_COVARIANCE)
    parts = MEAN, basis, values[:, None], np.zeros(3)
    covariance = RadialCovariance(*(torch.from_numpy(part) for part in parts))
    objective = Objective.of(training.ObjectiveConfig(prediction_type="flow"))
    model, _ = load_network(job.prior())
    sampler = BlockSampler(
        model, scenes, job.settings, objective=objective, covariance=covariance, bf16=False, sampler="heun"
    )
    mean, band_covariance = torch.from_numpy(MEAN)[:, None], torch.from_numpy(BAND_COVARIANCE)

    def velocity(x: torch.Tensor, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        time = float(t[0]) / 1000
        a, s = 1 - time, max(time, 1e-6)
        pixels = x.double().flatten(2)
        noisy = a**2 * band_covariance + s**2 * torch.eye(3, dtype=torch.float64)
        clean = mean + a * band_covariance @ torch.linalg.solve(noisy, pixels - a * mean)
        return ((pixels - clean) / s).unflatten(2, x.shape[2:]).float()

    sampler._predict = velocity
    return sampler, scenes


def whole(scenes: RestorableScenes, scene: int, **settings: Any) -> Block:
    shape = scenes.shape(scene)
    return blocks(shape, size=max(shape), window=16, multiple=2)[0]


def test_members_of_a_coarse_and_a_missing_band_have_the_closed_posterior(
    make_job: Callable[..., RestorationJob],
) -> None:
    settings = {"coarse": {"B03": 2}, "missing": ["B04"], "noise": 0.02, "steps": 40, "members": 48}
    sampler, scenes = white_prior(make_job(**settings))
    block = whole(scenes, 1)
    members = sampler.members(1, block, range(48)).astype(np.float64)
    place = 1, block.rows.domain, block.columns.domain
    scaled = scenes.scaling.scaled(scenes.stored(*place)[None])[0].astype(np.float64)
    # A coarse pixel has 4 x 3 values; observed are 4 pixels of B02 and the mean of B03.
    prior = np.kron(BAND_COVARIANCE, np.eye(4))
    rows = np.zeros((5, 12))
    rows[:4, :4] = np.eye(4)
    rows[4, 4:8] = 0.25
    gain = prior @ rows.T @ np.linalg.inv(rows @ prior @ rows.T + 0.04**2 * np.eye(5))
    posterior = prior - gain @ rows @ prior
    mean = np.repeat(MEAN, 4)
    clear = scenes.truth(*place)
    errors, scores = [], []
    for top in range(0, 40, 2):
        for left in range(0, 24, 2):
            cell = slice(top, top + 2), slice(left, left + 2)
            if not clear[cell].all():
                continue
            seen = np.append(scaled[0][cell].ravel(), scaled[1][cell].mean())
            expected = mean + gain @ (seen - rows @ mean)
            values = members[:, :, *cell].reshape(48, 12)[:, 4:]
            errors.append(values.mean(0) - expected[4:])
            scores.append(values - expected[4:])
    deviation = np.sqrt(np.diag(posterior))[4:].reshape(2, 4).mean(1)
    assert np.abs(np.mean(errors, 0).reshape(2, 4)).max() < 0.05 * deviation.min()
    measured = np.concatenate(scores).std(0).reshape(2, 4).mean(1)
    np.testing.assert_allclose(measured, deviation, rtol=0.05)


def test_gap_has_the_prior_and_observed_pixels_their_values(make_job: Callable[..., RestorationJob]) -> None:
    sampler, scenes = white_prior(make_job(steps=40, members=32))
    block = whole(scenes, 1)
    members = sampler.members(1, block, range(32))
    place = 1, block.rows.domain, block.columns.domain
    is_observed = scenes.flags(*place) == Flag.OBSERVED
    scaled = scenes.scaling.scaled(scenes.stored(*place)[None])[0]
    assert (members[:, is_observed] == scaled[is_observed]).all()
    gap = members[:, :, :24].astype(np.float64).transpose(1, 0, 2, 3).reshape(3, -1)
    np.testing.assert_allclose(gap.mean(1), MEAN, atol=0.01)
    np.testing.assert_allclose(np.cov(gap), BAND_COVARIANCE, rtol=0.05, atol=0.001)


def test_block_size_changes_only_rounding_for_independent_pixels(make_job: Callable[..., RestorationJob]) -> None:
    """The noise of a place, the order of parts and the fade do not depend on the blocks."""
    sampler, scenes = white_prior(make_job(steps=4))
    reference = sampler.members(0, whole(scenes, 0), [0, 2])
    for block in blocks((72, 56), size=32, window=16, multiple=1):
        rows, columns = block.rows.domain, block.columns.domain
        found = sampler.members(0, block, [0, 2])
        np.testing.assert_allclose(found, reference[:, :, rows, columns], atol=2e-3)


@pytest.mark.parametrize("method", ["covariance", "jacobian"])
def test_block_without_observation_is_unconditional(make_job: Callable[..., RestorationJob], method: str) -> None:
    sampler, scenes = white_prior(make_job(missing=["B02", "B03"], method=method, steps=4))
    block = blocks(scenes.shape(1), size=40, window=16, multiple=1)[0]
    assert sampler.observe(1, block) is not None
    sampler._scenes._whole[:] = False
    assert sampler.observe(1, block) is None
    assert np.isfinite(sampler.members(1, block, [0])).all()
