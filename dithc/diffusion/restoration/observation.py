"""Observed numbers with their operator and noise.

Legend: N images, C bands, H, W image, M observed numbers.
"""

from dataclasses import dataclass

from torch import Tensor

from dithc.core.logging import user_error
from dithc.diffusion.restoration.operators import LinearOperator


@dataclass(frozen=True, eq=False)
class Observation:
    """Numbers y = A x + noise.

    Attributes:
        operator: A, of M rows.
        values: y (M), or (N, M) with separate numbers for each image, in scaled units.
        deviation: (M), standard deviation of the independent noise, in scaled units.
    """

    operator: LinearOperator
    values: Tensor
    deviation: Tensor

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            UserError: A size does not match the operator.
        """
        got = self.values.shape[-1], *self.deviation.shape
        if got != (self.operator.size, self.operator.size):
            fix = "pass a value and a deviation for each row of the operator"
            raise user_error("numbers of an observation", got=got, expected=self.operator.size, fix=fix)

    def residual(self, x: Tensor) -> Tensor:
        """Return y - A x (N, M) of images x (N, C, H, W)."""
        return self.values.to(x.dtype) - self.operator.apply(x)

    def project(self, x: Tensor) -> Tensor:
        """Return images x (N, C, H, W) with directly observed pixels replaced by their observed values."""
        return self.operator.paste(x, self.values.expand(len(x), -1))
