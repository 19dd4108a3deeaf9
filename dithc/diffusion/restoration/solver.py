"""Preconditioned conjugate gradients for the posterior mean.

Legend: N images, C bands, H, W image, M observed numbers, F = H W cosines.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from dithc.core.logging import get_logger
from dithc.diffusion.cosines import cosines, inverse_cosines
from dithc.diffusion.restoration.covariance import RadialCovariance
from dithc.diffusion.restoration.observation import Observation

Multiply = Callable[[Tensor], Tensor]

TOLERANCE = 0.1  # errors of clean images below a tenth of s / a
SUM_LENGTH = 4096
CHUNK = 1 << 14  # cosines per batch of matrix inverses

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
            spectrum: Variances of the coefficients of C, (C, H, W).
            error: Acceptable deviation of the update per pixel, which is added to the noise.
        """
        self._observation, self._covariance, self._spectrum = observation, covariance, spectrum
        operator, dtype = observation.operator, spectrum.dtype
        variance = observation.deviation.double() ** 2 + error**2 * operator.row_norms()  # (M)
        self._variance = variance.to(dtype)
        sums, counts = (operator.adjoint(part[None]).sum((0, 2, 3)) for part in (variance, torch.ones_like(variance)))
        gains = operator.gains()  # (C, H, W)
        noise = torch.where(counts > 0, sums / counts.clamp(min=1), 1)[:, None, None]  # (C, 1, 1)
        self._inverse: dict[tuple[int, int], Tensor] | None = None
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
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return C A* w for x = `clean` (N, C, H, W), w = (Sy + A C A*)^-1 (y - A x) (N, M), and its error (N).

        `multiply` multiplies by another C, `start` is an approximate w, `limit` the limit of the iterations. The error is
        relative to the tolerance, which is relative to the expected norm of the residual, sqrt(M).
        """
        operator, covariance = self._observation.operator, self._covariance

        def system(w: Tensor) -> tuple[Tensor, Tensor]:
            x = operator.adjoint_cosines(w)
            x = cosines(multiply(inverse_cosines(x))) if multiply else covariance.multiply(x, self._spectrum)
            return self._variance * w + operator.of_cosines(x), x

        target = self._observation.residual(clean)
        precondition = self._precondition
        x, w, error = conjugate_gradients(system, target, precondition, limit=limit, tolerance=tolerance, start=start)
        return inverse_cosines(x), w, error

    def _precondition(self, residual: Tensor) -> Tensor:
        operator = self._observation.operator
        x = operator.adjoint_cosines(residual)
        if self._inverse is None:
            return operator.of_cosines(self._covariance.multiply(x, self._filter))
        return operator.of_cosines(self._multiply_inverse(x))

    def _multiply_inverse(self, coefficients: Tensor) -> Tensor:
        """Multiply cosine coefficients (N, C, H, W) by the inverses of band pairs."""
        assert self._inverse is not None
        result = torch.zeros_like(coefficients)
        for (band, other), inverse in self._inverse.items():
            height, width = inverse.shape
            for target, source in {(band, other), (other, band)}:
                result[:, target, :height, :width].addcmul_(inverse, coefficients[:, source, :height, :width])
        return result

    def _inverses(self, gains: Tensor, noise: Tensor) -> dict[tuple[int, int], Tensor]:
        """Return G = D^-1 (D C D + noise)^-1 D^-1 by two bands and cosine, with D the gains; 0 for D = 0.

        A (h, w) matrix for bands i <= j ends where one of them has gain 0 from there on. Then A G A* (A C A* + Sy) is about 1,
        as if all pixels of each grid were observed, without aliasing.
        """
        dtype, (height, width) = self._spectrum.dtype, gains.shape[1:]
        basis, gains, noise = self._covariance.basis.to(dtype), gains.to(dtype), noise.flatten().to(dtype)
        products = (basis[:, None] * basis).flatten(0, 1).T  # (C, C C)
        sides = [(int(gain.any(1).sum()), int(gain.any(0).sum())) for gain in gains]
        inverses = {
            (band, band + next_one): torch.zeros(*map(min, sides[band], side), dtype=dtype)
            for band in range(len(sides))
            for next_one, side in enumerate(sides[band:])
        }
        step = max(1, CHUNK // width)
        for first in range(0, height, step):
            rows = slice(first, first + step)
            gain = gains[:, rows].flatten(1).T  # (f, C)
            spectrum = self._spectrum[:, rows].flatten(1).T  # (f, C)
            matrix = (spectrum @ products).reshape(-1, *basis.shape)  # C in the bands, (f, C, C)
            matrix *= gain[:, :, None]
            matrix *= gain[:, None]
            matrix.diagonal(dim1=1, dim2=2).add_(torch.where(gain == 0, 1, noise))
            scale = torch.where(gain == 0, 0, 1 / gain)
            inverse = torch.cholesky_inverse(torch.linalg.cholesky(matrix))
            inverse *= scale[:, :, None]
            inverse *= scale[:, None]
            planes = inverse.permute(1, 2, 0).reshape(*basis.shape, -1, width)  # (C, C, rows, W)
            for (band, other), whole in inverses.items():
                part = whole[rows]
                part.copy_(planes[band, other, : part.shape[0], : part.shape[1]])
        return inverses


def conjugate_gradients(
    system: Callable[[Tensor], tuple[Tensor, Tensor]],
    target: Tensor,
    precondition: Multiply,
    *,
    limit: int,
    tolerance: float,
    start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Solve a positive definite system approximately, independently for each image.

    An image is finished when the norm of its preconditioned residual is at most `tolerance` sqrt(M), or where the matrix is not
    positive definite (the Jacobian of an imperfect network).

    Args:
        system: Maps w (N, M) to its product with the matrix, and to another linear image of w (N, C, H, W).
        target: Right side (N, M).
        precondition: Approximate inverse, which returns a new tensor.
        limit: Limit of the iterations.
        tolerance: See above.
        start: Approximate solution up to a factor.

    Returns:
        The image of the solution (N, C, H, W), the solution (N, M), and the last norm over that limit, (N).
    """
    if start is None:
        start = precondition(target)
    product, image = system(start)
    curvature = inner(start, product)  # (N, 1)
    length = torch.where(curvature > 0, inner(start, target) / curvature, 0.0)
    solution, residual, image = length * start, target - length * product, length[..., None, None] * image
    direction, norm, iterations, is_positive = (
        None,
        torch.ones_like(length),
        0,
        torch.ones_like(length, dtype=torch.bool),
    )
    while True:
        preconditioned = precondition(residual)
        following = inner(residual, preconditioned)
        active = is_positive & (following > tolerance**2 * target.shape[1])
        if iterations == limit or not bool(active.any()):
            break
        direction = preconditioned if direction is None else direction.mul_(following / norm).add_(preconditioned)
        norm, iterations = following, iterations + 1
        product, change = system(direction)
        curvature = inner(direction, product)
        is_positive = is_positive & ((curvature > 0) | ~active)
        length = torch.where(active & is_positive, norm / curvature, 0.0)
        solution.addcmul_(length, direction)
        residual.addcmul_(length, product, value=-1)
        image.addcmul_(length[..., None, None], change)
    error = (following.clamp(min=0) / target.shape[1]).sqrt()[:, 0] / tolerance
    log.debug("posterior: %d iterations, residual %.1e", iterations, float(error.max()))
    return image, solution, error


def inner(x: Tensor, y: Tensor) -> Tensor:
    """Return the inner products (N, 1) of x and y (N, M), with the same bits for any number of threads.

    Torch divides a single sum among threads, but not sums of a row of several.
    """
    products, rows = x * y, x.shape[1] // SUM_LENGTH
    sums = products[:, : rows * SUM_LENGTH].reshape(len(x), rows, SUM_LENGTH).sum(2)
    return torch.cat([sums, products[:, rows * SUM_LENGTH :].sum(1, keepdim=True)], dim=1).sum(1, keepdim=True)
