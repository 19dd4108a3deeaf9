"""Prediction of a flow for normal images, to which a network adds a correction.

Legend: N batch, C channels, H, W image, R rings of spatial frequencies, G groups of bands.
Sources: the Gaussian part of a score, Wang & Vastola 2024 (arXiv 2412.09726); cosine transform (DCT-II), Ahmed et al. 1974.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

from dithc.config import training
from dithc.diffusion import BandLevels, cosines

TIME_SCALE = 1000.0  # of the timesteps of a flow
TINY = 1e-12
SUM_LENGTH = 4096
MIN_RATIO, MAX_RATIO = 1e-3, 1e3  # of the variance of an image to that of the data


class GaussianPrediction(nn.Module):
    """Expected velocity noise - x0 of normal images x0, given x_t = (1 - t) x0 + t noise.

    The covariance is diagonal in principal components of the channels and cosines of the image. It is scaled for each image,
    component and ring of frequencies, to the variance that x_t has beyond the noise: water is smoother than the mean of the
    data. Each group of bands has its own components, and its own noise level: the correlation of groups is left to the
    network. Parameters are constants of the training data, not trained: `mean` (C), `basis` (C, C) with the component of
    channel c in column c, `variance` (C, H, W) of the cosine coefficients.
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

    def forward(self, x: Tensor, t: Tensor, y: Tensor, visible: Tensor | None = None) -> Tensor:
        """Return the velocity, fp32 (N, C, H, W).

        Args:
            x: (N, C, H, W), noisy images.
            t: (N), timesteps of 0 to 1000.
            y: (N, ...), conditions, whose last G columns are the levels of groups.
            visible: (N, 1 or C, H, W), bool, pixels that are not filled with the mean; all by default.
        """
        with torch.autocast(x.device.type, enabled=False):
            noise = (self._levels.of(t, y).float() / TIME_SCALE)[..., None, None]  # (N, C or 1, 1, 1)
            signal, mean = 1 - noise, self.mean[:, None]  # (C, 1)
            rows, columns = (cosines.cosine_matrix(side, torch.float32) for side in x.shape[2:])
            centered = x.float().flatten(2) - signal[..., 0] * mean
            coefficients = rows @ (self.basis.T @ centered).reshape(x.shape) @ columns.T
            share = 1.0 if visible is None else visible.float().mean((2, 3))[..., None].clamp(min=TINY)
            variance = self._scaled_variance(coefficients, signal[..., 0], noise[..., 0], share)  # (N, C, H, W)
            scaled = coefficients / (signal**2 * variance + noise**2)
            components = rows.T @ (scaled * (noise - signal * variance)) @ columns
            return (self.basis @ components.flatten(2) - mean).reshape(x.shape)

    def _scaled_variance(self, coefficients: Tensor, signal: Tensor, noise: Tensor, share: Tensor | float) -> Tensor:
        """Return the variance of the cosine coefficients of each image x0, (N, C, H, W).

        It is `variance` times a ratio for each ring: the mean square of the ring's coefficients beyond the noise, over its
        expectation. Noise of level s in n coefficients of expected variance S gives the ratio an error e = s^2 / S sqrt(2 / n).
        Its logarithm has the weight 1 / (1 + e^2).

        Args:
            coefficients: Cosine coefficients of the components of x_t - signal mean, (N, C, H, W).
            signal: (N, C or 1, 1), as `noise`.
            noise: Noise level.
            share: Share of the pixels that contribute to the coefficients, (N, C or 1, 1).
        """
        ring, _, counts = rings(coefficients.shape[2], coefficients.shape[3])
        expected = (signal**2 * ring_means(self.variance)).clamp(min=TINY)  # (N, C, R)
        found = ring_means(coefficients.square()) / share - noise**2
        weight = 1 / (1 + (noise**2 / expected) ** 2 * (2 / torch.tensor(counts)))
        ratio = ((found / expected).clamp(MIN_RATIO, MAX_RATIO).log() * weight).exp()  # (N, C, R)
        return ratio[:, :, ring] * self.variance

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
        velocity = self(filled, t, y, visible)
        offset: Tensor = self(x, t, y) - torch.where(visible, velocity, x - (filled - noise * velocity))
        return offset


@lru_cache(maxsize=8)
def rings(height: int, width: int) -> tuple[Tensor, Tensor, list[int]]:
    """Return the ring (H, W) of each cosine, an octave of frequencies, the cosines (H W) by ring, and their numbers."""
    frequency = torch.hypot(*torch.meshgrid(torch.arange(height) / height, torch.arange(width) / width, indexing="ij"))
    octave = (frequency * min(height, width)).clamp(min=0.5).log2().floor()  # -1 for the constant
    ring = torch.unique(octave, return_inverse=True)[1]
    return ring, ring.flatten().argsort(stable=True), ring.flatten().bincount().tolist()


def ring_means(x: Tensor) -> Tensor:
    """Return the means (..., R) of x (..., H, W) over rings, with the same bits for any number of threads.

    Torch divides a single long sum among threads.
    """
    _, order, counts = rings(x.shape[-2], x.shape[-1])
    parts = torch.split(x.flatten(-2)[..., order], counts, dim=-1)
    sums = [
        torch.stack([piece.sum(-1) for piece in torch.split(part, SUM_LENGTH, dim=-1)], dim=-1).sum(-1)
        for part in parts
    ]
    return torch.stack(sums, dim=-1) / torch.tensor(counts)
