"""Tests of training from incomplete tiles and with conditions: draws, loss, start without effect, resume and ranks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.fft import dct
from torch import Tensor

from dithc.config import training
from dithc.core.logging import UserError
from dithc.data.tiles.condition_maps import MODEL, inputs_of_values
from dithc.diffusion import Objective, guided_denoiser, training_loss
from dithc.engine.comm import Group
from dithc.latents import Batches, Latents, apply_view
from dithc.model import DiT, DiTConfig, adapt_state_dict
from dithc.train import train
from dithc.train.checkpoints import initial_state
from dithc.train.step import Trainer
from dithc.train.strategies import RankGrid, Strategy
from tests.model.scaled_variance import scaled_variance
from tests.ranks import needs_launcher
from tests.train.conftest import SMALL, assert_equal, rows, store_latents, tensors_of, weights_of
from tests.train.strategies.test_strategies import FP32, train_on_ranks

COUNT, TRAIN, SIDE, SHARE, CLOUD, DRAWN = 24, 20, 8, 0.25, 9.0, 3000
SIZES = {name: SMALL[name] for name in ("hidden_size", "depth", "num_heads")}
WIDTHS = {"place": 3, "sun": 3, "gsd": 1}
BANDS = ["red", "nir", "vv", "height"]
GROUPS = {"radar": {"bands": ["vv"], "role": "modeled"}, "dem": {"bands": ["height"]}}
CHANNELS = (("radar", (2,), "modeled"), ("dem", (3,), "condition"))
FLOW = {"objective": {"prediction_type": "flow"}, "model": SMALL | {"learn_sigma": False}}


def network(seed: int = 0, **settings: Any) -> DiT:
    """Return a small network with random weights only, so that labels matter."""
    torch.manual_seed(seed)
    model = DiT.from_preset("DiT-S/2", **SIZES, input_size=SIDE, num_classes=3, **settings)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.normal_(std=0.2)
    return model


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Create pixel latents that brighten towards the sun; return the manifest.

    Odd tiles have a gap with the value `CLOUD`, each third tile has no place.
    """
    draws = np.random.default_rng(0)
    azimuth = draws.uniform(0, 2 * np.pi, COUNT)
    y, x = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    pixels = np.sin(azimuth)[:, None, None] * x - np.cos(azimuth)[:, None, None] * y  # (N, h, w); rows go south
    clear = np.ones((COUNT, SIDE, SIDE), bool)
    for tile, (height, width) in enumerate(draws.integers(1, SIDE, (COUNT, 2))):
        clear[tile, : height * (tile % 2), :width] = False
    pixels[~clear] = CLOUD
    place = draws.normal(size=(COUNT, 3))
    place[::3] = np.nan
    sun = np.stack([draws.uniform(-1, 1, COUNT), np.sin(azimuth), np.cos(azimuth)], axis=1)
    conditions = np.concatenate([place, sun, np.ones((COUNT, 1))], axis=1).astype(np.float32)
    return store_latents(
        tmp_path / "archive",
        np.repeat(pixels[:, None], 4, axis=1).astype(np.float16),
        labels=np.arange(COUNT) % 3,
        splits=np.arange(COUNT) >= TRAIN,
        spec={},
        columns={"masks": np.packbits(clear.reshape(COUNT, -1), axis=1), "conditions": conditions},
        clear_fraction=float(clear[:TRAIN].mean()),
        condition_widths=WIDTHS,
        z=4,
        moments="mean",
        codec="pixel",
        bands=BANDS,
        tiles_digest="none",
        num_classes=3,
    )


def batches(archive: Path, *, size: int = DRAWN, predict: Any = "flow", masks: bool = True, **more: Any) -> Batches:
    settings = {"seed": 0, "global_batch_size": size, "label_dropout": SHARE, "augment": "mirror"}
    masked = training.MaskedTrainingConfig(hidden_share=SHARE) if masks else None
    times = Objective.of(training.ObjectiveConfig(prediction_type=predict)).times
    return Batches(Latents(archive.parent), **settings, times=times, masked=masked, **more)


