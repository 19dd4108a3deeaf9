"""Members of a prior with a closed form: pixels are independent, bands are correlated.

The posterior of a block of pixels then follows from linear algebra in float64.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dithc.config import training
from dithc.data import Tiles, products
from dithc.diffusion import Objective
from dithc.diffusion.restoration import RadialCovariance
from dithc.engine.comm import Group
from dithc.model.embeddings import ConditionEmbedder
from dithc.sample.load_network import load_network
from dithc.sample.restoration import RestorationJob, pipeline, restore
from dithc.sample.restoration.blocks import Block, Span, blocks
from dithc.sample.restoration.scenes import Flag, RestorableScenes
from dithc.sample.restoration.work import BlockSampler
from tests.sample.restoration.conftest import SIZE

MEAN = np.array([-0.2, 0.1, 0.0])
BAND_COVARIANCE = 0.04 * np.array([[1.0, 0.8, 0.5], [0.8, 1.0, 0.7], [0.5, 0.7, 1.0]])


def white_prior(job: RestorationJob, *groups: training.BandGroup) -> tuple[BlockSampler, RestorableScenes]:
    """Return a sampler with the exact velocity of the prior as network, with groups of bands."""
    info = Tiles(job.tiles.parent).info
    given = [band for _, bands, role in groups if role == "condition" for band in bands]
    scenes = RestorableScenes(job.scenes.parent, info, job.settings, training=job.training.parent, given=given)
    values, basis = np.linalg.eigh(BAND_COVARIANCE)
    parts = MEAN, basis, values[:, None], np.zeros(3)
    covariance = RadialCovariance(*(torch.from_numpy(part) for part in parts))
    objective = Objective.of(training.ObjectiveConfig(prediction_type="flow"))
    model, _ = load_network(job.prior())
    model.config = replace(model.config, conditions=(), band_groups=groups)
    noise = torch.randn(1024, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    images = torch.einsum("cd,ndhw->nchw", torch.linalg.cholesky(torch.from_numpy(BAND_COVARIANCE)), noise)
    sampler = BlockSampler(
        model,
        scenes,
        job.settings,
        objective=objective,
        covariance=covariance,
        images=(images + torch.from_numpy(MEAN)[:, None, None]).float(),
        labels=torch.zeros(1024, dtype=torch.long),
        bf16=False,
        sampler="heun",
    )
    mean, band_covariance = torch.from_numpy(MEAN)[:, None], torch.from_numpy(BAND_COVARIANCE)

    def velocity(x: torch.Tensor, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        time = max(float(t[0]) / 1000, 1e-6)
        s = torch.full((3, 1), time, dtype=torch.float64)
        for number, (_, bands, _) in enumerate(groups, start=1):
            s[list(bands)] = time if y[0, number].isnan() else float(y[0, number]) / 1000
        a, pixels = 1 - s, x.double().flatten(2)
        noisy = a * band_covariance * a.T + torch.diag(s[:, 0] ** 2)
        clean = mean + band_covariance * a.T @ torch.linalg.solve(noisy, pixels - a * mean)
        return ((pixels - clean) / s.clamp(min=1e-6)).unflatten(2, x.shape[2:]).float()

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
    sampler._errors[(), ()] = {}  # exact covariance
    block = whole(scenes, 1)
    members = sampler.members(1, block, range(48))[0].astype(np.float64)
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
    members = sampler.members(1, block, range(32))[0]
    place = 1, block.rows.domain, block.columns.domain
    is_observed = scenes.flags(*place) == Flag.OBSERVED
    scaled = scenes.scaling.scaled(scenes.stored(*place)[None])[0]
    assert (members[:, is_observed] == scaled[is_observed]).all()
    gap = members[:, :, :24].astype(np.float64).transpose(1, 0, 2, 3).reshape(3, -1)
    np.testing.assert_allclose(gap.mean(1), MEAN, atol=0.01)
    np.testing.assert_allclose(np.cov(gap), BAND_COVARIANCE, rtol=0.05, atol=0.001)
    pairs = (members[0::2] + members[1::2])[:, :, :24] / 2  # of opposite noise, which linear networks keep
    assert (pairs.std(axis=(0, 2, 3)) < 0.02 * np.sqrt(np.diag(BAND_COVARIANCE))).all()


def test_group_held_clean_gives_the_exact_conditional_distribution(
    make_job: Callable[..., RestorationJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B02 is held clean, B03 is observed by its block means, B04 is missing; a gap hides all bands but not B02."""
    settings = {"coarse": {"B03": 2}, "missing": ["B04"], "noise": 0.02, "steps": 48, "through_clouds": ["B02"]}
    sampler, scenes = white_prior(make_job(**settings), ("blue", (0,), "modeled"))
    sampler._errors[(0,), ()] = {}  # exact covariance
    clouds = np.where(scenes._scenes.mask_of(1) == products.Mask.VALID, products.Mask.VALID, products.Mask.CLOUD)
    monkeypatch.setattr(scenes._scenes, "mask_of", lambda scene: clouds)
    block = whole(scenes, 1)
    place = 1, block.rows.domain, block.columns.domain
    assert (scenes.flags(*place)[0] == Flag.OBSERVED).all()
    members = sampler.members(1, block, range(24))[0].astype(np.float64)
    scaled = scenes.scaling.scaled(scenes.stored(*place)[None])[0].astype(np.float64)
    assert (members[:, 0] == scaled[0].astype(np.float32)).all()
    # of the bands B03, B04, given B02; then of a pixel of 2 x 2, given also the mean of B03
    slope = BAND_COVARIANCE[1:, :1] / BAND_COVARIANCE[0, 0]
    given_blue = BAND_COVARIANCE[1:, 1:] - slope @ BAND_COVARIANCE[:1, 1:]
    prior, row = np.kron(given_blue, np.eye(4)), np.append(np.full(4, 0.25), np.zeros(4))
    gain = prior @ row / (row @ prior @ row + 0.04**2)
    posterior = {True: prior - np.outer(gain, row @ prior), False: prior}
    clear, scores = scenes.truth(*place), {True: [], False: []}
    for top, left in np.ndindex(20, 12):
        cell = slice(2 * top, 2 * top + 2), slice(2 * left, 2 * left + 2)
        expected = np.repeat(MEAN[1:], 4) + np.kron(slope[:, 0], scaled[0][cell].ravel() - MEAN[0])
        if clear[cell].all():
            expected = expected + gain * (scaled[1][cell].mean() - row @ expected)
        scores[bool(clear[cell].all())].append(members[:, 1:, *cell].reshape(24, 8) - expected)
    for is_clear, errors in scores.items():
        found, truth = np.concatenate(errors), posterior[is_clear]
        deviations = np.sqrt(np.diag(truth))
        assert (np.abs(found.mean(0)) < 0.06 * deviations).all()
        assert np.abs(np.cov(found.T) - truth).max() < 0.1 * truth.max()


