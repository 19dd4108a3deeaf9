"""Regularization of latents for easier generation: changes of latents before decoding in some training steps.

The latent of a rotated or halved tile must equal the rotated or halved latent (EQ-VAE, arXiv 2502.09509). A noisy
latent must still decode to its tile (arXiv 2507.15856). Encoder and decoder are both trained.

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
from dithc.latents.encode import apply_view

AUGMENTATION_STREAM = 4
MAX_NOISE = 0.5  # relative to a channel's deviation; samplers leave far less noise, and 1 or more would blur tiles

Kind = Literal["plain", "equivariant", "noisy"]


def augment(z: Tensor, x: Tensor, settings: codecs.KlVaeConfig, *, seed: int, step: int) -> tuple[Kind, Tensor, Tensor]:
    """Return the type of a training step, the latents to decode, and the target of the result.

    (seed, step) selects a rotation or halving of z (N, Z, h, w) and crops x (N, C, H, W) (equivariant), noise on z
    (noisy), or no change. `settings.equivariance` and `settings.latent_noise` are shares of the steps.
    """
    rng = generator(seed=seed, epoch=step, stream=AUGMENTATION_STREAM)
    kind, choice = rng.random(2)
    if kind < settings.equivariance:
        changes = _equivariant_changes(z.shape[-1], settings.orientations)
        change = changes[int(choice * len(changes))]
        return "equivariant", change(z), change(x)
    if kind < settings.equivariance + settings.latent_noise:
        return "noisy", _add_noise(z, rng), x
    return "plain", z, x


def _equivariant_changes(side: int, orientations: int) -> list[Callable[[Tensor], Tensor]]:
    """Return the trained orientations except the identity, and halving if half the side has orientations."""
    changes: list[Callable[[Tensor], Tensor]] = [partial(apply_view, view=view) for view in range(1, orientations)]
    halve = partial(functional.avg_pool2d, kernel_size=2)  # (N, ., h / 2, w / 2)
    return [*changes, halve] if side % 2 == 0 and side >= 2 * codecs.MIN_TURNED else changes


def _add_noise(z: Tensor, rng: np.random.Generator) -> Tensor:
    """Add noise of a random strength between 0 and MAX_NOISE to each latent.

    The noise is relative to the current deviation of the channels, with gradient. Larger latents cannot reduce it.
    """
    strength = MAX_NOISE * torch.from_numpy(rng.random((len(z), 1, 1, 1), dtype=np.float32))
    noise = torch.from_numpy(rng.standard_normal(tuple(z.shape), dtype=np.float32))  # (N, Z, h, w)
    return z + strength * z.std(dim=(0, 2, 3), correction=0, keepdim=True) * noise
