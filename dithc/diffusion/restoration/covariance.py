"""Stationary covariance of images: principal components of the bands, each with a radial covariance in space.

Products use cosine coefficients (see `cosines.py`), which are nearly uncorrelated.

Legend: N images, C bands or components, H, W image, n tiles, R lags.
Source: cosine transform of a correlated signal, Ahmed et al. 1974.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

CHUNK = 16  # tiles per Fourier transform
FLOOR = 1e-5  # of the spectrum, relative to the variance: sampling errors make small values negative


@contextmanager
def _single_thread() -> Iterator[None]:
    """Run torch's operators on one thread, because sums and linear algebra have other bits on several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True, eq=False)
class RadialCovariance:
    """Mean and stationary covariance of a dataset, for images of any size.

    Attributes:
        mean: (C), mean of each band.
        basis: (C, C), orthonormal; columns are the principal components of the bands.
        radial: (C, R), covariance of each component at lags 0 .. R - 1 pixels, 0 from lag R on.
        offset: (C), variance of a constant per component and image, for correlations that do not fall within a tile.

    All are float64.
    """

    mean: Tensor
    basis: Tensor
    radial: Tensor
    offset: Tensor

    @classmethod
    @_single_thread()
    def of(cls, tiles: npt.NDArray[np.floating] | Tensor) -> Self:
        """Estimate the covariance from tiles (n, C, h, w); a few hundred suffice. Pixels with a NaN band are ignored.

        Products of pixel pairs are averaged per lag, so that the borders of tiles leave no trace. The mean over the
        far lags is the variance of the constant. A positive definite taper ends the rest at lag R = min(h, w).
        """
        data = torch.as_tensor(np.asarray(tiles))
        valid = data.isfinite().all(1)  # (n, h, w)
        pixels = data.movedim(1, -1)[valid].double()  # (pixels, C)
        mean = pixels.mean(0)
        basis = torch.linalg.eigh(torch.cov(pixels.T, correction=0).reshape(len(mean), -1)).eigenvectors
        lags = min(data.shape[2:])
        products = pairs = torch.zeros(())  # by lag, (C, 2 h, 2 w) and (2 h, 2 w)
        for first in range(0, len(data), CHUNK):
            where = valid[first : first + CHUNK]
            residual = torch.where(where[:, None], data[first : first + CHUNK] - mean[:, None, None], 0.0)
            products = products + _pair_sums(torch.einsum("cd,nchw->ndhw", basis, residual))
            pairs = pairs + _pair_sums(where.double())
        radial = _radial_fit(products, pairs, lags)  # (C, R)
        offset = radial[:, lags // 2 :].mean(1).clamp(min=0)
        return cls(mean, basis, (radial - offset[:, None]) * _taper(lags), offset)

    def bounded(self) -> Self:
        """Return the covariance without correlation between distant pixels: the constant decays to 0 within 2 R lags."""
        lags = self.radial.shape[1]
        radial = torch.nn.functional.pad(self.radial, (0, lags)) + self.offset[:, None] * _taper(2 * lags)
        return replace(self, radial=radial, offset=torch.zeros_like(self.offset))

    def state(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return the arrays of the covariance by name."""
        return {field.name: getattr(self, field.name).numpy() for field in fields(self)}

    @classmethod
    def of_state(cls, state: Mapping[str, npt.NDArray[np.float64]]) -> Self:
        """Return the covariance of arrays from `state`."""
        return cls(**{field.name: torch.as_tensor(state[field.name], dtype=torch.float64) for field in fields(cls)})

    @_single_thread()
    def spectrum(self, size: tuple[int, int]) -> Tensor:
        """Return the variance of each cosine coefficient of images of a size, float64 (C, H, W)."""
        rows, columns = (_lag_weights(side, self.radial.shape[1]) for side in size)  # (H, r), (W, r)
        lags = [torch.arange(weights.shape[1], dtype=torch.float64) for weights in (rows, columns)]
        lower, share = _interpolation(torch.hypot(lags[0][:, None], lags[1]), self.radial.shape[1])
        values = torch.nn.functional.pad(self.radial, (0, 2))  # (C, R + 2)
        plane = (1 - share) * values[:, lower] + share * values[:, lower + 1]  # (C, r, r)
        variances: Tensor = (rows @ plane @ columns.T).clamp(min=FLOOR * float(self.radial[:, 0].max()))
        variances[:, 0, 0] += self.offset * math.prod(size)
        return variances

    def multiply(self, coefficients: Tensor, spectrum: Tensor) -> Tensor:
        """Multiply the components of cosine coefficients (N, C, H, W) of bands by a spectrum (C, H, W)."""
        basis = self.basis.to(coefficients.dtype)
        components = (basis.T @ coefficients.flatten(2)).reshape(coefficients.shape).mul_(spectrum)
        return (basis @ components.flatten(2)).reshape(coefficients.shape)


def _lag_weights(length: int, lags: int) -> Tensor:
    """Return, for each cosine on `length` pixels, its sums of products of two pixels at lags below `lags`, (length, r).

    The variance of a coefficient is the sum of these weights times the covariance at each lag of both signs.
    """
    lag = torch.arange(min(length, lags), dtype=torch.float64)
    angle = math.pi / length * torch.arange(length, dtype=torch.float64)[:, None]
    ends = torch.sin(lag * angle) / torch.sin(angle)
    ends[0] = 0  # of the constant
    weights = ((length - lag) * torch.cos(lag * angle) - ends) / length
    weights[:, 1:] *= 2
    return weights


def _taper(lags: int) -> Tensor:
    """Return the positive definite function of Wendland (1995) for up to three dimensions, which ends at `lags`."""
    share = torch.arange(lags, dtype=torch.float64) / lags  # of the range
    return (1 - share) ** 4 * (4 * share + 1)


def _pair_sums(x: Tensor) -> Tensor:
    """Return sums (..., 2 h, 2 w) over images x (n, ..., h, w) of the products of two pixels, by their lag."""
    shape = 2 * x.shape[-2], 2 * x.shape[-1]  # without wrapping
    sums: Tensor = torch.fft.irfft2(torch.fft.rfft2(x, s=shape).abs().square().sum(0), s=shape)
    return sums


def _radial_fit(products: Tensor, pairs: Tensor, lags: int) -> Tensor:
    """Return the piecewise linear covariance (C, R) that fits the mean products in the least squares sense.

    Args:
        products: (C, 2 h, 2 w), sums over pixel pairs by lag.
        pairs: (2 h, 2 w), number of pairs.
        lags: R.
    """
    distance = _torus_distances(*pairs.shape)
    near = (distance < lags) & (pairs > 0.5)
    lower, share = _interpolation(distance[near], lags)
    hats = torch.zeros(len(lower), lags + 1, dtype=torch.float64)  # weight of each lag
    hats.scatter_(1, lower[:, None], (1 - share)[:, None]).scatter_add_(1, lower[:, None] + 1, share[:, None])
    normal = hats.T @ (hats * pairs[near][:, None])
    normal += 1e-9 * normal.trace() * torch.eye(lags + 1, dtype=torch.float64)  # lags without pairs have covariance 0
    radial: Tensor = torch.linalg.solve(normal, hats.T @ products[:, near].T).T
    return radial[:, :lags]


def _torus_distances(height: int, width: int) -> Tensor:
    """Return the distance (height, width) of each pixel of a torus to pixel (0, 0)."""
    rows, columns = (torch.minimum(steps, len(steps) - steps) for steps in (torch.arange(height), torch.arange(width)))
    return torch.hypot(rows[:, None].double(), columns.double())


def _interpolation(distance: Tensor, last: int) -> tuple[Tensor, Tensor]:
    """Return the lag below each distance, at most `last`, and the share of the following lag."""
    lower = distance.floor().long().clamp(max=last)
    return lower, (distance - lower).clamp(max=1)