def test_new_draws_keep_the_others_and_do_not_depend_on_ranks(archive: Path):
    groups = [training.BandGroupConfig.model_validate(group) for group in GROUPS.values()]
    source = batches(archive, conditions=["gsd"], groups=groups)
    whole, plain = source.batch(1), batches(archive, masks=False).batch(1)
    parts = [source.batch(1, slice(first, first + DRAWN // 2)) for first in (0, DRAWN // 2)]
    for name in ("x", "y", "t", "noise", "visible", "weight"):
        found, truth = torch.cat([getattr(part, name) for part in parts]), getattr(whole, name)
        assert torch.equal(found.nan_to_num(9), truth.nan_to_num(9))
    assert all(torch.equal(getattr(plain, name), getattr(whole, name)) for name in ("x", "t", "noise"))
    assert torch.equal(whole.y[:, 0].long(), plain.y)
    radar, dem = whole.y[:, 2:].T
    draws = torch.stack([radar.isnan(), dem == 1000]).double()
    assert ((draws.mean(1) - torch.tensor([0.5, SHARE])).abs() < 5 * 0.5 / DRAWN**0.5).all()
    assert abs(torch.corrcoef(draws)[0, 1]) < 5 / DRAWN**0.5
    assert set(radar.nan_to_num(9).tolist()) | set(dem.tolist()) == {0.0, 9.0, 1000.0}


def test_view_of_a_sample_is_that_of_its_latent(archive: Path):
    source = batches(archive, conditions=["view"], masks=False)
    batch, drawn = source.batch(1), source.rows(1)
    known = batch.y[:, 1:].isfinite().all(1)
    assert float(known.double().mean()) == pytest.approx(1 - SHARE, abs=5 * 0.5 / DRAWN**0.5)
    assert torch.equal(batch.y[known, 1:].unique(dim=0), torch.eye(8)[[1, 0]])  # sorted: mirrored, original
    views = batch.y[known, 1:].argmax(1).numpy()
    np.testing.assert_array_equal(batch.x[known], source.latents.moments(drawn[known.numpy()], views=views))
    assert inputs_of_values((), {})["view"].tolist() == [[1.0] + [0.0] * 7]


def test_masks_of_a_batch_are_the_gaps_of_its_tiles_and_of_turned_train_tiles(archive: Path):
    source = batches(archive)
    batch = source.batch(1)
    clear = batch.weight > 0
    assert torch.equal(clear, batch.x[:, :1] < CLOUD)
    assert set(batch.weight[clear].tolist()) == {np.float32(1) / np.float32(source.latents.info["clear_fraction"])}
    assert float(batch.weight.mean()) == pytest.approx(1, rel=0.02)
    assert not (batch.visible & ~clear).any()
    gaps = source.latents.clear(np.arange(1, TRAIN, 2), views=np.zeros(TRAIN // 2, np.int64))[:, 0]
    shapes = {np.rot90(side, turns).tobytes() for gap in gaps for side in (gap, gap.T) for turns in range(4)}
    hidden = (batch.visible != clear).any((1, 2, 3))
    complete = clear.all((1, 2, 3))
    assert {one.numpy()[0].tobytes() for one in batch.visible[complete & hidden]} <= shapes
    assert abs(float(hidden[complete].double().mean()) - SHARE / 2) < 5 * 0.5 / int(complete.sum()) ** 0.5


class Normal:
    """Normal images (4, 8, 8) whose groups of bands are independent: parameters, and exact prediction in float64.

    The variance is scaled for each image.
    """

    def __init__(self) -> None:
        draws = np.random.default_rng(3)
        self.mean, self.basis, self.variance = draws.normal(size=4), np.eye(4), draws.uniform(20, 60, (4, SIDE, SIDE))
        self.basis[:2, :2] = [[0.8, 0.6], [-0.6, 0.8]]
        cosines = dct(np.eye(SIDE), axis=0, norm="ortho")  # frequency by pixel
        self.waves = np.kron(self.basis, np.kron(cosines, cosines).T)  # band and pixel by component and frequency

    def velocity(self, x: Tensor, own: Tensor, visible: Tensor) -> Tensor:
        """Return E[noise - x0] (N, 4, 8, 8) given the visible pixels; the noise of hidden pixels is known."""
        mean = torch.from_numpy(np.repeat(self.mean, SIDE**2))
        own, visible = (part.expand(x.shape).flatten(1) for part in (own, visible))
        found = []
        for image, level, seen in zip(x.flatten(1), own, visible, strict=True):
            centered = torch.where(seen, image - (1 - level) * mean, 0.0)
            coefficients = (self.waves.T @ centered.numpy()).reshape(self.variance.shape)
            means = {"level": level, "share": seen.double()}
            each = {name: part.reshape(4, -1).mean(1).numpy() for name, part in means.items()}
            variance = scaled_variance(coefficients, self.variance, **each)
            covariance = torch.from_numpy(self.waves @ np.diag(variance.ravel()) @ self.waves.T)
            total = (1 - level)[:, None] * covariance * (1 - level) + torch.diag(level**2)
            solved = torch.linalg.solve(total, centered)
            clean = mean + covariance @ ((1 - level) * solved)
            found.append(torch.where(seen, level * solved, image) - clean)
        return torch.stack(found).reshape(x.shape)


def exact_loss(predict: str, model: torch.nn.Module, images: Any, normal: Normal | None = None) -> Tensor:
    """Return the loss of a batch in float64, by pixel, without `dithc.diffusion`: a hidden pixel has its own time.

    The prediction for `normal` images is added to that of the model, for a flow.
    """
    alpha_bar = torch.from_numpy(np.cumprod(1 - np.linspace(1e-4, 2e-2, 1000)))
    x, noise, visible, weight = images.x.double(), images.noise.double(), images.visible, images.weight.double()
    if predict == "flow":
        own = images.t.double().reshape(-1, 1, 1, 1) / 1000
        if images.y.dim() == 2:  # red and nir of the image, levels of radar and elevation
            radar, height = images.y[:, 1:].double().T.reshape(2, -1, 1, 1, 1) / 1000
            own = torch.cat([own, own, torch.where(radar.isnan(), own, radar), height], dim=1)
            visible, weight = visible | (own == 0), weight * (own > 0) * torch.tensor([1, 1, 1, 0]).reshape(1, 4, 1, 1)
            weight = weight * torch.where(radar == 0, 4 / 2, 4 / 3)
        time = torch.where(visible, own, 1.0)
        alpha, sigma, target = 1 - time, time, noise - x
    else:
        kept = torch.where(images.visible, alpha_bar[images.t.long()].reshape(-1, 1, 1, 1), alpha_bar[-1])
        alpha, sigma = kept.sqrt(), (1 - kept).sqrt()
        target = noise
    x_t = alpha * x * visible + sigma * noise
    if normal is not None:
        target = target - normal.velocity(x_t, own, visible)
    errors = (target - model(x_t, images.t, images.y)) ** 2
    return (errors * weight).mean()


@pytest.mark.parametrize("predict", ["normal groups", "normal flow", "groups", "flow", "noise"])
def test_masked_loss_and_gradient_match_float64_and_ignore_unclear_pixels(archive: Path, predict: str):
    normal = Normal() if "normal" in predict else None
    groups, given = (CHANNELS, list(GROUPS.values())) if "groups" in predict else ((), [])
    predict = predict.replace("groups", "flow").removeprefix("normal ")
    settings = {"objective": {"prediction_type": predict}, "model": FLOW["model"], "global_batch_size": 12}
    run = training.RunConfig(dataset="toy", masked_training={}, max_grad_norm=None, **settings)
    model, exact = (
        network(learn_sigma=False, band_groups=groups, gaussian_prediction=is_added)
        for is_added in (normal is not None, False)
    )
    if normal is not None:
        model.gaussian.fit(**{name: torch.from_numpy(getattr(normal, name)) for name in ("mean", "basis", "variance")})
    drawn = [training.BandGroupConfig.model_validate(group) for group in given]
    images = batches(archive, size=12, predict=predict, groups=drawn).batch(3)
    if groups:
        images.y[0, 1] = 300.0
    assert (images.weight == 0).any()
    assert (~images.visible & (images.weight > 0)).any()
    truth = exact_loss(predict, exact.double(), images, normal)
    truth.backward()
    state = initial_state(model, run, Strategy(model, RankGrid()))
    trainer = Trainer(run=run, source=batches(archive, size=12), state=state, group=Group())

    def gradients() -> dict[str, Tensor]:
        model.zero_grad()
        loss = trainer._losses(images)["loss"].mean()
        loss.backward()
        assert loss.item() == pytest.approx(truth.item(), rel=2e-6)
        return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}

    found = gradients()
    for name, weight in exact.named_parameters():
        if weight.grad is not None:
            assert (found[name].double() - weight.grad).abs().max() <= 2e-4 * weight.grad.abs().max(), name
    bands = 2 if groups else 4  # masks do not hide clean groups
    images.x[:, :bands][(images.weight == 0).expand(-1, bands, -1, -1)] = 0.3
    assert_equal(gradients(), found)


def test_learned_variance_counts_in_visible_pixels_only():
    torch.manual_seed(0)
    objective, t = Objective.of(training.ObjectiveConfig()), torch.tensor([0, 400])
    x, noise, output = torch.randn(2, 4, 6, 6), torch.randn(2, 4, 6, 6), torch.randn(2, 8, 6, 6)
    visible = torch.zeros(2, 1, 6, 6, dtype=torch.bool)
    visible[..., :2] = True

    def bound(width: int, **masks: Tensor) -> Tensor:
        case = {"x0": x[..., :width], "noise": noise[..., :width], "t": t}
        x_t = objective.noisy(case["x0"], t, case["noise"])
        return training_loss(output[..., :width], objective=objective, x_t=x_t, **case, **masks)["vb"]

    # a third of the pixels, with weight 3
    torch.testing.assert_close(bound(6, visible=visible, weight=torch.full((2, 1, 6, 6), 3.0)), bound(2))


def test_year_and_longitude_are_closed_and_places_are_unit_vectors():
    def inputs(**values: list[float]) -> dict[str, np.ndarray]:
        found = inputs_of_values([entry for entry in MODEL if entry["map"] != "code"], values)
        return {name: numbers[0].astype(np.float64) for name, numbers in found.items()}

    december, january = inputs(season=[365.5])["season"], inputs(season=[1.5])["season"]
    assert 1 - december @ january < 1e-3
    assert inputs(season=[183.0])["season"] @ january < -0.99
    east, west = inputs(place=[179.9, 0.0])["place"], inputs(place=[-179.9, 0.0])["place"]
    assert np.linalg.norm(east - west) == pytest.approx(np.radians(0.2), rel=1e-4)
    rome, oslo = inputs(place=[12.4964, 41.9028]), inputs(place=[10.7522, 59.9139])
    assert 6371 * np.arccos(rome["place"] @ oslo["place"]) == pytest.approx(2007, abs=5)  # kilometers
    assert np.isnan(rome["sun"]).all()
    with pytest.raises(UserError, match=r"condition place[\s\S]*lon, lat"):
        inputs(place=[12.0])


def test_conditions_are_dropped_independently_and_the_sun_turns_with_the_image(archive: Path):
    source = batches(archive, conditions=["sun", "gsd", "place"])
    y, has_place = source.batch(0).y, torch.from_numpy(source.rows(0) % 3 > 0)
    assert y.shape == (DRAWN, 8)
    assert y[~has_place, 5:].isnan().all()
    dropped = torch.stack([y[:, 0] == 3, *(y[:, column].isnan() for column in (1, 4, 5))])[:, has_place].double()
    assert ((dropped.mean(1) - SHARE).abs() < 5 * 0.5 / dropped.shape[1] ** 0.5).all()
    assert (torch.corrcoef(dropped) - torch.eye(4)).abs().max() < 5 / dropped.shape[1] ** 0.5
    latents, complete = source.latents, np.arange(0, COUNT, 2)
    for view in range(8):
        (sun,) = latents.conditions(complete, ["sun"], views=np.full(len(complete), view))
        turned = apply_view(torch.from_numpy(latents.moments(complete)[:, 0].astype(np.float64)), view).numpy()
        gradient = np.stack([np.diff(turned, axis=2).mean((1, 2)), -np.diff(turned, axis=1).mean((1, 2))], axis=1)
        np.testing.assert_allclose(sun[:, 1:], gradient, atol=2e-3)  # east, north
    with pytest.raises(UserError, match="lack conditions"):
        latents.widths(["season"])


def test_new_conditions_keep_every_bit_of_the_output_and_absent_ones_have_no_effect():
    old = network()
    sizes = SIZES | {"num_classes": 3, "input_size": SIDE}
    new = DiT.from_preset("DiT-S/2", **sizes, conditions=tuple(WIDTHS.items()), band_groups=CHANNELS)
    state, changes = adapt_state_dict(old.state_dict(), new, source=old.config)
    new.load_state_dict(state)
    names = sorted([*WIDTHS, "level-radar", "level-dem"])
    assert [change.split(":")[0] for change in changes] == [f"condition {name} added" for name in names]
    x, t, numbers = torch.randn(4, 4, 8, 8), torch.tensor([1, 50, 400, 999]), torch.randn(4, 9)
    numbers[:, 7:] = torch.tensor([0.0, 1000.0])
    y = torch.cat([torch.tensor([[0.0], [2.0], [3.0], [1.0]]), numbers], dim=1)
    y[0, 1] = y[2, 4:] = y[1, 8] = torch.nan
    plain = old(x, t, y[:, 0].long())
    assert torch.equal(new(x, t, y), plain)
    new(x, t, y).square().sum().backward()
    for mlp in new.y_embedder.conditions.values():
        assert mlp[2].weight.grad.abs().max() > 0
        torch.nn.init.normal_(mlp[2].weight)
    assert torch.equal(new(x, t, torch.cat([y[:, :1], torch.full_like(numbers, torch.nan)], dim=1)), plain)
    assert not torch.allclose(new(x, t, y), plain)
    null = torch.cat([torch.full_like(y[:, :1], 3), y[:, 1:]], dim=1)
    expected = new(x, t, null) + 2 * (new(x, t, y) - new(x, t, null))
    found = guided_denoiser(new, y, null_label=3, scale=2.0)(x, t)
    torch.testing.assert_close(found[:, :4], expected[:, :4], rtol=1e-4, atol=1e-4)
    assert DiTConfig(**new.config.described()) == new.config
    assert "conditions" not in old.config.described()
    kept, changes = adapt_state_dict(new.state_dict(), old, source=new.config)
    assert_equal(kept, dict(old.state_dict()))
    assert len(changes) == len(names)


def test_start_with_fewer_bands_keeps_their_outputs_and_predicts_no_new_band():
    old, places = network(learn_sigma=False, in_channels=3), [3, 0, 2]
    new = network(1, learn_sigma=False, in_channels=5, band_groups=CHANNELS)
    for mlp in new.y_embedder.conditions.values():
        torch.nn.init.zeros_(mlp[2].weight)
        torch.nn.init.zeros_(mlp[2].bias)
    new.load_state_dict(adapt_state_dict(old.state_dict(), new, source=old.config, channels=places)[0])
    x, t = torch.randn(2, 5, 8, 8), torch.tensor([20.0, 700.0])
    output = new(x, t, torch.tensor([[0.0, 0.0, torch.nan], [3.0, 250.0, 1000.0]]))
    torch.testing.assert_close(output[:, places], old(x[:, places], t, torch.tensor([0, 3])))
    assert (output[:, [1, 4]] == 0).all()


def test_fine_tuning_with_conditions_starts_from_the_outputs_of_its_start_run(job: Any, archive: Path):
    base = job("base", latents=archive, lr=0.01)
    start = {"init": base.paths.out, "init_from_run": "base", "latents": archive}
    plain, tuned = job("plain", **start), job("tuned", **start, conditions=["place", "sun"])
    for one in (base, plain, tuned):
        train(one, Group())
    assert rows(tuned)[0]["loss"] == rows(plain)[0]["loss"]
    assert rows(tuned)[5]["loss"] != rows(plain)[5]["loss"]
    assert weights_of(tuned, "raw")["y_embedder.conditions.sun.2.weight"].any()


def incomplete_job(job: Any, archive: Path, store: str, **changes: Any) -> Any:
    settings = {"masked_training": {"hidden_share": SHARE}, "conditions": ["place", "sun"], "validate_every": 2}
    settings["band_groups"] = GROUPS
    return job(store, latents=archive, **FLOW | settings | changes)


def test_resumed_run_has_the_same_bits_and_losses_of_clear_pixels(job: Any, archive: Path):
    whole, resumed = (incomplete_job(job, archive, store) for store in ("whole", "cut"))
    plain = incomplete_job(job, archive, "plain", until=2, masked_training=None)
    for one in (whole, incomplete_job(job, archive, "cut", until=4), resumed, plain):
        train(one, Group())
    assert_equal(tensors_of(resumed), tensors_of(whole))
    assert rows(plain)[0]["loss"] > 2 * rows(whole)[0]["loss"]  # of clouds
    assert rows(plain)[1]["val_loss"] > 2 * rows(whole)[1]["val_loss"]


def test_gaussian_prediction_has_the_mean_of_clear_pixels_also_after_a_resume(job: Any, archive: Path):
    settings = {"model": FLOW["model"] | {"gaussian_prediction": True}}
    whole, resumed = (incomplete_job(job, archive, store, **settings) for store in ("whole", "cut"))
    for one in (whole, incomplete_job(job, archive, "cut", until=4, **settings), resumed):
        train(one, Group())
    assert_equal(tensors_of(resumed), tensors_of(whole))
    latents = Latents(archive.parent)
    images = latents.moments(latents.rows("train"))[:, 0]
    clear_mean = images[images < CLOUD].mean(dtype=np.float64)
    for kind in ("raw", "ema"):
        np.testing.assert_allclose(weights_of(whole, kind)["gaussian.mean"], clear_mean, atol=1e-3)
        basis = weights_of(whole, kind)["gaussian.basis"]
        np.testing.assert_allclose(abs(basis[:2, :2]), 0.5**0.5, rtol=1e-3)  # red and nir are equal
        np.testing.assert_array_equal(abs(basis[2:]), np.eye(4)[2:])


@pytest.mark.slow
@pytest.mark.mpi
@needs_launcher
def test_two_ranks_have_the_losses_of_one(job: Any, archive: Path, tmp_path: Path):
    one, *two = (
        incomplete_job(job, archive, name, strategy=name, micro_batch_size=1) for name in ("cftp", "dp", "dp+tp")
    )
    train(one, Group())
    done = train_on_ranks(tmp_path, two)
    assert done.returncode == 0, done.stderr
    assert rows(two[0])[0]["loss"] == rows(one)[0]["loss"]  # bit for bit: images, masks and conditions are
    for name, ranks in ((name, ranks) for name in ("loss", "val_loss") for ranks in two):
        found, truth = ([row[name] for row in rows(each) if name in row] for each in (ranks, one))
        assert found == pytest.approx(truth, rel=FP32)
