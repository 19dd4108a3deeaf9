"""Linear observation operators: observed pixels, sensor resolution, and operators on groups of bands.

Legend: N images, C bands, H, W image, M observed numbers, h, w coarse grid.
Source: the Gaussian of a sensor's modulation transfer function (MTF), Aiazzi et al. 2006 (MTF-tailored pansharpening).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor

from dithc.core.logging import user_error
from dithc.diffusion.cosines import cosine_matrix, cosines, inverse_cosines

KERNEL_RADIUS = 4.5  # in standard deviations


class LinearOperator(ABC):
    """Linear map A from images to observed numbers; `shape` is (C, H, W) of an image, `size` is M."""

    shape: tuple[int, int, int]
    size: int

    @abstractmethod
    def apply(self, x: Tensor) -> Tensor:
        """Return A x (N, M) of images x (N, C, H, W), in the dtype of x; it may be a view of x."""

    @abstractmethod
    def adjoint(self, y: Tensor) -> Tensor:
        """Return A* y (N, C, H, W) of observed numbers y (N, M), in the dtype of y."""

    @abstractmethod
    def row_norms(self) -> Tensor:
        """Return the squared norm of each row, float64 (M). The numbers of a row sum to 1."""

    @abstractmethod
    def gains(self) -> Tensor:
        """Return the gain of each band by cosine (see `cosines`), float64 (C, H, W).

        It is the square root of the spectrum of A A* below the Nyquist frequency of the band's grid, and 0 above it and
        for unobserved bands. Masks are ignored.
        """

    def of_cosines(self, coefficients: Tensor) -> Tensor:
        """Return A x (N, M) of images x with cosine coefficients (N, C, H, W)."""
        return self.apply(inverse_cosines(coefficients))

    def adjoint_cosines(self, y: Tensor) -> Tensor:
        """Return the cosine coefficients (N, C, H, W) of A* y, of observed numbers y (N, M)."""
        return cosines(self.adjoint(y))

    def paste(self, x: Tensor, y: Tensor) -> Tensor:
        """Return x (N, C, H, W) with directly observed pixels replaced by their numbers in y (N, M)."""
        return x


class Selection(LinearOperator):
    """Observation of the pixels of a mask, bool (C, H, W)."""

    def __init__(self, mask: Tensor) -> None:
        """Store the positions of the observed pixels, 8 bytes each."""
        channels, height, width = mask.shape
        self.shape = channels, height, width
        self._index = mask.flatten().nonzero()[:, 0]  # (M)
        self.size = len(self._index)
        self._is_full = self.size == mask.numel()

    def apply(self, x: Tensor) -> Tensor:
        return x.flatten(1) if self._is_full else x.flatten(1).index_select(1, self._index)

    def adjoint(self, y: Tensor) -> Tensor:
        if self._is_full:
            return y.reshape(-1, *self.shape)
        return y.new_zeros(len(y), math.prod(self.shape)).index_copy_(1, self._index, y).reshape(-1, *self.shape)

    def row_norms(self) -> Tensor:
        return torch.ones(self.size, dtype=torch.float64)

    def gains(self) -> Tensor:
        counts = torch.bincount(self._index // (self.shape[1] * self.shape[2]), minlength=self.shape[0])  # (C)
        return (counts > 0).double()[:, None, None].expand(self.shape)

    def paste(self, x: Tensor, y: Tensor) -> Tensor:
        return x.flatten(1).index_copy(1, self._index, y.to(x.dtype)).reshape(x.shape)


class Resampling(LinearOperator):
    """Observation of bands on a grid coarser by an integer factor: block means, or a blur of the sensor at block centers."""

    def __init__(
        self, shape: tuple[int, int, int], factor: int, mtf: float | None = None, valid: Tensor | None = None
    ) -> None:
        """Compute the weights, which sum to 1 within the image.

        Args:
            shape: (C, H, W). Rows and columns beyond a multiple of the factor are unobserved.
            factor: Fine pixels per coarse pixel along an axis.
            mtf: Modulation of the Gaussian blur at the Nyquist frequency of the coarse grid; None for block means.
            valid: Observed coarse pixels, bool (C, H // factor, W // factor); all by default.

        Raises:
            UserError: The factor exceeds the image, or `mtf` is not between 0 and 1.
        """
        self.shape, self._factor = shape, factor
        if not 1 <= factor <= min(shape[1:]):
            fix = "use larger images, or a finer grid"
            raise user_error("factor of a coarse grid", got=factor, expected=f"1 to {min(shape[1:])}", fix=fix)
        if mtf is not None and not 0 < mtf < 1:
            fix = "use the modulation of the sensor's data sheet, such as 0.25"
            raise user_error("modulation at the Nyquist frequency", got=mtf, expected="between 0 and 1", fix=fix)
        # exp(-(pi sigma / factor)^2 / 2) = mtf
        self._sigma = None if mtf is None else factor * math.sqrt(-2 * math.log(mtf)) / math.pi
        self._rows, self._columns = self._weights(shape[1]), self._weights(shape[2])  # (h, H), (w, W)
        self._of_cosines: tuple[Tensor, Tensor] | None = None
        coarse = shape[0], len(self._rows), len(self._columns)
        self._valid = Selection(torch.ones(coarse, dtype=torch.bool) if valid is None else valid)
        self.size = self._valid.size

    def apply(self, x: Tensor) -> Tensor:
        rows, columns = self._axes(x.dtype)
        return self._valid.apply(rows @ x @ columns.T)

    def adjoint(self, y: Tensor) -> Tensor:
        rows, columns = self._axes(y.dtype)
        return rows.T @ (self._valid.adjoint(y) @ columns)

    def of_cosines(self, coefficients: Tensor) -> Tensor:
        rows, columns = self._axes_of_cosines(coefficients.dtype)
        return self._valid.apply(rows @ coefficients @ columns.T)

    def adjoint_cosines(self, y: Tensor) -> Tensor:
        rows, columns = self._axes_of_cosines(y.dtype)
        return rows.T @ (self._valid.adjoint(y) @ columns)

    def row_norms(self) -> Tensor:
        norms = self._rows.square().sum(1)[:, None] * self._columns.square().sum(1)  # (h, w)
        return self._valid.apply(norms.expand(1, self.shape[0], -1, -1))[0]

    def gains(self) -> Tensor:
        rows, columns = (torch.arange(side, dtype=torch.float64) / (2 * side) for side in self.shape[1:])
        gain = self._gain(rows)[:, None] * self._gain(columns) / self._factor
        return gain * self._valid.gains()[:, :1, :1]  # (C, H, W)

    def _axes(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the weights of rows (h, H) and columns (w, W)."""
        return self._rows.to(dtype), self._columns.to(dtype)

    def _axes_of_cosines(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the weights of the cosines of rows (h, H) and columns (w, W)."""
        if self._of_cosines is None or self._of_cosines[0].dtype != dtype:
            rows, columns = (
                weights @ cosine_matrix(weights.shape[1], weights.dtype).T for weights in (self._rows, self._columns)
            )
            self._of_cosines = rows.to(dtype), columns.to(dtype)
        return self._of_cosines

    def _weights(self, length: int) -> Tensor:
        """Return the weights of fine pixels (length) in each coarse pixel (length // factor) along an axis."""
        centers = (torch.arange(length // self._factor, dtype=torch.float64) + 0.5) * self._factor - 0.5
        distance = (torch.arange(length) - centers[:, None]).abs()
        weights = self._kernel(distance)
        return weights / weights.sum(1, keepdim=True)

    def _kernel(self, distance: Tensor) -> Tensor:
        if self._sigma is None:
            return (distance < self._factor / 2).double()
        weights = torch.exp(-0.5 * (distance / self._sigma) ** 2)
        return weights * (distance < KERNEL_RADIUS * self._sigma)

    def _gain(self, frequency: Tensor) -> Tensor:
        """Return the gain at frequencies in cycles per fine pixel, 0 above the Nyquist frequency of the coarse grid."""
        offsets = torch.arange(-8 * self._factor, 8 * self._factor, dtype=torch.float64) + (self._factor + 1) % 2 / 2
        weights = self._kernel(offsets.abs())
        gain = torch.cos(2 * math.pi * frequency[:, None] * offsets) @ weights / weights.sum()
        return torch.where(frequency.abs() <= 0.5 / self._factor, gain, 0)


class BandGroups(LinearOperator):
    """Operators on groups of bands, one after another in y; bands without a group are unobserved."""

    def __init__(self, shape: tuple[int, int, int], groups: Mapping[tuple[int, ...], LinearOperator]) -> None:
        """Combine operators by the indices of their bands.

        Raises:
            UserError: The shape of an operator does not match the number of its bands and the image.
        """
        self.shape = shape
        for bands, operator in groups.items():
            if operator.shape != (len(bands), *shape[1:]):
                expected, fix = (len(bands), *shape[1:]), "create the operator for its group of bands"
                raise user_error(f"shape of bands {bands}", got=operator.shape, expected=expected, fix=fix)
        self._groups = [(torch.tensor(bands), operator) for bands, operator in groups.items()]
        ends = torch.tensor([operator.size for _, operator in self._groups]).cumsum(0).tolist()
        self._spans = [slice(first, end) for first, end in pairwise([0, *ends])]
        self.size = ends[-1]
        self._is_whole = list(groups) == [tuple(range(shape[0]))]  # one group of all bands, which needs no copies

    def apply(self, x: Tensor) -> Tensor:
        return torch.cat([operator.apply(part) for operator, part in self._split(x)], dim=1)

    def adjoint(self, y: Tensor) -> Tensor:
        return self._joined([operator.adjoint(y[:, span]) for operator, span in self._parts()])

    def of_cosines(self, coefficients: Tensor) -> Tensor:
        return torch.cat([operator.of_cosines(part) for operator, part in self._split(coefficients)], dim=1)

    def adjoint_cosines(self, y: Tensor) -> Tensor:
        return self._joined([operator.adjoint_cosines(y[:, span]) for operator, span in self._parts()])

    def _split(self, x: Tensor) -> list[tuple[LinearOperator, Tensor]]:
        return [(operator, x if self._is_whole else x.index_select(1, bands)) for bands, operator in self._groups]

    def _parts(self) -> list[tuple[LinearOperator, slice]]:
        return [(operator, span) for (_, operator), span in zip(self._groups, self._spans, strict=True)]

    def _joined(self, images: list[Tensor]) -> Tensor:
        if self._is_whole:
            return images[0]
        x = images[0].new_zeros(len(images[0]), *self.shape)
        for (bands, _), image in zip(self._groups, images, strict=True):
            x.index_add_(1, bands, image)
        return x

    def row_norms(self) -> Tensor:
        return torch.cat([operator.row_norms() for _, operator in self._groups])

    def gains(self) -> Tensor:
        gains = torch.zeros(self.shape, dtype=torch.float64)
        for bands, operator in self._groups:
            gains[bands] += operator.gains()
        return gains

    def paste(self, x: Tensor, y: Tensor) -> Tensor:
        x = x.clone()
        for (bands, operator), span in zip(self._groups, self._spans, strict=True):
            x[:, bands] = operator.paste(x[:, bands], y[:, span])
        return x
