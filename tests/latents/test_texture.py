"""Texture: the decoder learns it alone, latents stay, and no failure leaves half a codec."""

import json
import shutil

import numpy as np
import pytest
import torch
from torch.nn import functional

from dithc.config import codecs
from dithc.latents import open_codec, texture
from dithc.latents.autoencoder import Autoencoder
from dithc.latents.codec_steps import Crops
from dithc.latents.codec_training import train_codec
from dithc.latents.texture import MOST_WEIGHT, Discriminator, add_texture, adversarial_weight, hinge
from dithc.log import UserError, read_metrics
from tests.latents.conftest import BANDS, FakeTiles


def settings(**changes):
    small = {"factor": 2, "width": 8, "latent_channels": 4, "steps": 4, "batch": 4, "trained_on": "planes"}
    return codecs.KlVae(kind="kl-vae", **{**small, **changes})


def planes():
    return FakeTiles(count=10, size=16, bands=BANDS, splits="ttv", classes=2)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The folder of a codec without texture, and its numbers."""
    folder = tmp_path_factory.mktemp("plain")
    return folder, train_codec(settings(), planes(), folder, seed=1)


@pytest.fixture(scope="module")
def textured(tmp_path_factory):
    """The folder of the same codec with texture, and its numbers."""
    folder = tmp_path_factory.mktemp("textured")
    return folder, train_codec(settings(texture_steps=3), planes(), folder, seed=1)


@pytest.fixture
def net(plain):
    return Autoencoder.load(plain[0], remedy="")


def test_hinge_is_its_closed_form():
    real, made = numbers(3, 1, 2, 2), numbers(3, 1, 2, 2, seed=1)
    expected = 0.5 * (np.maximum(0, 1 - real.numpy()).mean() + np.maximum(0, 1 + made.numpy()).mean())
    assert float(hinge(real, made)) == pytest.approx(float(expected), rel=1e-6)
    assert float(hinge(torch.full((2,), 1.5), torch.full((2,), -1.0))) == 0.0  # told apart by enough
    assert float(hinge(torch.zeros(2), torch.zeros(2))) == 1.0


def test_discriminator_looks_at_16_by_16_pixels_of_all_bands():
    judge = Discriminator(5)
    x = numbers(1, 5, 64, 64).requires_grad_(True)
    out = judge(x)
    assert out.shape == (1, 1, 16, 16)
    (gradient,) = torch.autograd.grad(out[0, 0, 8, 8], x)
    seen = gradient[0].abs() > 0  # (C, H, W)
    rows, columns = seen.any(dim=2).any(dim=0), seen.any(dim=1).any(dim=0)
    assert int(rows.sum()) == int(columns.sum()) == 16
    assert bool(seen.any(dim=2).any(dim=1).all())
    for bands in (1, 13):
        assert 100_000 < sum(one.numel() for one in Discriminator(bands).parameters()) < 300_000


def test_adversarial_part_pulls_as_much_as_reconstruction_at_the_last_layer_and_never_without_bound(net):
    net.decoder.requires_grad_(True)
    x, out = numbers(2, 4, 16, 16), net.decode(numbers(2, 4, 8, 8, seed=1))
    judge, last = Discriminator(4), net.decoder[-1].weight
    loss, adversarial = functional.mse_loss(out, x), -100.0 * judge(out).mean()
    at_out = [torch.autograd.grad(one, out, retain_graph=True)[0] for one in (loss, adversarial)]
    weight = adversarial_weight(net, out, *at_out)
    one, other = (torch.autograd.grad(part, last, retain_graph=True)[0].norm() for part in (loss, adversarial))
    assert weight == pytest.approx(float(one / (other + 1e-6)), rel=1e-4)
    assert 0 < weight < MOST_WEIGHT
    assert adversarial_weight(net, out, at_out[0], torch.zeros_like(out)) == MOST_WEIGHT
    assert adversarial_weight(net, out, torch.zeros_like(out), at_out[1]) == 0.0


def test_gradients_of_a_step_are_those_of_both_losses(net):
    learnt = [net.synthesis, *net.decoder.parameters()]
    for parameter in learnt:
        parameter.requires_grad_(True)
    judge, x = Discriminator(4), numbers(2, 4, 16, 16)
    torch.manual_seed(3)
    said = texture._gradients(net, judge, x, bf16=False)
    torch.manual_seed(3)
    mean, logvar = net.encode(x)
    out = net.decode(mean + torch.exp(0.5 * logvar) * torch.randn_like(mean))
    total = functional.mse_loss(out, x) + said["adversarial_weight"] * -judge(out).mean()
    for parameter, expected in zip(learnt, torch.autograd.grad(total, learnt, retain_graph=True), strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-3, atol=1e-6)
    told = 0.5 * ((1 - judge(x)).relu().mean() + (1 + judge(out.detach())).relu().mean())
    for parameter, expected in zip(judge.parameters(), torch.autograd.grad(told, [*judge.parameters()]), strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-3, atol=1e-6)
    assert said["discriminator"] == pytest.approx(told.item(), rel=1e-5)


def test_encoder_is_the_same_to_the_bit_and_the_decoder_another(net, tmp_path):
    tiles, chosen = planes(), settings(texture_steps=3)
    x = torch.from_numpy(tiles.scaled(tiles.rows("all")))
    weights = {name: value.clone() for name, value in net.state_dict().items()}
    before, back = net.encode(x), net.decode(net.encode(x)[0])
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    add_texture(net, chosen, Crops(chosen, tiles, seed=1), tmp_path, seed=1)
    assert torch.equal(torch.rand(1), expected)  # the caller's generator is left alone
    assert all(torch.equal(*pair) for pair in zip(net.encode(x), before, strict=True))
    assert not torch.equal(net.decode(before[0]), back)
    changed = {name for name, value in net.state_dict().items() if not torch.equal(value, weights[name])}
    assert changed == {"synthesis", *(name for name in weights if name.startswith("decoder."))}
    assert not any(parameter.requires_grad for parameter in net.parameters())


def test_texture_comes_after_the_same_training_and_tells_what_it_costs(plain, textured, caplog):
    without, said = plain[1], textured[1]
    assert said["psnr_before_texture_db"] == without["psnr_db"] != said["psnr_db"]
    assert "psnr_before_texture_db" not in without
    for name in ("steps", "loss", "scale", "latent_mean", "latent_std", "psnr_linear_db", "parameters"):
        assert said[name] == without[name], name
    tiles = planes()
    one, other = (open_codec(settings(), info=tiles.info, folder=folder) for folder, _ in (plain, textured))
    x = one.input(tiles, tiles.rows("all"))
    assert all(torch.equal(*pair) for pair in zip(one.encode(x), other.encode(x), strict=True))
    assert one.id != other.id


def test_metrics_hold_every_step_of_both(textured):
    rows = read_metrics(textured[0] / "metrics")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    added = {"adversarial", "adversarial_weight", "discriminator"}
    assert all(added.isdisjoint(row) for row in rows[:4])
    for row in rows[4:]:
        assert added < set(row)
        assert all(np.isfinite(row[name]) for name in (*added, "loss", "lr"))
        assert 0 <= row["adversarial_weight"] <= MOST_WEIGHT


def test_same_seed_gives_the_same_texture(textured, tmp_path, caplog):
    torch.manual_seed(9)
    with caplog.at_level("INFO", logger="dithc"):
        train_codec(settings(texture_steps=3), planes(), tmp_path / "again", seed=1)
    assert content(tmp_path / "again") == content(textured[0])
    said = json.loads((tmp_path / "again" / "codec.json").read_text())["numbers"]
    assert f"from {said['psnr_before_texture_db']:.2f} to {said['psnr_db']:.2f} dB" in caplog.text


def test_codec_of_one_layer_gets_texture_too(tmp_path):
    chosen = settings(encoder_blocks=0, decoder_blocks=0, steps=1, texture_steps=2, factor=1)
    assert np.isfinite(train_codec(chosen, planes(), tmp_path, seed=0)["psnr_db"])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_diverged_texture_is_an_error_and_leaves_only_its_metrics(tmp_path, monkeypatch, bad):
    monkeypatch.setattr(texture, "hinge", lambda real, made: bad * hinge(real, made))
    with pytest.raises(UserError, match="texture diverged at step 0"):
        train_codec(settings(texture_steps=2), planes(), tmp_path / "out", seed=0)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["metrics"]


def test_gradient_that_is_not_finite_is_refused_where_every_loss_is(tmp_path, monkeypatch):
    monkeypatch.setattr(texture, "adversarial_weight", lambda *given: np.nan)
    with pytest.raises(UserError, match="texture diverged at step 0"):
        train_codec(settings(texture_steps=1), planes(), tmp_path / "out", seed=0)


def test_training_killed_in_its_texture_leaves_the_earlier_codec_and_goes_again(textured, tmp_path, monkeypatch):
    shutil.copytree(textured[0], tmp_path / "codec")
    before = content(tmp_path / "codec")

    def interrupt(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(texture, "hinge", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train_codec(settings(texture_steps=3), planes(), tmp_path / "codec", seed=1)
    assert content(tmp_path / "codec") == before
    train_codec(settings(texture_steps=3), planes(), tmp_path / "codec", seed=1)
    assert content(tmp_path / "codec") == before
    assert len(read_metrics(tmp_path / "codec" / "metrics")) == 7
