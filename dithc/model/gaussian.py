"""Prediction of a flow for normal images, to which a network adds a correction.

Legend: N batch, C channels, H, W image, G groups of bands.
Sources: the Gaussian part of a score, Wang & Vastola 2024 (arXiv 2412.09726); cosine transform (DCT-II), Ahmed et al. 1974.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dithc.config import training
from dithc.diffusion import BandLevels
from dithc.diffusion.cosines import cosine_matrix

TIME_SCALE = 1000.0  # of the timesteps of a flow
# Of a coefficient of the predicted noise, which has the variance 1. An image has larger coefficients than normal images, which
# would be multiplied by up to 1 / t.
MAX_NOISE = 4.0


class GaussianPrediction(nn.Module):
    """Expected velocity noise - x0 of normal images x0, given x_t = (1 - t) x0 + t noise.

    The covariance is diagonal in principal components of the channels and cosines of the image. Each group of bands has its
    own components, and its own noise level: the correlation of groups is left to the network. Parameters are constants of
    the training data, not trained: `mean` (C), `basis` (C, C) with the component of channel c in column c, `variance`
    (C, H, W) of the cosine coefficients.
    """

    def __init__(self, channels: int, size: tuple[int, int], groups: Sequence[training.BandGroup] = ()) -> None:
        """Start with independent pixels of mean 0 and variance 1."""
        super().__init__()
        self._levels = BandLevels(groups, num_bands=channels)
        self.mean = nn.Parameter(torch.zeros(channels), requires_grad=False)
        self.basis = nn.Parameter(torch.eye(channels), requires_grad=False)
        self.variance = nn.Parameter(torch.ones(channels, *size), requires_grad=False)

    @torch.no_grad()
    def fit(self, *, mean: Tensor, basis: Tensor, variance: Tensor) -> None:
        """Set the constants."""
        for constant, value in ((self.mean, mean), (self.basis, basis), (self.variance, variance)):
            constant.copy_(value)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """Return the velocity, fp32 (N, C, H, W).

        Args:
            x: (N, C, H, W), noisy images.
            t: (N), timesteps of 0 to 1000.
            y: (N, ...), conditions, whose last G columns are the levels of groups.
        """
        with torch.autocast(x.device.type, enabled=False):
            noise = (self._levels.of(t, y).float() / TIME_SCALE)[..., None, None]  # (N, C or 1, 1, 1)
            signal, mean = 1 - noise, self.mean[:, None]  # (C, 1)
            rows, columns = (cosine_matrix(side, torch.float32) for side in x.shape[2:])
            centered = x.float().flatten(2) - signal[..., 0] * mean
            coefficients = rows @ (self.basis.T @ centered).reshape(x.shape) @ columns.T
            scaled = coefficients / (signal**2 * self.variance + noise**2)
            found = (noise * scaled).clamp(-MAX_NOISE, MAX_NOISE) - signal * self.variance * scaled
            components = rows.T @ found @ columns
            return (self.basis @ components.flatten(2) - mean).reshape(x.shape)

    @torch.no_grad()
    def hidden_offset(self, x: Tensor, t: Tensor, y: Tensor, visible: Tensor) -> Tensor:
        """Return `forward` minus the prediction of images with hidden pixels, (N, C, H, W).

        Hidden pixels of x are pure noise (`Objective.hide`), of which `forward` would find a share in visible pixels. In
        their place, the prediction has the mean, and in the result the distance of the noise from the predicted image.

        Args:
            x: As in `forward`, as t and y.
            visible: (N, 1 or C, H, W), bool.
        """
        noise = (self._levels.of(t, y).float() / TIME_SCALE)[..., None, None]
        filled = torch.where(visible, x.float(), (1 - noise) * self.mean[:, None, None])
        velocity = self(filled, t, y)
        offset: Tensor = self(x, t, y) - torch.where(visible, velocity, x - (filled - noise * velocity))
        return offset
