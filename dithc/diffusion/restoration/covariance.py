"""Stationary covariance of images: principal components of the bands, each with a radial covariance in space.

Legend: N images, C bands or components, H, W image, n tiles, R lags.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

CHUNK = 16  # tiles per Fourier transform
CACHE_VALUES = 1 << 18  # of planes that are transformed together: 1 MiB in float32
FLOOR = 1e-5  # of the spectrum, relative to the variance: sampling errors make small values negative


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
        share = torch.arange(lags, dtype=torch.float64) / lags  # of the range
        taper = (1 - share) ** 4 * (4 * share + 1)  # Wendland 1995: positive definite in up to three dimensions
        return cls(mean, basis, (radial - offset[:, None]) * taper, offset)

    def state(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return the arrays of the covariance by name."""
        return {field.name: getattr(self, field.name).numpy() for field in fields(self)}

    @classmethod
    def of_state(cls, state: Mapping[str, npt.NDArray[np.float64]]) -> Self:
        """Return the covariance of arrays from `state`."""
        return cls(**{field.name: torch.as_tensor(state[field.name], dtype=torch.float64) for field in fields(cls)})

    def spectrum(self, size: tuple[int, int]) -> Tensor:
        """Return the power spectrum (C, height, width // 2 + 1) on the torus for images of a size, float64.

        The torus is larger than the image by R, so that no pixel is correlated across the border of the image.
        """
        torus, lags = self._torus(size), self.radial.shape[1]
        lower, share = _interpolation(_torus_distances(*torus), lags)
        values = torch.nn.functional.pad(self.radial, (0, 2))  # (C, R + 2)
        plane = (1 - share) * values[:, lower] + share * values[:, lower + 1]  # (C, height, width)
        waves: Tensor = torch.fft.rfft2(plane).real.clamp(min=FLOOR * float(self.radial[:, 0].max()))
        waves[:, 0, 0] += self.offset * math.prod(torus)
        return waves

    def apply(self, x: Tensor) -> Tensor:
        """Return the product of the covariance and x (N, C, H, W)."""
        return self.filter(x, self.spectrum((x.shape[2], x.shape[3])))

    def filter(self, x: Tensor, spectrum: Tensor) -> Tensor:
        """Multiply x (N, C, H, W), continued by zeros, by a spectrum (C, height, width // 2 + 1) of its torus."""
        basis = self.basis.to(x.dtype)
        components = (basis.T @ x.flatten(2)).reshape(x.shape)
        filtered = filter_planes(components, spectrum)
        return (basis @ filtered.flatten(2)).reshape(x.shape)

    def _torus(self, size: tuple[int, int]) -> tuple[int, int]:
        from scipy.fft import next_fast_len  # scipy takes as long as the rest of the package

        height, width = (2 * next_fast_len(-(-(side + self.radial.shape[1]) // 2)) for side in size)
        return height, width


def filter_planes(x: Tensor, spectrum: Tensor) -> Tensor:
    """Multiply the planes of x (N, C, H, W), continued by zeros, by a spectrum (C, height, width // 2 + 1)."""
    torus, (height, width) = (spectrum.shape[1], 2 * (spectrum.shape[2] - 1)), x.shape[2:]
    result, count = torch.empty_like(x), planes_in_cache(torus)
    images, planes = max(1, count // len(spectrum)), min(count, len(spectrum))
    for image in range(0, len(x), images):
        for plane in range(0, len(spectrum), planes):
            part = slice(image, image + images), slice(plane, plane + planes)
            waves = torch.fft.rfft2(x[part], s=torus)
            torch.view_as_real(waves).mul_(spectrum[part[1], ..., None])
            result[part] = torch.fft.irfft2(waves, s=torus)[..., :height, :width]
    return result


def planes_in_cache(torus: tuple[int, int]) -> int:
    """Return the number of planes to transform together, which fit in the cache of a core."""
    return max(1, CACHE_VALUES // math.prod(torus))


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
