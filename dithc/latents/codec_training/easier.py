"""Latents that are easier to generate: what some steps of a codec's training do to a latent before it is decoded.

A latent that is turned or halved is to be that of the tile turned or halved (EQ-VAE, arXiv 2502.09509), and one that is noisy
still of its tile (arXiv 2507.15856). Encoder and decoder both learn it.

Legend: N batch, C bands, H, W crop; Z latent channels, h, w latent.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dithc.config import codecs
from dithc.latents.batches import generator
from dithc.latents.views import turned

EASIER_STREAM = 4
MOST_NOISE = 0.5  # of a channel's standard deviation: what a sampler leaves is far less, and from 1 on tiles would blur

Kind = Literal["plain", "equivariant", "noisy"]


def eased(z: Tensor, x: Tensor, settings: codecs.KlVae, *, seed: int, step: int) -> tuple[Kind, Tensor, Tensor]:
    """Return the kind of a training step, the latents to decode, and the target of the result.

    (seed, step) alone decides: one turn or halving of z (N, Z, h, w) and crops x (N, C, H, W) (equivariant), noise on z
    (noisy), or no change. `settings.equivariance` and `settings.latent_noise` are shares of the steps.
    """
    draws = generator(seed=seed, epoch=step, stream=EASIER_STREAM)
    kind, which = draws.random(2)
    if kind < settings.equivariance:
        changes = _changes(z.shape[-1], settings.orientations)
        change = changes[int(which * len(changes))]
        return "equivariant", change(z), change(x)
    if kind < settings.equivariance + settings.latent_noise:
        return "noisy", _noisy(z, draws), x
    return "plain", z, x


def _changes(side: int, orientations: int) -> list[Callable[[Tensor], Tensor]]:
    """The orientations that are learnt, but for the first, and halving, where half a latent of this side has orientations."""
    turns: list[Callable[[Tensor], Tensor]] = [partial(turned, view=view) for view in range(1, orientations)]
    return [*turns, _halved] if side % 2 == 0 and side >= 2 * codecs.LEAST_TURNED else turns


def _halved(images: Tensor) -> Tensor:
    return functional.avg_pool2d(images, 2)  # (N, ., h / 2, w / 2)


def _noisy(z: Tensor, draws: np.random.Generator) -> Tensor:
    """Adds noise of a strength between 0 and MOST_NOISE, one for each latent.

    Relative to what channels now have, with its gradient: no larger latent could drown the noise.
    """
    strength = MOST_NOISE * torch.from_numpy(draws.random((len(z), 1, 1, 1), dtype=np.float32))
    noise = torch.from_numpy(draws.standard_normal(tuple(z.shape), dtype=np.float32))  # (N, Z, h, w)
    return z + strength * z.std(dim=(0, 2, 3), correction=0, keepdim=True) * noise
