"""Tests of the validation loss: its value, on any number of ranks, and without effect on training."""

import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dithc.core.artifacts import Manifest
from dithc.engine.comm import Group
from dithc.latents import Latents, ValidationLatents
from dithc.train import train
from dithc.train.job import DONE, StepTimer
from dithc.train.monitoring.validation import NUM_TIMES, Validation
from dithc.train.strategies.layout import RankGrid
from tests.train.conftest import CLASSES, ROWS, SIDE, hashes, rows, small_run

HELD_OUT = 7
SLOPE = 0.25
NAMES = [f"val_loss_{k}" for k in range(NUM_TIMES)]


@pytest.fixture
def held(make_latents, tmp_path: Path) -> Path:
    return make_latents(tmp_path / "held-out", held_out=HELD_OUT)


def measure_loss(latents: Path, *, seed: int = 0, rank: int = 0, ranks: int = 1, group: object = None, **run: object):
    """Return the values of a network that outputs a share of its input, plus timestep and label."""

    def model(x_t, t, y):
        return SLOPE * x_t + (t.float() / 1000 + y.float()).reshape(-1, 1, 1, 1)

    layout = RankGrid(rank=rank, size=ranks)
    state = SimpleNamespace(model=model, strategy=SimpleNamespace(layout=layout, wait_for_weights=lambda: None))
    settings = small_run(validate_every=1, **run)
    return Validation(settings, Latents(latents.parent), seed=seed, state=state, group=group or Group()).values(
        StepTimer()
    )


def expected(latents: Path, *, predict: str) -> list[float]:
    """Return the same values in float64 from the definitions.

    Ho et al. 2020 (eq. 4), Liu et al. 2023 (flow).
    """
    x, y, noise = (
        value.double().numpy()
        for value in ValidationLatents(Latents(latents.parent), seed=0, draws=8).batch(slice(None))
    )
    alpha_bar = np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))
    errors = []
    for k in range(NUM_TIMES):
        time = 1000 * (k + 0.5) / NUM_TIMES
        if predict == "flow":
            share = time / 1000
            x_t, target = (1 - share) * x + share * noise[k], noise[k] - x
        else:
            time = int(time)
            alpha, sigma = np.sqrt(alpha_bar[time]), np.sqrt(1 - alpha_bar[time])
            x_t = alpha * x + sigma * noise[k]
            target = noise[k]
        errors.append(float(np.mean((SLOPE * x_t + time / 1000 + y.reshape(-1, 1, 1, 1) - target) ** 2)))
    return errors


@pytest.mark.parametrize("predict", ["noise", "flow"])
@pytest.mark.parametrize("times", ["uniform", "logit-normal"])
def test_validation_values_are_errors_at_the_midpoints_of_eight_intervals(held, predict, times):
    model = {"preset": "DiT-S/2", "learn_sigma": False}
    found = measure_loss(
        held,
        objective={"prediction_type": predict, "timestep_sampling": times},
        model=model,
        micro_batch_size=3,
    )
    truth = expected(held, predict=predict)
    assert [found[name] for name in NAMES] == pytest.approx(truth, rel=1e-5)
    assert found["val_loss"] == pytest.approx(np.mean(truth), rel=1e-5)


@pytest.mark.parametrize("ranks", [2, 3, HELD_OUT + 2])
def test_validation_tiles_are_distributed_over_ranks(held, ranks):
    parts = []
    group = SimpleNamespace(rank=0, all_reduce_=lambda sums: parts.append(sums.clone()) or sums)
    for rank in range(ranks):
        measure_loss(held, rank=rank, ranks=ranks, group=group, global_batch_size=16)
    whole = measure_loss(held)
    assert (sum(parts) / HELD_OUT).tolist() == pytest.approx([whole[name] for name in NAMES], rel=1e-6)
    assert sum(bool(part.any()) for part in parts) == min(ranks, HELD_OUT)


def test_validation_noise_depends_on_seed_and_row_and_differs_per_draw(held, make_latents, tmp_path):
    latents = Latents(held.parent)
    every = ValidationLatents(latents, seed=3, draws=8)
    assert every.rows.tolist() == list(range(ROWS, ROWS + HELD_OUT))
    x, y, noise = every.batch(slice(None))
    assert (x.shape, noise.shape) == ((HELD_OUT, 4, SIDE, SIDE), (8, HELD_OUT, 4, SIDE, SIDE))
    assert y.tolist() == [row % CLASSES for row in every.rows]
    one_x, _, one_noise = ValidationLatents(latents, seed=3, draws=8).batch(slice(4, 5))
    assert torch.equal(one_x, x[4:5])
    assert torch.equal(one_noise, noise[:, 4:5])
    assert not torch.equal(ValidationLatents(latents, seed=4, draws=8).batch(slice(None))[2], noise)
    flat = noise.reshape(8 * HELD_OUT, -1).double()
    correlation = flat @ flat.T / flat.shape[1] - torch.eye(len(flat))
    assert float(correlation.abs().max()) < 6 / flat.shape[1] ** 0.5 * 2**0.5  # the diagonal has the larger spread
    many = ValidationLatents(Latents(make_latents(tmp_path / "many", held_out=600).parent), seed=0, draws=1).rows - ROWS
    assert (len(many), len(set(many.tolist()))) == (256, 256)
    assert many.max() > 590


@pytest.mark.slow
def test_validation_leaves_training_bit_identical_and_matches_after_resume(job, held):
    settings = {"activation_checkpointing": "block", "micro_batch_size": 3}
    plain = job("plain", latents=held, **settings)
    whole = job("whole", latents=held, validate_every=4, **settings)
    halves = [job("halves", latents=held, validate_every=4, until=until, **settings) for until in (4, 6)]
    assert [train(one, Group()) for one in (plain, whole, *halves)] == [DONE] * 4
    assert hashes(plain) == hashes(whole) == hashes(halves[1])
    without, found, again = (rows(one) for one in (plain, whole, halves[1]))
    assert [row["loss"] for row in found] == [row["loss"] for row in without]
    assert not any("val_loss" in row for row in without)
    assert [row["step"] for row in found if "val_loss" in row] == [4, 6]
    assert [row["val_loss"] for row in found[3::2]] == [row["val_loss"] for row in again[3::2]]
    assert found[-1]["val_loss"] == pytest.approx(np.mean([found[-1][name] for name in NAMES]))
    assert found[-1]["val_loss"] < found[3]["val_loss"] < 1.1  # a network that predicts 0 has 1
    assert Manifest.read(whole.paths.out).summary["val_loss"] == found[-1]["val_loss"]
    assert Manifest.read(plain.paths.out).summary["val_loss"] is None


def test_validation_without_held_out_tiles_is_skipped_with_a_warning(job, caplog):
    one = job(validate_every=2)
    with caplog.at_level(logging.WARNING, logger="dithc"):
        assert train(one, Group()) == DONE
    assert "has none in the split val" in caplog.text
    assert not any("val_loss" in row for row in rows(one))
