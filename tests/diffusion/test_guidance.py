"""Tests of guidance: inputs of the models and combination of the two halves."""

from typing import Any

import pytest
import torch
from torch import Tensor

from dithc.core.logging import UserError
from dithc.diffusion import guided_denoiser

NULL = 9


class Model:
    """Model that returns (label, then 10 * label for the variance) in every channel and records its batches."""

    def __init__(self) -> None:
        self.batches: list[tuple[Tensor, Tensor, Tensor]] = []

    def __call__(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        self.batches.append((x, t, y))
        level = y.float().reshape(-1, 1, 1, 1)
        return torch.cat([level.expand_as(x), 10 * level.expand_as(x)], dim=1)


X, T, LABELS = torch.randn(2, 4, 2, 2), torch.tensor([5, 5]), torch.tensor([1, 2])


def test_both_halves_run_in_a_single_batch() -> None:
    model = Model()
    guided_denoiser(model, LABELS, null_label=NULL, scale=4.0)(X, T)
    ((x, t, y),) = model.batches
    assert torch.equal(x, torch.cat([X, X]))
    assert t.tolist() == [5, 5, 5, 5]
    assert y.tolist() == [1, 2, NULL, NULL]


def test_noise_channels_are_guided_and_variance_uses_the_labeled_half() -> None:
    out = guided_denoiser(Model(), LABELS, null_label=NULL, scale=1.5)(X, T)
    assert out[:, :4].flatten(1).unique(dim=1).flatten().tolist() == [NULL + 1.5 * (1 - NULL), NULL + 1.5 * (2 - NULL)]
    assert out[:, 4:].flatten(1).unique(dim=1).flatten().tolist() == [10, 20]


def test_first3_guides_only_the_first_three_channels() -> None:
    out = guided_denoiser(Model(), LABELS, null_label=NULL, scale=1.5, channels="first3")(X, T)
    assert out[0, :, 0, 0].tolist() == [NULL + 1.5 * (1 - NULL)] * 3 + [1] + [10] * 4


def test_only_the_labeled_half_runs_outside_the_interval() -> None:
    for t, is_inside in ((19, False), (20, True), (30, True), (30.5, False)):
        model, plain = Model(), Model()
        times = torch.tensor([t, t])
        out = guided_denoiser(model, LABELS, null_label=NULL, scale=3.0, interval=(20, 30))(X, times)
        expected = guided_denoiser(plain, LABELS, null_label=NULL, scale=3.0 if is_inside else 1.0)(X, times)
        assert torch.equal(out, expected)
        assert [len(batch[0]) for batch in model.batches] == [4 if is_inside else 2]


@pytest.mark.parametrize("channels", ["all", "first3"])
def test_guide_with_the_same_labels_replaces_the_unlabeled_half(channels: Any) -> None:
    def network(x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x * y.reshape(-1, 1, 1, 1), x + 1], dim=1)

    def guide(x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x.sin() + y.reshape(-1, 1, 1, 1), x - 1], dim=1)

    out = guided_denoiser(network, LABELS, null_label=NULL, scale=1.7, guide=guide, channels=channels)(X, T)
    away, towards = guide(X, T, LABELS), network(X, T, LABELS)
    expected = away + 1.7 * (towards - away)
    stop = 4 if channels == "all" else 3
    torch.testing.assert_close(out[:, :stop], expected[:, :stop])
    assert torch.equal(out[:, stop:], towards[:, stop:])


def test_guide_is_not_run_at_scale_one_or_outside_of_the_interval() -> None:
    guide = Model()
    guided_denoiser(Model(), LABELS, null_label=None, scale=1.0, guide=guide)(X, T)
    guided_denoiser(Model(), LABELS, null_label=None, scale=2.0, guide=guide, interval=(6, 9))(X, T)
    assert not guide.batches
    guided_denoiser(Model(), LABELS, null_label=None, scale=2.0, guide=guide, interval=(5, 9))(X, T)
    assert [batch[2].tolist() for batch in guide.batches] == [[1, 2]]


def test_missing_null_label_and_unknown_channels_are_rejected() -> None:
    with pytest.raises(UserError, match="null label"):
        guided_denoiser(Model(), LABELS, null_label=None, scale=1.5)
    with pytest.raises(UserError, match="all or first3"):
        guided_denoiser(Model(), LABELS, null_label=NULL, scale=1.5, channels="last")  # type: ignore[arg-type]


class Listens:
    """Model that returns the mean of a condition in every channel, 7 without a condition, and records its inputs."""

    def __init__(self) -> None:
        self.inputs: list[Any] = []

    def __call__(self, x: Tensor, t: Tensor, y: Any) -> Tensor:
        self.inputs.append(y)
        level = torch.full((len(x),), 7.0) if y is None else y.flatten(1).mean(dim=1)
        return level.reshape(-1, 1, 1, 1).expand_as(x)


TOLD = torch.tensor([[[1.0, 3.0]], [[4.0, 6.0]]])  # (N, 1, 2): means 2 and 5


@pytest.mark.parametrize("shape", [(1, 2), (1, 1, 2), (2, 1, 2)])
def test_null_condition_tensor_is_shared_or_per_image(shape: tuple[int, ...]) -> None:
    model = Listens()
    out = guided_denoiser(model, TOLD, null=torch.full(shape, 0.5, dtype=torch.float64), scale=3.0)(X, T)
    assert [tuple(condition.shape) for condition in model.inputs] == [(4, 1, 2)]  # both halves in one batch
    assert out[:, 0, 0, 0].tolist() == [0.5 + 3.0 * (2.0 - 0.5), 0.5 + 3.0 * (5.0 - 0.5)]


def test_nontensor_null_condition_is_passed_unchanged() -> None:
    model = Listens()
    out = guided_denoiser(model, TOLD, null=None, scale=3.0)(X, T)
    assert [condition is None for condition in model.inputs] == [False, True]
    assert out[:, 0, 0, 0].tolist() == [7.0 + 3.0 * (2.0 - 7.0), 7.0 + 3.0 * (5.0 - 7.0)]


def test_null_condition_of_wrong_shape_or_given_twice_is_rejected() -> None:
    with pytest.raises(UserError, match=r"shape of the null condition[\s\S]*\(3,\)[\s\S]*\(1, 2\)"):
        guided_denoiser(Listens(), TOLD, null=torch.zeros(3), scale=2.0)
    with pytest.raises(UserError, match="both `null_label` and `null`"):
        guided_denoiser(Model(), LABELS, null_label=9, null=torch.tensor(9), scale=2.0)
