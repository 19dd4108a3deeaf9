"""Tests of the Gaussian prediction against dense linear algebra, and of its place in the network."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from dithc.core.logging import UserError
from dithc.model import DiT, DiTConfig, adapt_state_dict
from dithc.model.gaussian import GaussianPrediction
from dithc.sample.parallel import ParallelDenoiser
from tests.model.scaled_variance import scaled_variance

CONFIG = DiTConfig(
    32, 1, 2, 2, input_size=(4, 6), in_channels=2, num_classes=1, learn_sigma=False, gaussian_prediction=True
)
BASIS = torch.tensor([[0.8, 0.6], [-0.6, 0.8]])


def network(config: DiTConfig = CONFIG) -> DiT:
    torch.manual_seed(0)
    model = DiT(config)
    assert model.gaussian is not None
    torch.nn.init.normal_(model.final_layer.linear.weight, std=0.1)
    channels, size = config.in_channels, config.size
    basis = BASIS if channels == 2 else torch.eye(channels)
    model.gaussian.fit(mean=torch.full((channels,), 0.3), basis=basis, variance=0.1 + 3 * torch.rand(channels, *size))
    return model


def cosines(side: int) -> Tensor:
    rows = [[math.cos(math.pi * k * (i + 0.5) / side) for i in range(side)] for k in range(side)]
    return torch.nn.functional.normalize(torch.tensor(rows, dtype=torch.float64), dim=1)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(3, 2, 4, 6, generator=generator),
        torch.tensor([1000.0, 400.0, 5.0]),
        torch.zeros(3, dtype=torch.int),
    )


@pytest.mark.parametrize("scale", [1.0, 0.05])
def test_prediction_is_the_expected_velocity_of_normal_images_of_the_variance_in_the_image(scale: float) -> None:
    """Compare with E[noise - x0 | x_t] of the dense joint distribution, in float64."""
    gaussian = network().gaussian
    assert gaussian is not None
    waves = torch.kron(
        BASIS.T.double().contiguous(), torch.kron(cosines(4), cosines(6))
    )  # (48, 48), component and cosine by pixel
    x, t, y = inputs()
    x *= scale
    for image, time, found in zip(x, (t / 1000).tolist(), gaussian(x, t, y), strict=True):
        centered = image.double().flatten() - (1 - time) * 0.3
        coefficients, each = (waves @ centered).reshape(2, 4, 6).numpy(), np.ones(2)
        data = gaussian.variance.double().numpy()
        variance = torch.from_numpy(scaled_variance(coefficients, data, level=time * each, share=each))
        covariance = waves.T @ torch.diag(variance.flatten()) @ waves
        solved = torch.linalg.solve((1 - time) ** 2 * covariance + time**2 * torch.eye(48), centered)
        expected = time * solved - 0.3 - (1 - time) * covariance @ solved
        torch.testing.assert_close(found.flatten().double(), expected, rtol=1e-4, atol=1e-4)


def test_noise_of_a_smooth_image_is_found_although_the_data_are_rough() -> None:
    gaussian = GaussianPrediction(1, (32, 32))  # pixels of variance 1
    noise = torch.randn(1, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    velocity = gaussian(0.1 * noise, torch.tensor([100.0]), torch.zeros(1, dtype=torch.int))  # of the image 0
    assert (velocity - noise).square().mean() < 0.1


def test_output_is_the_sum_in_training_and_sampling_with_bits_independent_of_the_batch() -> None:
    model, (x, t, y) = network(), inputs()
    assert model.gaussian is not None
    alone = DiT(DiTConfig(**CONFIG.described() | {"gaussian_prediction": False}))
    alone.load_state_dict({key: value for key, value in model.state_dict().items() if not key.startswith("gaussian.")})
    with torch.no_grad():
        torch.testing.assert_close(model(x, t, y), alone(x, t, y) + model.gaussian(x, t, y), rtol=0, atol=1e-6)
    denoise = ParallelDenoiser(model.eval())
    torch.testing.assert_close(denoise(x, t, y), model(x, t, y), rtol=0, atol=1e-5)
    assert torch.equal(model.gaussian(x, t, y)[1:2], model.gaussian(x[1:2], t[1:2], y[1:2]))


def test_fine_tuning_keeps_the_constants_of_equal_channels_and_estimates_others() -> None:
    source = network()
    state, changes = adapt_state_dict(source.state_dict(), DiT(CONFIG), source=CONFIG)
    assert not changes
    assert torch.equal(state["gaussian.variance"], source.state_dict()["gaussian.variance"])
    wider = DiTConfig(**CONFIG.described() | {"in_channels": 3})
    target = network(wider)
    state, changes = adapt_state_dict(source.state_dict(), target, source=CONFIG)
    assert any("Gaussian" in change for change in changes)
    assert torch.equal(state["gaussian.mean"], target.state_dict()["gaussian.mean"])
    with pytest.raises(UserError, match="gaussian_prediction"):
        adapt_state_dict(source.state_dict(), DiT(DiTConfig(**CONFIG.described() | {"gaussian_prediction": False})))
