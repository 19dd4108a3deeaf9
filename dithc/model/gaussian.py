"""Prediction of a flow for normal images, to which a network adds a correction.

Legend: N batch, C channels, H, W image.
Sources: the Gaussian part of a score, Wang & Vastola 2024 (arXiv 2412.09726); cosine transform (DCT-II), Ahmed et al. 1974.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor, nn

TIME_SCALE = 1000.0  # of the timesteps of a flow


class GaussianPrediction(nn.Module):
    """Expected velocity noise - x0 of normal images x0, given x_t = (1 - t) x0 + t noise.

    The covariance is diagonal in principal components of the channels and cosines of the image. Parameters are constants
    of the training data, not trained: `mean` (C), `basis` (C, C) with components in columns, `variance` (C, H, W) of the
    cosine coefficients.
    """

    def __init__(self, channels: int, size: tuple[int, int]) -> None:
        """Start with independent pixels of mean 0 and variance 1."""
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(channels), requires_grad=False)
        self.basis = nn.Parameter(torch.eye(channels), requires_grad=False)
        self.variance = nn.Parameter(torch.ones(channels, *size), requires_grad=False)

    @torch.no_grad()
    def fit(self, *, mean: Tensor, basis: Tensor, variance: Tensor) -> None:
        """Set the constants."""
        for constant, value in ((self.mean, mean), (self.basis, basis), (self.variance, variance)):
            constant.copy_(value)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the velocity, fp32 (N, C, H, W), of noisy images x (N, C, H, W) at timesteps t (N) of 0 to 1000."""
        with torch.autocast(x.device.type, enabled=False):
            noise = (t.float() / TIME_SCALE)[:, None, None, None]
            signal, mean = 1 - noise, self.mean[:, None]  # (N, 1, 1, 1), (C, 1)
            rows, columns = (cosine_matrix(side) for side in x.shape[2:])
            centered = x.float().flatten(2) - signal[..., 0] * mean
            coefficients = rows @ (self.basis.T @ centered).reshape(x.shape) @ columns.T
            gain = (noise - signal * self.variance) / (signal**2 * self.variance + noise**2)
            components = rows.T @ (gain * coefficients) @ columns
            return (self.basis @ components.flatten(2) - mean).reshape(x.shape)


@lru_cache(maxsize=8)
def cosine_matrix(side: int) -> Tensor:
    """Return the orthonormal cosines by frequency and pixel, fp32 (side, side)."""
    frequency, pixel = torch.arange(side, dtype=torch.float64)[:, None], torch.arange(side) + 0.5
    matrix = math.sqrt(2 / side) * torch.cos(math.pi / side * frequency * pixel)
    matrix[0] /= math.sqrt(2)
    return matrix.float()
