"""Noise per image, independent of the batch.

Legend: N batch, C channels.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Noise = Callable[[int], Tensor]
"""Standard normal noise (N, C, height, width) of a draw: 0 is the start of sampling, k the noise of step k."""


def image_noise(generators: Sequence[torch.Generator], shape: tuple[int, int, int]) -> Noise:
    """Return noise from one CPU generator per image, so that an image depends on its seed only.

    Request draws in order, each once, as the samplers do. `shape` is (C, height, width).
    """

    def draw(step: int) -> Tensor:
        return torch.stack([torch.randn(shape, generator=generator) for generator in generators])  # (N, C, h, w)

    return draw
