"""Noise levels of groups of bands. A group at level 0 is a condition of the other bands.

Sources: Bao et al. 2023 (arXiv 2303.06555) give two modalities separate timesteps, and condition on the one at 0. Restorations
use the levels 0 and t only, so that training draws no other level of a group that is predicted.
Legend: N images, C bands, G groups.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dithc.config import training
from dithc.diffusion.guidance import Denoise
from dithc.diffusion.objective import Objective, parts


class BandLevels:
    """Noise levels of the bands of images. The last G columns of the condition y of a network are the levels of the groups.

    A level is a timestep of the network. NaN, and bands in no group, have the timestep t of the image. Bands at level 0, and
    of role "condition", do not count in the loss.
    """

    def __init__(self, groups: Sequence[training.BandGroup], *, num_bands: int) -> None:
        self._num_groups = len(groups)
        self._group = torch.zeros(num_bands, dtype=torch.long)  # column of each band, 0 for t
        self._is_modeled = torch.ones(num_bands, dtype=torch.bool)
        for number, (_, bands, role) in enumerate(groups, start=1):
            self._group[list(bands)] = number
            self._is_modeled[list(bands)] = role == "modeled"

    def of(self, t: Tensor, y: Tensor) -> Tensor:
        """Return the level of each band (N, C), or (N, 1) without groups, from timesteps t (N) and conditions y (N, ...)."""
        own = t[:, None]
        if not self._num_groups:
            return own
        groups = y[:, -self._num_groups :]  # (N, G)
        return torch.cat([own, torch.where(groups.isnan(), own, groups)], dim=1)[:, self._group]

    def noisy(
        self,
        objective: Objective,
        *,
        x: Tensor,
        t: Tensor,
        y: Tensor,
        noise: Tensor,
        visible: Tensor | None,
        weight: Tensor | None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return noisy images (N, C, h, w), and visible pixels and weights (N, 1 or C, h, w) for `training_loss`.

        Bands at level 0 are visible everywhere. The weights of counted bands have the sum C, so that the loss is the mean
        over these bands.

        Args:
            objective: A flow, if there are groups.
            x: (N, C, h, w), clean images; `noise` in shape.
            t: (N), timesteps.
            y: (N, ...), conditions.
            visible: (N, 1, h, w), pixels in the input; None for all.
            weight: (N, 1, h, w), weights of pixels; None for 1.
        """
        if not self._num_groups:
            x_t = objective.noisy(x, t, noise)
            return x_t if visible is None else objective.hide(x_t, noise, visible), visible, weight
        levels = self.of(t, y)  # (N, C)
        x_t, is_clean = objective.noisy(x, levels, noise), levels == 0
        counts = self._is_modeled & ~is_clean  # (N, C)
        share = (counts * (counts.shape[1] / counts.sum(1, keepdim=True).clamp(min=1)))[:, :, None, None]
        if visible is not None:
            visible = visible | is_clean[:, :, None, None]  # (N, C, h, w)
            x_t = objective.hide(x_t, noise, visible)
        return x_t, visible, share if weight is None else share * weight

    @staticmethod
    def hold(denoise: Denoise, objective: Objective, values: Tensor, bands: Sequence[int]) -> Denoise:
        """Return `denoise(x, t)` with fixed bands: their values replace x in the input, and the clean image in the output.

        Args:
            denoise: (x (N, C, h, w), t (N)) -> output (N, C or 2C, h, w), with the levels of these bands in its condition.
            objective: Meaning of the output.
            values: (N, C, h, w), values at the level of the bands: clean images at level 0, noise at the last timestep.
            bands: Fixed bands.
        """
        fixed = torch.zeros(values.shape[1], dtype=torch.bool)
        fixed[list(bands)] = True
        fixed = fixed[:, None, None]

        def denoise_others(x: Tensor, t: Tensor) -> Tensor:
            predicted, rest = parts(denoise(torch.where(fixed, values, x), t), channels=x.shape[1])
            if float(t[0]) > 0:  # at 0, x is the clean image
                predicted = torch.where(fixed, objective.output_of(values, x, t), predicted)
            return torch.cat([predicted, rest], dim=1)

        return denoise_others
