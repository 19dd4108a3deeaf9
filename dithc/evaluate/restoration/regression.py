"""Regression baseline: a small U-Net that predicts the expected image from its observed pixels.

Legend: n tiles, N tiles of a batch, C bands, H, W image, D channels.
"""

import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

LEVELS = 3  # resolutions, the first half of the image's, each further half of the previous
STRIDE = 2**LEVELS
REACH = 64  # pixels; at least the radius of the receptive field, a multiple of STRIDE
BATCH, RATE = 16, 1e-3

Hide = Callable[[Sequence[int]], NDArray[np.bool_]]
"""Sample numbers (N) -> hidden pixels (N, H, W) or (N, C, H, W)."""


class RegressionUNet(nn.Module):
    """Residual U-Net without normalization, `(x (N, C, H, W), observed (N, C, H, W)) -> image (N, C, H, W)`.

    Its receptive field is bounded by `REACH`. H and W are multiples of `STRIDE`. Hidden values of x have no influence.
    """

    def __init__(self, bands: int, width: int = 32) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(LEVELS)]
        self.enter = nn.Conv2d(2 * bands, width, 4, stride=2, padding=1)
        self.down = nn.ModuleList(_Block(size) for size in widths)
        self.lower = nn.ModuleList(nn.Conv2d(a, b, 2, stride=2) for a, b in pairwise(widths))
        self.raise_ = nn.ModuleList(nn.Conv2d(b, a, 1) for a, b in pairwise(widths))
        self.up = nn.ModuleList(_Block(size) for size in widths[:-1])
        self.leave = nn.Conv2d(width, 4 * bands, 3, padding=1)

    def forward(self, x: Tensor, observed: Tensor) -> Tensor:
        h = self.enter(torch.cat([torch.where(observed, x, 0), observed.to(x.dtype)], dim=1))  # (N, D, H / 2, W / 2)
        skips = []
        for level, block in enumerate(self.down):
            h = block(h if not level else self.lower[level - 1](h))
            skips.append(h)
        for level in reversed(range(LEVELS - 1)):
            h = functional.interpolate(self.raise_[level](h), scale_factor=2.0, mode="nearest")
            h = self.up[level](h + skips[level])
        image: Tensor = functional.pixel_shuffle(self.leave(h), 2)
        return image

    @torch.no_grad()
    def fill(self, x: NDArray[np.floating], valid: NDArray[np.bool_], *, window: int = 256) -> NDArray[np.float32]:
        """Return x (C, H, W), in the units of the training tiles, with predicted values at hidden pixels.

        `valid` (H, W) or (C, H, W) are observed pixels. Windows of `window` pixels, a multiple of `STRIDE`, overlap by
        `REACH` on each side, so that the result equals a prediction of the complete image.
        """
        height, width = x.shape[1:]
        padding = (0, -width % STRIDE, 0, -height % STRIDE)
        observed = functional.pad(torch.from_numpy(np.broadcast_to(valid, x.shape).copy()), padding)  # (C, H, W)
        image = functional.pad(torch.from_numpy(x.astype(np.float32)), padding)
        result = image.clone()
        for top in range(0, height, window):
            for left in range(0, width, window):
                first, before = max(0, top - REACH), max(0, left - REACH)
                part = np.s_[:, first : top + window + REACH, before : left + window + REACH]
                found = self(image[part][None], observed[part][None])[0]
                inner = np.s_[:, top : top + window, left : left + window]
                result[inner] = found[:, top - first :, left - before :][:, :window, :window]
        return torch.where(observed, image, result)[:, :height, :width].numpy()


def train_regression(
    tiles: NDArray[np.floating], hide: Hide, *, seed: int, steps: int | None = None, seconds: float = math.inf
) -> RegressionUNet:
    """Train a network on square tiles (n, C, H, W), standardized by band, for a number of steps or seconds.

    The loss is the mean square error of hidden pixels with known values; unknown values of the tiles are NaN. Tiles are
    mirrored and turned at random. `hide` is called with the numbers of the samples from 0 on. With `steps`, the result
    depends on the seed only.
    """
    draws = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = RegressionUNet(tiles.shape[1])
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # twice as fast
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE)
    images, start, step, progress = torch.from_numpy(tiles.astype(np.float32)), time.monotonic(), 0, 0.0
    while progress < 1:
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, 20 * progress + 0.01) * 0.5 * (1 + math.cos(math.pi * progress))
        batch = images[torch.randint(len(images), (BATCH,), generator=draws)]  # (N, C, H, W)
        turns, is_mirrored = (int(torch.randint(count, (), generator=draws)) for count in (4, 2))
        batch = torch.rot90(batch.flip(-1) if is_mirrored else batch, turns, (-2, -1))
        hidden: Any = torch.from_numpy(np.array(hide(range(step * BATCH, (step + 1) * BATCH))))
        hidden = (hidden if hidden.ndim == 4 else hidden[:, None]).expand_as(batch)
        known = batch.isfinite()
        loss = (net(batch, known & ~hidden) - batch)[known & hidden].square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        step += 1
        progress = max(step / steps if steps else 0.0, (time.monotonic() - start) / seconds)
    return net


class _Block(nn.Module):
    """Two convolutions, added to their input; the second starts at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        nn.init.zeros_(self.second.weight)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + self.second(functional.silu(self.first(functional.silu(h))))
        return out