def test_group_with_gaps_is_sampled_or_absent(make_job: Callable[..., RestorationJob]) -> None:
    members = {}
    for role in ("modeled", "condition"):
        sampler, scenes = white_prior(make_job(steps=40), ("blue", (0,), role))
        block = whole(scenes, 1)
        assert set(map(str, sampler.levels(1, block).values())) == {"nan" if role == "modeled" else "1000.0"}
        members[role] = sampler.members(1, block, range(8))[0]
        states = scenes.flags(1, block.rows.domain, block.columns.domain)
        assert (Flag.RESTORED in states[0]) == (role == "modeled")
        assert Flag.RESTORED in states[1]
    plain, _ = white_prior(make_job(steps=40))
    assert (plain.members(1, block, range(8))[0] == members["modeled"]).all()
    gap = members["condition"][:, 1:, :24].astype(np.float64).transpose(1, 0, 2, 3).reshape(2, -1)
    np.testing.assert_allclose(gap.mean(1), MEAN[1:], atol=0.015)
    np.testing.assert_allclose(np.cov(gap), BAND_COVARIANCE[1:, 1:], rtol=0.08)


def test_network_receives_the_conditions_of_the_scene_and_the_level_of_its_group(
    make_job: Callable[..., RestorationJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(through_clouds=["B02"])
    read = products.Scenes.mask_of
    monkeypatch.setattr(products.Scenes, "mask_of", lambda *given: np.where(read(*given) == 1, 1, products.Mask.CLOUD))
    sampler, _, _ = pipeline._open(job, Group())
    given: list[torch.Tensor] = []
    forward = ConditionEmbedder.forward
    monkeypatch.setattr(ConditionEmbedder, "forward", lambda self, y: given.append(y) or forward(self, y))
    span = Span(slice(0, SIZE), slice(0, SIZE), slice(0, SIZE), np.ones(SIZE))
    sampler.members(1, Block(span, span), [0])  # the training scenes begin at the same place
    inputs = Tiles(job.tiles.parent).conditions()
    truth = [0, *inputs["gsd"][0], *inputs["place"][0], 0]
    np.testing.assert_allclose(given[0][0, 1:], truth[1:], atol=1e-7)
    assert np.linalg.norm(inputs["place"][0]) == pytest.approx(1)
    numbers = restore(job, Group())
    assert numbers["clean_blocks"]["blue"] > 0
    assert numbers["restored"] == 2 * 24 * 24 * 2  # a gap of 24 x 24 in two bands of both scenes


def test_block_size_changes_only_rounding_for_independent_pixels(make_job: Callable[..., RestorationJob]) -> None:
    """The noise of a place, the order of parts and the fade do not depend on the blocks."""
    sampler, scenes = white_prior(make_job(steps=4))
    sampler._errors[(), ()] = {}  # exact covariance, because measured pixels are not exactly independent
    reference = sampler.members(0, whole(scenes, 0), [0, 2])[0]
    for block in blocks((72, 56), size=32, window=16, multiple=1):
        rows, columns = block.rows.domain, block.columns.domain
        found = sampler.members(0, block, [0, 2])[0]
        np.testing.assert_allclose(found, reference[:, :, rows, columns], atol=2e-3)


def test_block_without_observation_is_unconditional(make_job: Callable[..., RestorationJob]) -> None:
    sampler, scenes = white_prior(make_job(missing=["B02", "B03"], steps=4))
    block = blocks(scenes.shape(1), size=40, window=16, multiple=1)[0]
    assert sampler.observe(1, block) is not None
    sampler._scenes._is_fine[:] = False
    assert sampler.observe(1, block) is None
    assert np.isfinite(sampler.members(1, block, [0])[0]).all()


def test_errors_are_measured_with_the_view_of_the_tiles(make_job: Callable[..., RestorationJob]) -> None:
    sampler, _ = white_prior(make_job())
    sampler._model.config = replace(sampler._model.config, conditions=(("gsd", 1), ("view", 8)))
    given: list[torch.Tensor] = []
    predict = sampler._predict
    sampler._predict = lambda x, t, y: given.append(y) or predict(x, t, y)
    sampler.measured({})
    conditions = torch.cat(given)[:, 1:]
    assert conditions[:, 0].isnan().all()
    assert (conditions[:, 1:] == torch.eye(8)[0]).all()
