"""Tests of other objectives and schedules: training converges, and interruptions do not change the numbers."""

import numpy as np
import pytest
import torch

from dithc.comm import Group
from dithc.config import training
from dithc.diffusion import Objective
from dithc.latents import Batches, Latents
from dithc.log import read_metrics
from dithc.runs import Store
from dithc.train import train
from dithc.train.job.job import DONE
from tests.train.conftest import SMALL

FLOW = {
    "model": SMALL | {"learn_sigma": False},
    "objective": {"predict": "flow", "times": "logit-normal", "mean": -0.4},
}


def checkpoint(job) -> Store.Checkpoint:
    store, step = Store.of_run(job.out)
    return store.open(step)


def hashes(job) -> dict[str, str]:
    return {entry["path"]: entry["sha256"] for entry in checkpoint(job).files}


def rows(job) -> list[dict[str, float]]:
    return read_metrics(checkpoint(job).folder.parent / "metrics")


@pytest.mark.parametrize(
    "settings",
    [
        {
            "objective": {"predict": "v", "weight": "min-snr"},
            "lr_schedule": "cosine",
            "warmup_steps": 2,
            "betas": [0.9, 0.95],
        },
        {**FLOW, "dtype": "bf16", "micro_batch": 3, "lr_schedule": "trapezoid", "decay_share": 0.5},
    ],
    ids=["v-cosine", "flow-trapezoid"],
)
@pytest.mark.slow
def test_training_that_was_stopped_half_way_equals_an_uninterrupted_one_to_the_bit(job, settings):
    whole, first, second = (job(store, until=until, **settings) for store, until in (("a", 6), ("b", 3), ("b", 6)))
    assert [train(part, Group()) for part in (whole, first, second)] == [DONE] * 3
    assert hashes(whole) == hashes(second)
    assert [(row["loss"], row["lr"]) for row in rows(whole)] == [(row["loss"], row["lr"]) for row in rows(second)]
    assert rows(whole)[-1]["lr"] == 0.0


@pytest.mark.parametrize(("predict", "times"), [("noise", "logit-normal"), ("v", "uniform"), ("flow", "logit-normal")])
def test_first_loss_is_the_mean_square_of_what_is_to_be_predicted_and_the_checkpoint_says_what_that_is(
    job, predict, times
):
    """The network begins by predicting 0."""
    kind = {"predict": predict, "times": times}
    one = job(until=1, model=SMALL | {"learn_sigma": False}, objective=kind)
    train(one, Group())
    objective = Objective.of(training.Objective(**kind))
    settings = {"seed": 0, "global_batch": 8, "label_dropout": 0.1, "augment": "mirror"}
    batch = Batches(Latents(one.latents.parent), **settings, times=objective.times).batch(0)
    x0, noise, t = (part.double().numpy() for part in (batch.x, batch.noise, batch.t))
    kept = np.cumprod(1 - np.linspace(1e-4, 2e-2, 1000))[t.astype(int)].reshape(-1, 1, 1, 1)
    target = {"noise": noise, "v": np.sqrt(kept) * noise - np.sqrt(1 - kept) * x0, "flow": noise - x0}[predict]
    assert rows(one)[0]["mse"] == pytest.approx((target**2).mean(), rel=1e-5)
    said = checkpoint(one).meta["objective"]
    assert training.Objective(**said) == one.run.objective
    assert said["predict"] == predict


@pytest.mark.slow
def test_flow_learns_the_velocity(job):
    one = job(until=120, steps=120, lr=2e-3, checkpoint_every=120, **FLOW)
    assert train(one, Group()) == DONE
    losses = torch.tensor([row["loss"] for row in rows(one)])
    assert losses[-20:].mean() < 0.9 * losses[:10].mean()
