"""Common parts of codec training steps: crops, learning rate, compute type, and the check for finite losses.

Legend: N batch, C bands, H, W crop.
"""

import math

import numpy as np
import torch

from dithc.config import codecs
from dithc.data import Tiles
from dithc.latents.batches import Order, generator
from dithc.latents.views import view_of
from dithc.log import problem

CROP_STREAM = 2
WARMUP_SHARE = 0.05


class Crops:
    """Seeded crops of training tiles for each step: random orientations, with corners on the grid of latents."""

    def __init__(self, settings: codecs.KlVae, tiles: Tiles, *, seed: int) -> None:
        self._settings, self._tiles, self._seed = settings, tiles, seed
        self._order = Order(tiles.rows("train"), seed=seed)

    def at(self, step: int) -> torch.Tensor:
        """Return the crops of a step, counted from 0: float32 (N, C, H, W)."""
        size, factor = self._settings.batch, self._settings.factor
        epochs, rows = self._order.at(step * size + np.arange(size, dtype=np.int64))
        whole = self._tiles.scaled(rows)  # (N, C, tile, tile)
        side = self._settings.crop(whole.shape[-1])
        corners = (whole.shape[-1] - side) // factor + 1
        crops = []
        for image, epoch, row in zip(whole, epochs.tolist(), rows.tolist(), strict=True):
            top, left, view = generator(seed=self._seed, epoch=epoch, row=row, stream=CROP_STREAM).random(3)
            y, x = int(top * corners) * factor, int(left * corners) * factor
            crop = image[:, y : y + side, x : x + side]  # (C, H, W)
            crops.append(view_of(crop, int(view * self._settings.orientations)))
        return torch.from_numpy(np.stack(crops))


def has_bf16() -> bool:
    """Return whether bf16 convolutions are native (1.5 to 2 times as fast); emulated bf16 is slower than fp32."""
    able = torch.cpu.get_capabilities()
    return any(able.get(name, False) for name in ("avx512_bf16", "amx_bf16", "arm_bf16", "bf16"))


def schedule(step: int, steps: int) -> float:
    """Return the learning rate factor: linear warm-up over a twentieth of the steps, then half a cosine to 0."""
    warmup = WARMUP_SHARE * steps + 1.0
    return min(1.0, (step + 1) / warmup) * 0.5 * (1.0 + math.cos(math.pi * step / steps))


def check_finite(loss: float, *, lr: float, step: int) -> None:
    """Raise UserError if the loss of a codec training step is NaN or infinite."""
    if not math.isfinite(loss):
        raise problem(
            f"training of the codec diverged at step {step}",
            got=f"loss {loss}",
            expected="a finite loss",
            fix=f"lower the codec's `lr` (now {lr}) or check the tiles for outliers",
        )
