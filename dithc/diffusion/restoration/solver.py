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

TOLERANCE = 1e-2
CHUNK = 1 << 14  # frequencies per batch of matrix inverses

log = get_logger(__name__)


class Solver:
    """Update of clean images by an observation, for one covariance C of the images."""

    def __init__(
        self, observation: Observation, covariance: RadialCovariance, spectrum: Tensor, error: float
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
        noise = (sums / counts)[:, None, None]  # (C, 1, 1), NaN for unobserved bands
        self._inverse: Tensor | None = None
        if torch.equal(gains, gains[:1].expand_as(gains)) and torch.allclose(noise, noise[:1]):
            # A commutes with the basis: the components are separate.
            inverse = 1 / (gains**2 * (gains**2 * spectrum + noise))
            self._filter = torch.where(gains == 0, 0, inverse).to(dtype)
        else:
            self._inverse = self._inverses(gains.flatten(1), noise[:, 0])

    def update(self, clean: Tensor, *, limit: int, multiply: Multiply | None = None) -> Tensor:
        """Return C A* (Sy + A C A*)^-1 (y - A x) for x = `clean` (N, C, H, W), with `multiply` by another C."""
        operator, covariance = self._observation.operator, self._covariance
        by = multiply or (lambda z: covariance.filter(z, self._spectrum))

        def system(w: Tensor) -> Tensor:
            return self._variance * w + operator.apply(by(operator.adjoint(w)))

        target = self._observation.residual(clean)
        solution = conjugate_gradients(system, target, self._precondition, limit=limit)
        return by(operator.adjoint(solution))

    def _precondition(self, residual: Tensor) -> Tensor:
        operator = self._observation.operator
        x = operator.adjoint(residual)
        if self._inverse is None:
            return operator.apply(self._covariance.filter(x, self._filter))
        return operator.apply(on_torus(x, self._spectrum.shape, self._multiply_inverse))

    def _multiply_inverse(self, waves: Tensor) -> Tensor:
        assert self._inverse is not None
        by_frequency = torch.view_as_real(waves).movedim((2, 3), (0, 1))  # (height, width, N, C, 2)
        columns = by_frequency.flatten(0, 1).transpose(1, 2).flatten(2)  # (F, C, 2 N)
        result = (self._inverse @ columns).unflatten(2, (-1, 2)).unflatten(0, waves.shape[2:])
        return torch.view_as_complex(result.permute(3, 2, 0, 1, 4).contiguous())

    def _inverses(self, gains: Tensor, noise: Tensor) -> Tensor:
        """Return G = D^-1 (D C D + noise)^-1 D^-1 by frequency (F, C, C), with D the gains; 0 for D = 0.

        Then A G A* (A C A* + Sy) is about 1, as if all pixels of each grid were observed, without aliasing.
        """
        basis, spectrum = self._covariance.basis, self._spectrum.flatten(1)
        inverses = torch.empty(gains.shape[1], *basis.shape, dtype=self._spectrum.dtype)
        for first in range(0, gains.shape[1], CHUNK):
            part = slice(first, first + CHUNK)
            gain = gains[:, part].T  # (F, C)
            weighted = gain[:, :, None] * basis
            matrix = (weighted * spectrum[:, part].T[:, None]) @ weighted.mT
            matrix += torch.diag_embed(torch.where(gain == 0, 1, noise.T))
            scale = torch.where(gain == 0, 0, 1 / gain)
            inverses[part] = scale[:, :, None] * torch.linalg.inv(matrix) * scale[:, None]
        return inverses


def conjugate_gradients(system: Multiply, target: Tensor, precondition: Multiply, *, limit: int) -> Tensor:
    """Return approximate solutions (N, M) of a positive definite system, each independent of the other images.

    An image is finished when the norm of its preconditioned residual is below `TOLERANCE` of the initial norm.
    """
    solution, residual = torch.zeros_like(target), target
    direction = precondition(residual)
    norm = start = (residual * direction).sum(1, keepdim=True)  # (N, 1)
    iterations = 0
    while iterations < limit and bool((active := norm > TOLERANCE**2 * start).any()):
        image = system(direction)
        length = torch.where(active, norm / (direction * image).sum(1, keepdim=True), 0.0)
        solution, residual = solution + length * direction, residual - length * image
        preconditioned = precondition(residual)
        following = (residual * preconditioned).sum(1, keepdim=True)
        direction = preconditioned + torch.where(active, following / norm, 0.0) * direction
        norm, iterations = following, iterations + 1
    log.debug("posterior: %d iterations, residual %.1e", iterations, float((norm / start).max().sqrt()))
    return solution
