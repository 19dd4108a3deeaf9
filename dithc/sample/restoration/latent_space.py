"""Restoration of gaps with a prior of latents: clear latents are observed, and observed pixels replace the decoded ones.

Legend: C bands, h, w block; Z latent channels; f factor of the codec.
"""

from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from scipy.ndimage import distance_transform_edt
from torch import Tensor

from dithc.core.logging import user_error
from dithc.diffusion.restoration import Observation, RadialCovariance, Selection
from dithc.latents import Codec

ENCODED_TILES = 512
# Largest influence of hidden pixels on an observed latent, and deviation of its noise, of about unit variance.
TOLERANCE = 0.05


class LatentSpace:
    """Codec of a prior, with the covariance of the latents of its training tiles."""

    def __init__(self, codec: Codec, state: dict[str, npt.NDArray[np.float64]]) -> None:
        self.codec, self.covariance = codec, RadialCovariance.of_state(state)

    @classmethod
    def state(cls, codec: Codec, tiles: Tensor) -> dict[str, npt.NDArray[np.float64]]:
        """Return the covariance of the latents of scaled tiles (n, C, H, W), as the arguments of the class."""
        return RadialCovariance.of(codec.encode(tiles)[0] * codec.scale).state()

    @classmethod
    def of(cls, codec: Codec, info: dict[str, Any], state: dict[str, npt.NDArray[np.float64]]) -> Self:
        """Return the space of a codec for tiles with this `info` (dataset.json); UserError if it lacks bands of the tiles."""
        if codec.bands != tuple(info["bands"]):
            fix = "use a run on a dataset with a codec of kind pixel or kl-vae"
            raise user_error("bands of the codec", got=codec.bands, expected=info["bands"], fix=fix)
        return cls(codec, state)

    def observe(self, pixels: Tensor, observed: Tensor) -> Observation | None:
        """Return the latents that hidden pixels hardly influence; None without any.

        The influence is the difference between two fills of the hidden pixels: nearest observed pixel, and mean of the band.

        Args:
            pixels: (C, h, w), scaled.
            observed: (h, w), pixels with all bands observed.
        """
        if not observed.any():
            return None
        nearest = distance_transform_edt(~observed.numpy(), return_distances=False, return_indices=True)
        means = pixels[:, observed].mean(1)[:, None, None]
        fills = torch.stack([pixels[:, *torch.from_numpy(nearest)], torch.where(observed, pixels, means)])
        latents = self.codec.encode(fills)[0] * self.codec.scale  # (2, Z, h / f, w / f)
        factor = self.codec.downsampling_factor
        complete = -torch.nn.functional.max_pool2d(-observed[None].float(), factor) > 0  # (1, h / f, w / f)
        clear = complete & ((latents[0] - latents[1]).abs() < TOLERANCE)  # (Z, h / f, w / f)
        if not clear.any():
            return None
        operator = Selection(clear)
        values = operator.apply(latents[:1])[0]
        return Observation(operator, values, torch.full_like(values, TOLERANCE))
