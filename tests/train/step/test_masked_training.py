"""Tests of training from incomplete tiles: draws, loss and gradient against float64, resume and ranks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dithc.config import training
from dithc.diffusion import Objective, training_loss
from dithc.engine.comm import Group
from dithc.latents import Batches, Latents
from dithc.train import train
from tests.ranks import needs_launcher
from tests.train.conftest import SMALL, assert_equal, rows, store_latents, tensors_of
from tests.train.step.test_guidance_training import network, trainer_of
from tests.train.strategies.test_strategies import FP32, train_on_ranks

COUNT, TRAIN, SIDE, SHARE = 24, 20, 8, 0.4
FLOW = {"prediction_type": "flow"}


@pytest.fixture
def cloudy(tmp_path: Path) -> Path:
    """Create pixel latents with rectangular gaps of value 1, in which half of the tiles have a gap; return the manifest."""
    draws = np.random.default_rng(5)
    clear = np.ones((COUNT, SIDE, SIDE), bool)
    for tile, (y, x) in enumerate(draws.integers(0, SIDE, (COUNT, 2))):
        clear[tile, : y * (tile % 2), :x] = False
    pixels = np.where(clear[:, None], draws.uniform(-1, 1, (COUNT, 4, SIDE, SIDE)), 1.0).astype(np.float16)
    return store_latents(
        tmp_path / "cloudy",
        pixels,
        labels=np.arange(COUNT) % 3,
        splits=np.arange(COUNT) >= TRAIN,
        spec={},
        columns={"masks": np.packbits(clear.reshape(COUNT, -1), axis=1)},
        clear_fraction=float(clear[:TRAIN].mean()),
        z=4,
        moments="mean",
        codec="pixel",
        tiles_digest="none",
        classes=["a", "b", "c"],
        num_classes=3,
    )


def batches(latents: Path, share: float | None = SHARE, **settings: Any) -> Batches:
    defaults = {"seed": 0, "global_batch_size": 6, "label_dropout": 0.1, "augment": "mirror"}
    masked = None if share is None else training.MaskedTrainingConfig(hidden_share=share)
    times = Objective.of(training.ObjectiveConfig(**FLOW)).times
    return Batches(Latents(latents.parent), **defaults | settings, times=times, masked=masked)


def test_masks_of_a_batch_are_the_gaps_of_its_tiles_and_of_turned_train_tiles(cloudy: Path):
    source = batches(cloudy, global_batch_size=2000)
    whole, plain = source.batch(1), batches(cloudy, None, global_batch_size=2000).batch(1)
    parts = [batches(cloudy, global_batch_size=2000).batch(1, slice(first, first + 1000)) for first in (0, 1000)]
    for name in ("x", "y", "t", "noise", "visible", "weight"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))
        assert name in ("visible", "weight") or torch.equal(getattr(plain, name), getattr(whole, name))
    clear = whole.weight > 0
    assert torch.equal(clear, (whole.x < 1).any(1, keepdim=True))  # gaps have the value 1
    assert set(whole.weight[clear].tolist()) == {np.float32(1) / np.float32(source.latents.info["clear_fraction"])}
    assert float(whole.weight.mean()) == pytest.approx(1, rel=0.02)
    assert not (whole.visible & ~clear).any()
    gaps = source.latents.clear(np.arange(TRAIN), views=np.zeros(TRAIN, np.int64))[:, 0]
    shapes = {np.rot90(side, turns).tobytes() for gap in gaps for side in (gap, gap.T) for turns in range(4)}
    changed = (whole.visible != clear).any((1, 2, 3))
    complete = clear.all((1, 2, 3))
    assert {one.numpy()[0].tobytes() for one in whole.visible[complete]} <= shapes
    gap_share = np.mean([not gap.all() for gap in gaps])
    assert abs(float(changed[complete].double().mean()) - SHARE * gap_share) < 5 * 0.5 / int(complete.sum()) ** 0.5


def exact_loss(predict: str, model: torch.nn.Module, images: Any) -> Tensor:
    """Return the loss of a batch in float64 without `dithc.diffusion`, pixel by pixel: a hidden pixel has its own time."""
    alpha_bar = torch.from_numpy(np.cumprod(1 - np.linspace(1e-4, 2e-2, 1000)))
    x, noise = images.x.double(), images.noise.double()
    if predict == "flow":
        time = torch.where(images.visible, images.t.double().reshape(-1, 1, 1, 1) / 1000, 1.0)
        alpha, sigma, target = 1 - time, time, noise - x
    else:
        kept = torch.where(images.visible, alpha_bar[images.t.long()].reshape(-1, 1, 1, 1), alpha_bar[-1])
        alpha, sigma = kept.sqrt(), (1 - kept).sqrt()
        target = noise if predict == "noise" else alpha * noise - sigma * x
    x_t = alpha * x * images.visible + sigma * noise
    errors = (target - model(x_t, images.t, images.y)) ** 2
    return (errors * images.weight.double()).mean()


@pytest.mark.parametrize("predict", ["flow", "v", "noise"])
def test_masked_loss_and_gradient_match_float64_and_ignore_unclear_pixels(cloudy: Path, predict: str):
    settings = {"masked_training": {}, "model": SMALL | {"learn_sigma": False}, "global_batch_size": 6}
    run = training.RunConfig(dataset="toy", objective={"prediction_type": predict}, max_grad_norm=None, **settings)
    model, exact = (network(learn_sigma=False) for _ in range(2))
    source = batches(cloudy)
    source.times = Objective.of(run.objective).times
    images = source.batch(3)
    assert (images.weight == 0).any()
    assert (~images.visible & (images.weight > 0)).any()
    truth = exact_loss(predict, exact.double(), images)
    truth.backward()
    trainer = trainer_of(run, model)
    trainer._losses(images)["loss"].mean().backward()
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    for name, weight in exact.named_parameters():
        if weight.grad is not None:
            assert (gradients[name].double() - weight.grad).abs().max() <= 2e-4 * weight.grad.abs().max(), name
    assert trainer._losses(images)["loss"].mean().item() == pytest.approx(truth.item(), rel=2e-6)
    images.x[(images.weight == 0).expand_as(images.x)] = 0.3
    model.zero_grad()
    trainer._losses(images)["loss"].mean().backward()
    assert_equal({name: weight.grad for name, weight in model.named_parameters() if name in gradients}, gradients)


def test_learned_variance_counts_in_visible_pixels_only():
    torch.manual_seed(0)
    objective, t = Objective.of(training.ObjectiveConfig(prediction_type="v")), torch.tensor([0, 400])
    x, noise, output = torch.randn(2, 4, 6, 6), torch.randn(2, 4, 6, 6), torch.randn(2, 8, 6, 6)
    case = {"x0": x, "noise": noise, "t": t, "x_t": objective.noisy(x, t, noise)}
    visible = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    visible[:, :, :, 2:] = False
    found = training_loss(output, objective=objective, **case, visible=visible, weight=torch.full((2, 1, 6, 6), 3.0))
    part = training_loss(
        output[..., :2], objective=objective, **{name: v if name == "t" else v[..., :2] for name, v in case.items()}
    )
    torch.testing.assert_close(found["vb"], part["vb"])  # a third of the pixels, with weight 3


def masked_job(job: Any, cloudy: Path, store: str, **changes: Any) -> Any:
    settings = {"latents": cloudy, "masked_training": {"hidden_share": SHARE}, "objective": FLOW, "max_grad_norm": None}
    return job(store, **settings | {"model": SMALL | {"learn_sigma": False}, "validate_every": 2} | changes)


def test_resumed_masked_run_has_the_same_bits_and_a_loss_of_clear_pixels(job: Any, cloudy: Path):
    whole, resumed = (masked_job(job, cloudy, store) for store in ("whole", "cut"))
    for one in (whole, masked_job(job, cloudy, "cut", until=4), resumed):
        train(one, Group())
    assert_equal(tensors_of(resumed), tensors_of(whole))
    plain = masked_job(job, cloudy, "plain", until=2, masked_training=None)
    train(plain, Group())
    assert rows(plain)[0]["loss"] != rows(whole)[0]["loss"]
    assert rows(plain)[1]["val_loss"] != rows(whole)[1]["val_loss"]


@pytest.mark.slow
@pytest.mark.mpi
@needs_launcher
def test_two_ranks_have_the_losses_of_one(job: Any, cloudy: Path, tmp_path: Path):
    one, two = (
        masked_job(job, cloudy, name, global_batch_size=2, micro_batch_size=1, strategy=name) for name in ("cftp", "dp")
    )
    train(one, Group())
    done = train_on_ranks(tmp_path, [two])
    assert done.returncode == 0, done.stderr
    assert rows(two)[0]["loss"] == rows(one)[0]["loss"]  # bit for bit: images and masks are; later weights are rounded
    for name in ("loss", "val_loss"):
        found, truth = ([row[name] for row in rows(one) if name in row] for one in (two, one))
        assert found == pytest.approx(truth, rel=FP32)
