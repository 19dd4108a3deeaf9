"""Tests of the steps that regularize latents: rotation, halving and noise, in the configured shares only."""

import json
import math
from collections import Counter

import pytest
import torch

from dithc.core.logging import read_metrics
from dithc.latents.codec_training.latent_augmentation import MAX_NOISE, augment
from dithc.latents.codec_training.training import train_codec
from dithc.latents.encode import apply_view
from tests.latents.codec_training.test_codec_training import settings


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def kinds(chosen, steps, *, seed=0):
    z, x = numbers(1, 4, 4, 4), numbers(1, 3, 8, 8)
    return [augment(z, x, chosen, seed=seed, step=step)[0] for step in range(steps)]


def test_augmentation_types_occur_at_the_configured_rates():
    count = 4000
    found = Counter(kinds(settings(equivariance=0.3, latent_noise=0.2), count))
    for kind, share in [("plain", 0.5), ("equivariant", 0.3), ("noisy", 0.2)]:
        assert abs(found[kind] - share * count) < 5 * math.sqrt(count * share * (1 - share)), kind
    assert set(kinds(settings(), 300)) == {"plain"}


def test_augmentation_depends_only_on_seed_and_step():
    chosen = settings(equivariance=0.4, latent_noise=0.4)
    assert kinds(chosen, 50, seed=3) == kinds(chosen, 50, seed=3) != kinds(chosen, 50, seed=4)
    z, x = numbers(2, 4, 4, 4), numbers(2, 3, 8, 8)
    torch.manual_seed(1)
    first = augment(z, x, settings(latent_noise=1.0), seed=3, step=7)[1]
    torch.manual_seed(2)
    assert torch.equal(first, augment(z, x, settings(latent_noise=1.0), seed=3, step=7)[1])


@pytest.mark.parametrize(
    ("side", "orientations", "rotations", "halving"),
    [(4, 8, 7, True), (6, 8, 7, True), (5, 8, 7, False), (2, 8, 7, False), (4, 2, 1, True)],
)
def test_orientations_and_halving_are_drawn_equally_often(side, orientations, rotations, halving):
    z, x = numbers(1, 2, side, side), numbers(1, 3, 2 * side, 2 * side)
    chosen, steps = settings(equivariance=1.0, orientations=orientations), 400
    expected = [(apply_view(z, view), apply_view(x, view)) for view in range(1, 1 + rotations)]
    if halving:
        middle = [one.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).mean(dim=(3, 5)) for one in (z, x)]
        expected.append((middle[0], middle[1]))
    found = Counter()
    for step in range(steps):
        _, latent, tile = augment(z, x, chosen, seed=1, step=step)
        places = [
            place
            for place, (one, other) in enumerate(expected)
            if latent.shape == one.shape
            and torch.allclose(latent, one, atol=1e-6)
            and torch.allclose(tile, other, atol=1e-6)
        ]
        assert len(places) == 1
        found[places[0]] += 1
    share = 1 / len(expected)
    spread = 5 * math.sqrt(steps * share * (1 - share))
    assert all(abs(found[place] - share * steps) <= spread for place in range(len(expected)))


def test_augmented_latents_propagate_gradients_to_the_encoder():
    for shares in ({"equivariance": 1.0}, {"latent_noise": 1.0}):
        z = numbers(2, 4, 4, 4).requires_grad_(True)
        _, latent, _ = augment(z, numbers(2, 3, 8, 8), settings(**shares), seed=0, step=0)
        (gradient,) = torch.autograd.grad(latent.square().sum(), z)
        assert bool((gradient != 0).all())


def test_noise_scales_with_channel_std_and_has_uniform_strength():
    scale = torch.tensor([0.01, 1.0, 100.0]).view(1, 3, 1, 1)
    z = numbers(2000, 3, 8, 8) * scale
    x = numbers(1, 3, 8, 8)
    _, noisy, tile = augment(z, x, settings(latent_noise=1.0), seed=5, step=2)
    assert tile is x
    added = (noisy - z) / z.std(dim=(0, 2, 3), correction=0, keepdim=True)
    variance = added.double().square().mean(dim=(0, 2, 3))
    expected = MAX_NOISE**2 / 3  # for u n with u uniform in [0, most]
    torch.testing.assert_close(variance, torch.full((3,), expected, dtype=torch.float64), rtol=0.1, atol=0)
    strengths = added.square().mean(dim=(1, 2, 3)).sqrt() / MAX_NOISE  # per latent, over 192 values
    assert float(strengths.max()) < 1.3
    assert abs(float(strengths.median()) - 0.5) < 0.05
    assert abs(float((strengths < 0.25).float().mean()) - 0.25) < 0.05


def test_constant_channel_has_no_noise_and_finite_gradients():
    z = torch.ones(1, 4, 1, 1, requires_grad=True)
    _, noisy, _ = augment(z, z, settings(latent_noise=1.0), seed=0, step=0)
    assert torch.equal(noisy, z)
    (gradient,) = torch.autograd.grad(noisy.sum(), z)
    assert bool(gradient.isfinite().all())


@pytest.mark.slow
def test_losses_equal_plain_training_until_the_first_augmented_step(tmp_path, fake_tiles):
    chosen = settings(steps=6, equivariance=0.25, latent_noise=0.25)
    found = kinds(chosen, 6, seed=2)
    first = next(step for step, kind in enumerate(found) if kind != "plain")
    assert first > 0
    assert set(found) == {"plain", "equivariant", "noisy"}
    for name, config in [("plain", settings(steps=6)), ("easier", chosen), ("again", chosen)]:
        train_codec(config, fake_tiles(), tmp_path / name, seed=2)
    plain, easier = (read_metrics(tmp_path / name / "metrics") for name in ("plain", "easier"))
    losses = [[row["loss"] for row in rows] for rows in (plain, easier)]
    assert losses[0][:first] == losses[1][:first]
    assert losses[0][first] != losses[1][first]
    for kind, row in zip(found, easier, strict=True):
        assert {name for name in row if name.startswith("loss_")} == ({f"loss_{kind}"} - {"loss_plain"})
    ids = [json.loads((tmp_path / name / "codec.json").read_text())["id"] for name in ("easier", "again", "plain")]
    assert ids[0] == ids[1] != ids[2]
