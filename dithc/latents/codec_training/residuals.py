"""Fit of the decoder's distribution to training tiles, in closed form: noise, and covariance of bands.

Legend: N batch, C bands, H, W tile; P numbers of a patch, h, w latent; D width of the decoder.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional

from dithc.latents.codecs import autoencoder

SMALLEST_SQUARE = 1e-10  # of scaled pixels: residuals below are rounding
RIDGE = 1e-3  # relative to the mean square of the activations
# Of the deviation of residuals: noise looks stronger than structures of equal deviation (docs/quality.md).
NOISE_SHARE = 0.5
BAND_RIDGE = 1e-3  # relative to the mean variance of bands; directions of less variance hardly change
MAX_GAIN = 3.0  # of the deviation of a combination of bands
SMALL_VARIANCE = 1e-6  # of averages of scaled pixels, sum of all bands; images below hardly count


@torch.no_grad()
def fit_noise(net: autoencoder.Autoencoder, images: Callable[[], Iterable[Tensor]]) -> None:
    """Set the decoder's noise from all images (N, C, H, W) in [-1, 1], which are read twice; float64.

    The log of a patch's residual deviation is regressed on the decoder's last activations. Residuals over this strength have a
    common covariance. The noise of a patch has mean 0 in each band, so that it does not change averages over patches.
    """
    if not net.sizes.noise_channels:
        return
    width, patch = net.sizes.hidden_channels, net.sizes.patch
    count, gram, moment = 0, torch.zeros(width + 1, width + 1).double(), torch.zeros(width + 1).double()
    low, high = float("inf"), -float("inf")
    for x in images():
        residual, hidden = _residual(net, x)
        target = _rows(residual).square().mean(dim=1).clamp(min=SMALLEST_SQUARE).log() / 2  # (N h w)
        features = functional.pad(_rows(hidden), (0, 1), value=1.0)  # (N h w, D + 1)
        count, gram, moment = count + len(target), gram + features.T @ features, moment + features.T @ target
        low, high = min(low, float(target.min())), max(high, float(target.max()))
    penalty = RIDGE * gram.diagonal().mean() * torch.eye(width + 1).double()
    net.strength.copy_(torch.linalg.solve(gram + penalty, moment))
    net.strength_range.copy_(torch.tensor([low, high]))
    covariance = torch.zeros(patch, patch).double()
    for x in images():
        residual, hidden = _residual(net, x)
        rows = _rows(residual / net.strength_of(hidden))  # (N h w, P)
        rows = rows.reshape(len(rows), net.sizes.bands, -1)  # (N h w, C, f^2)
        rows = (rows - rows.mean(dim=2, keepdim=True)).reshape(len(rows), patch)
        covariance += rows.T @ rows
    variances, directions = torch.linalg.eigh(covariance / count)
    net.noise_factor.copy_(NOISE_SHARE * directions * variances.clamp(min=0.0).sqrt() @ directions.T)


@torch.no_grad()
def fit_bands(net: autoencoder.Autoencoder, images: Iterable[Tensor]) -> None:
    """Set the change of bands in samples from images (N, C, H, W) in [-1, 1]; float64.

    I + change maps the covariance of bands within reconstructed tiles to that within real tiles. Both are of averages over
    patches, which the noise does not change. Of all such maps, it changes pixels least: the optimal transport between two
    Gaussian distributions (Pitie and Kokaram, "The linear Monge-Kantorovitch linear colour mapping", 2007).
    """
    if not net.sizes.noise_channels:
        return
    real, decoded = torch.zeros(2, net.sizes.bands, net.sizes.bands).double()
    for x in images:
        real += _band_covariance(x, net.downsampling_factor)
        decoded += _band_covariance(net.decode(net.encode(x)[0]), net.downsampling_factor)
    ridge = (BAND_RIDGE * real.diagonal().mean()).clamp(min=SMALLEST_SQUARE) * torch.eye(net.sizes.bands).double()
    root, inverse = _power(decoded + ridge, 0.5), _power(decoded + ridge, -0.5)
    gains, directions = torch.linalg.eigh(inverse @ _power(root @ (real + ridge) @ root, 0.5) @ inverse)
    net.band_change.copy_(directions * (gains.clamp(1 / MAX_GAIN, MAX_GAIN) - 1.0) @ directions.T)


def _band_covariance(x: Tensor, factor: int) -> Tensor:
    """Return the sum of the covariances of bands (C, C) within images, of averages over factor x factor pixels.

    The trace of each covariance is 1, so that all images count equally; smaller without contrast.
    """
    values = functional.avg_pool2d(x, factor).flatten(2).double()  # (N, C, h w)
    values = values - values.mean(dim=2, keepdim=True)
    covariance = values @ values.mT / values.shape[2]  # (N, C, C)
    return (covariance / (covariance.diagonal(dim1=1, dim2=2).sum(dim=1) + SMALL_VARIANCE)[:, None, None]).sum(dim=0)


def _power(matrix: Tensor, exponent: float) -> Tensor:
    """Return a power of a symmetric positive definite matrix."""
    values, vectors = torch.linalg.eigh(matrix)
    power: Tensor = vectors * values**exponent @ vectors.T
    return power


def _residual(net: autoencoder.Autoencoder, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return patches of tiles minus reconstructions (N, P, h, w), and the decoder's last activations (N, D, h, w)."""
    patches, hidden = net.decode_patches(net.encode(x)[0])
    return functional.pixel_unshuffle(x, net.downsampling_factor) - patches, hidden


def _rows(values: Tensor) -> Tensor:
    """Return the values (N, D, h, w) of each place in float64, (N h w, D)."""
    return values.movedim(1, -1).reshape(-1, values.shape[1]).double()
