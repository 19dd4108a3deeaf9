"""Preconditioned conjugate gradients for the posterior mean.

Legend: N images, C bands, H, W image, M observed numbers, F frequencies of the torus.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from dithc.core.logging import get_logger
from dithc.diffusion.restoration.covariance import RadialCovariance, on_torus
from dithc.diffusion.restoration.observation import Observation

Multiply = Callable[[Tensor], Tensor]

TOLERANCE = 0.05
CHUNK = 1 << 14  # frequencies per batch of matrix inverses

log = get_logger(__name__)


class Solver:
    """Update of clean images by an observation, for one covariance C of the images."""

    def __init__(
        self, observation: Observation, covariance: RadialCovariance, spectrum: Tensor, *, error: float
    ) -> None:
        """Prepare the preconditioner.

        Args:
            observation: y, A and the noise.
            covariance: Basis of C.
            spectrum: Spectrum of C, (C, height, width // 2 + 1).
            error: Acceptable deviation of the update per pixel, which is added to the noise.
        """
        self._observation, self._covariance, self._spectrum = observation, covariance, spectrum
        operator, dtype = observation.operator, spectrum.dtype
        variance = observation.deviation.double() ** 2 + error**2 * operator.row_norms()  # (M)
        self._variance = variance.to(dtype)
        sums, counts = (operator.adjoint(part[None]).sum((0, 2, 3)) for part in (variance, torch.ones_like(variance)))
        gains = operator.gains((spectrum.shape[1], 2 * (spectrum.shape[2] - 1)))  # (C, height, width // 2 + 1)
        noise = torch.where(counts > 0, sums / counts.clamp(min=1), 1)[:, None, None]  # (C, 1, 1)
        self._inverse: Tensor | None = None
        if torch.equal(gains, gains[:1].expand_as(gains)) and torch.allclose(noise, noise[:1]):
            # A commutes with the basis: the components are separate.
            inverse = 1 / (gains**2 * (gains**2 * spectrum + noise))
            self._filter = torch.where(gains == 0, 0, inverse).to(dtype)
        else:
            self._inverse = self._inverses(gains, noise)

    def update(
        self,
        clean: Tensor,
        *,
        limit: int,
        tolerance: float = TOLERANCE,
        multiply: Multiply | None = None,
        start: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return C A* w for x = `clean` (N, C, H, W), and w = (Sy + A C A*)^-1 (y - A x) (N, M).

        `multiply` multiplies by another C, `start` is an approximate w, `limit` the limit of the iterations.
        """
        operator, covariance = self._observation.operator, self._covariance
        by = multiply or (lambda z: covariance.filter(z, self._spectrum))

        def system(w: Tensor) -> Tensor:
            return self._variance * w + operator.apply(by(operator.adjoint(w)))

        target = self._observation.residual(clean)
        solution = conjugate_gradients(
            system, target, self._precondition, limit=limit, tolerance=tolerance, start=start
        )
        return by(operator.adjoint(solution)), solution

    def _precondition(self, residual: Tensor) -> Tensor:
        operator = self._observation.operator
        x = operator.adjoint(residual)
        if self._inverse is None:
            return operator.apply(self._covariance.filter(x, self._filter))
        return operator.apply(on_torus(x, self._spectrum.shape, self._multiply_inverse))

    def _multiply_inverse(self, waves: Tensor) -> Tensor:
        assert self._inverse is not None
        return torch.stack([(row * waves).sum(1) for row in self._inverse], dim=1)

    def _inverses(self, gains: Tensor, noise: Tensor) -> Tensor:
        """Return G = D^-1 (D C D + noise)^-1 D^-1 by frequency (C, C, height, width), with D the gains; 0 for D = 0.

        Then A G A* (A C A* + Sy) is about 1, as if all pixels of each grid were observed, without aliasing.
        """
        dtype = self._spectrum.dtype
        basis, spectrum = self._covariance.basis.to(dtype), self._spectrum.flatten(1)
        gains, noise = gains.flatten(1).to(dtype), noise.flatten().to(dtype)
        products = (basis[:, None] * basis).flatten(0, 1).T  # (C, C C)
        inverses = torch.empty(*basis.shape, gains.shape[1], dtype=dtype)
        for first in range(0, gains.shape[1], CHUNK):
            part = slice(first, first + CHUNK)
            gain = gains[:, part].T  # (F, C)
            matrix = (spectrum[:, part].T @ products).reshape(-1, *basis.shape)  # C in the bands, (F, C, C)
            matrix *= gain[:, :, None]
            matrix *= gain[:, None]
            matrix.diagonal(dim1=1, dim2=2).add_(torch.where(gain == 0, 1, noise))
            scale = torch.where(gain == 0, 0, 1 / gain)
            inverse = torch.cholesky_inverse(torch.linalg.cholesky(matrix))
            inverse *= scale[:, :, None]
            inverse *= scale[:, None]
            inverses[..., part] = inverse.permute(1, 2, 0)
        return inverses.reshape(*basis.shape, *self._spectrum.shape[1:])


def conjugate_gradients(
    system: Multiply,
    target: Tensor,
    precondition: Multiply,
    *,
    limit: int,
    tolerance: float,
    start: Tensor | None = None,
) -> Tensor:
    """Return approximate solutions (N, M) of a positive definite system, each independent of the other images.

    An image is finished when the norm of its preconditioned residual is below `tolerance` of the target's norm.
    """
    solution, residual = torch.zeros_like(target), target
    preconditioned = precondition(residual)
    scale = norm = (residual * preconditioned).sum(1, keepdim=True)  # (N, 1)
    if start is not None:
        solution, residual = start, target - system(start)
        preconditioned = precondition(residual)
        norm = (residual * preconditioned).sum(1, keepdim=True)
    direction, iterations = preconditioned, 0
    while iterations < limit and bool((active := norm > tolerance**2 * scale).any()):
        image = system(direction)
        length = torch.where(active, norm / (direction * image).sum(1, keepdim=True), 0.0)
        solution, residual = solution + length * direction, residual - length * image
        preconditioned = precondition(residual)
        following = (residual * preconditioned).sum(1, keepdim=True)
        direction = preconditioned + torch.where(active, following / norm, 0.0) * direction
        norm, iterations = following, iterations + 1
    log.debug("posterior: %d iterations, residual %.1e", iterations, float((norm / scale).max().sqrt()))
    return solution
