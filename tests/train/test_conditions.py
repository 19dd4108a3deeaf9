"""Tests of trained conditions: their numbers, draws, start without effect, and fine-tuning from a class-conditional run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dithc.core.logging import UserError
from dithc.data.tiles.condition_maps import MODEL, inputs_of_values
from dithc.diffusion import guided_denoiser
from dithc.engine.comm import Group
from dithc.latents import Batches, Latents, apply_view
from dithc.model import DiT, DiTConfig, adapt_state_dict
from dithc.train import train
from tests.ranks import needs_launcher
from tests.train.conftest import SMALL, assert_equal, rows, store_latents, tensors_of, weights_of
from tests.train.step.test_guidance_training import SELF
from tests.train.strategies.test_strategies import FP32, train_on_ranks

COUNT, SIDE, SHARE = 24, 8, 0.25
WIDTHS = {"place": 3, "sun": 3, "gsd": 1}


def inputs(**values: list[float]) -> dict[str, np.ndarray]:
    model = [entry for entry in MODEL if entry["map"] != "code"]
    return {name: numbers[0].astype(np.float64) for name, numbers in inputs_of_values(model, values).items()}


def test_year_and_longitude_are_closed_and_places_are_unit_vectors():
    day, night = inputs(season=[365.5])["season"], inputs(season=[1.5])["season"]
    assert 1 - day @ night < 1e-3  # a day of 360 degrees in a year
    assert inputs(season=[183.0])["season"] @ night < -0.99
    east, west = inputs(place=[179.9, 0.0])["place"], inputs(place=[-179.9, 0.0])["place"]
    assert np.linalg.norm(east - west) == pytest.approx(np.radians(0.2), rel=1e-4)
    rome, oslo = inputs(place=[12.4964, 41.9028]), inputs(place=[10.7522, 59.9139])
    assert 6371 * np.arccos(rome["place"] @ oslo["place"]) == pytest.approx(2007, abs=5)  # kilometers
    assert np.isnan(rome["sun"]).all()
    with pytest.raises(UserError, match=r"condition place[\s\S]*lon, lat"):
        inputs(place=[12.0])


@pytest.fixture
def placed(tmp_path: Path) -> Path:
    """Create pixel latents that brighten towards the sun, with unknown places of some tiles; return the manifest."""
    draws = np.random.default_rng(0)
    azimuth = draws.uniform(0, 2 * np.pi, COUNT)
    y, x = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    slope = np.sin(azimuth)[:, None, None] * x - np.cos(azimuth)[:, None, None] * y  # (N, h, w); rows go south
    views = [apply_view(torch.from_numpy(slope), view).numpy() for view in range(2)]
    assert np.array_equal(views[1], slope[..., ::-1])
    place = draws.normal(size=(COUNT, 3))
    place[::3] = np.nan
    sun = np.stack([draws.uniform(-1, 1, COUNT), np.sin(azimuth), np.cos(azimuth)], axis=1)
    return store_latents(
        tmp_path / "placed",
        np.repeat(slope[:, None], 4, axis=1).astype(np.float16),
        labels=np.arange(COUNT) % 3,
        splits=np.arange(COUNT) >= 20,
        spec={},
        columns={"conditions": np.concatenate([place, sun, np.ones((COUNT, 1))], axis=1).astype(np.float32)},
        condition_widths=WIDTHS,
        z=4,
        moments="mean",
        codec="pixel",
        tiles_digest="none",
        classes=["a", "b", "c"],
        num_classes=3,
    )


def test_conditions_are_dropped_independently_and_the_sun_turns_with_the_image(placed: Path):
    names = ["sun", "gsd", "place"]
    settings = {"seed": 0, "global_batch_size": 3000, "label_dropout": SHARE, "augment": "mirror"}
    settings["times"] = lambda uniform: (1000 * uniform).astype(np.int64)
    source = Batches(Latents(placed.parent), **settings, conditions=names)
    batch, plain = source.batch(0), Batches(Latents(placed.parent), **settings).batch(0)
    assert batch.y.shape == (3000, 8)
    assert torch.equal(batch.y[:, 0].long(), plain.y)
    assert torch.equal(batch.noise, plain.noise)
    assert torch.equal(batch.y[1500:].nan_to_num(9), source.batch(0, slice(1500, 3000)).y.nan_to_num(9))
    unknown = torch.from_numpy(source.rows(0) % 3 == 0)
    dropped = torch.stack([plain.y == 3, *(batch.y[:, column].isnan() for column in (1, 4, 5))])
    assert dropped[3][unknown].all()
    dropped = dropped[:, ~unknown].double()
    bound = 5 * 0.5 / dropped.shape[1] ** 0.5
    assert ((dropped.mean(1) - SHARE).abs() < bound).all()
    assert (torch.corrcoef(dropped) - torch.eye(4)).abs().max() < 5 / dropped.shape[1] ** 0.5
    latents = Latents(placed.parent)
    for view in range(8):
        every = np.arange(COUNT)
        (sun,) = latents.conditions(every, ["sun"], views=np.full(COUNT, view))
        turned = apply_view(torch.from_numpy(latents.moments(every)[:, 0].astype(np.float64)), view).numpy()
        gradient = np.stack([np.diff(turned, axis=2).mean((1, 2)), -np.diff(turned, axis=1).mean((1, 2))], axis=1)
        np.testing.assert_allclose(sun[:, 1:], gradient, atol=2e-3)  # east, north
    with pytest.raises(UserError, match="lack conditions"):
        latents.widths(["season"])


def test_new_conditions_keep_every_bit_of_the_output_and_absent_ones_have_no_effect():
    sizes = {name: SMALL[name] for name in ("hidden_size", "depth", "num_heads")} | {"num_classes": 3}
    torch.manual_seed(0)
    old = DiT.from_preset("DiT-S/2", **sizes, input_size=8)
    torch.nn.init.normal_(old.final_layer.linear.weight)
    for block in old.blocks:
        torch.nn.init.normal_(block.adaLN_modulation[1].weight)
    new = DiT.from_preset("DiT-S/2", **sizes, input_size=8, conditions=tuple(WIDTHS.items()))
    state, changes = adapt_state_dict(old.state_dict(), new, source=old.config)
    new.load_state_dict(state)
    assert [change.split(":")[0] for change in changes] == [f"condition {name} added" for name in sorted(WIDTHS)]
    x, t, numbers = torch.randn(4, 4, 8, 8), torch.tensor([1, 50, 400, 999]), torch.randn(4, 7)
    y = torch.cat([torch.tensor([[0.0], [2.0], [3.0], [1.0]]), numbers], dim=1)
    y[0, 1] = y[2, 4:] = torch.nan
    assert torch.equal(new(x, t, y), old(x, t, y[:, 0].long()))
    new(x, t, y).square().sum().backward()
    assert all(mlp[2].weight.grad.abs().max() > 0 for mlp in new.y_embedder.conditions.values())
    for mlp in new.y_embedder.conditions.values():
        torch.nn.init.normal_(mlp[2].weight)
    absent = torch.cat([y[:, :1], torch.full_like(numbers, torch.nan)], dim=1)
    assert torch.equal(new(x, t, absent), old(x, t, y[:, 0].long()))
    assert not torch.allclose(new(x, t, y), old(x, t, y[:, 0].long()))
    guided = guided_denoiser(new, y, null_label=3, scale=2.0)(x, t)
    null = y.clone()
    null[:, 0] = 3
    expected = new(x, t, null) + 2 * (new(x, t, y) - new(x, t, null))
    torch.testing.assert_close(guided[:, :4], expected[:, :4], rtol=1e-4, atol=1e-4)
    assert DiTConfig(**new.config.described()) == new.config
    assert "conditions" not in old.config.described()
    kept, changes = adapt_state_dict(new.state_dict(), old, source=new.config)
    assert_equal(kept, dict(old.state_dict()))
    assert len(changes) == len(WIDTHS)


def conditional_job(job: Any, placed: Path, store: str, **changes: Any) -> Any:
    return job(store, latents=placed, validate_every=2, conditions=["place", "sun"], **changes)


def test_fine_tuning_with_conditions_starts_from_the_outputs_of_its_start_run(job: Any, placed: Path):
    base = job("base", latents=placed, lr=0.01)
    train(base, Group())
    start = {"init": base.paths.out, "init_from_run": "base"}
    plain = job("plain", latents=placed, **start)
    tuned = conditional_job(job, placed, "tuned", **start, guidance_training=SELF)
    unguided, resumed = (conditional_job(job, placed, store, **start) for store in ("unguided", "resumed"))
    for one in (plain, tuned, unguided, conditional_job(job, placed, "resumed", **start, until=2), resumed):
        train(one, Group())
    assert rows(unguided)[0]["loss"] == rows(plain)[0]["loss"]
    assert rows(unguided)[5]["loss"] != rows(plain)[5]["loss"]
    assert weights_of(tuned, "raw")["y_embedder.conditions.sun.2.weight"].any()
    assert_equal(tensors_of(resumed), tensors_of(unguided))


@pytest.mark.slow
@pytest.mark.mpi
@needs_launcher
def test_two_ranks_train_conditions_like_one(job: Any, placed: Path, tmp_path: Path):
    one, two = (conditional_job(job, placed, name, strategy=name, dtype="fp32") for name in ("cftp", "dp+tp"))
    train(one, Group())
    done = train_on_ranks(tmp_path, [two])
    assert done.returncode == 0, done.stderr
    for name in ("loss", "val_loss"):
        found, truth = ([row[name] for row in rows(one) if name in row] for one in (two, one))
        assert found == pytest.approx(truth, rel=FP32)
