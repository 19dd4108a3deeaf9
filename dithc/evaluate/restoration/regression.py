"""Regression baseline: a small U-Net that predicts the expected image from its observed pixels.

Legend: N images of a batch, C bands, H, W image, D channels.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from dithc.core.artifacts import atomic_replace
from dithc.core.logging import get_logger, progress

LEVELS = 3  # resolutions, the first half of the image's, each further half of the previous
STRIDE = 2**LEVELS
BATCH, RATE = 16, 1e-3
SAVE_SECONDS = 60.0
log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """Incomplete images (N, C, H, W) in standardized units, and their truth.

    Attributes:
        x: Observed values; other values have no influence.
        given: Observed pixels, including interpolated pixels of coarse bands.
        truth: Complete images.
        compared: Pixels to predict, with a known truth.
    """

    x: NDArray[np.floating]
    given: NDArray[np.bool_]
    truth: NDArray[np.floating]
    compared: NDArray[np.bool_]


class RegressionUNet(nn.Module):
    """Residual U-Net without normalization, `(x (N, C, H, W), given (N, C, H, W)) -> image (N, C, H, W)`.

    The radius of its receptive field is below 64 pixels. H and W are multiples of `STRIDE`.
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

    def forward(self, x: Tensor, given: Tensor) -> Tensor:
        start = torch.where(given, x, 0)
        h = self.enter(torch.cat([start, given.to(x.dtype)], dim=1))  # (N, D, H / 2, W / 2)
        skips = []
        for level, block in enumerate(self.down):
            h = block(h if not level else self.lower[level - 1](h))
            skips.append(h)
        for level in reversed(range(LEVELS - 1)):
            h = functional.interpolate(self.raise_[level](h), scale_factor=2.0, mode="nearest")
            h = self.up[level](h + skips[level])
        return start + functional.pixel_shuffle(self.leave(h), 2)

    @torch.no_grad()
    def predict(self, x: NDArray[np.floating], given: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Return the predicted image (C, H, W) of any size, in standardized units."""
        height, width = x.shape[1:]
        padding = (0, -width % STRIDE, 0, -height % STRIDE)
        parts = (functional.pad(torch.from_numpy(part)[None], padding) for part in (x.astype(np.float32), given.copy()))
        return np.asarray(self(*parts)[0, :, :height, :width].numpy())


def train_regression(
    draw: Callable[[range], Examples],
    bands: int,
    *,
    seed: int,
    state: Path | None = None,
    steps: int | None = None,
    seconds: float = math.inf,
    is_stopped: Callable[[], bool] = lambda: False,
) -> RegressionUNet | None:
    """Train a network for a number of steps or seconds; return None if `is_stopped` returns True before the end.

    The loss is the mean square error of the compared pixels. `draw` is called with the numbers of the examples from 0 on.
    With `steps`, the result depends on the seed only. The file `state` holds network and optimizer. It is written every
    minute and at the end, and another call continues from it.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = RegressionUNet(bands)
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # twice as fast
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE)
    step, spent, finished, loss = 0, 0.0, 0.0, torch.zeros(())
    if state is not None and state.is_file():
        content = torch.load(state, weights_only=True)
        net.load_state_dict(content["net"])
        optimizer.load_state_dict(content["optimizer"])
        step, spent, finished = content["step"], content["spent"], content["progress"]
        log.info(f"regression U-Net: continuing after step {step}, {spent / 60:.1f} min")
    saved, stopped = spent, False
    with progress(total=100, label="regression U-Net", unit="%", done=int(100 * min(1.0, finished))) as bar:
        while finished < 1 and not stopped:
            start = time.monotonic()
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1.0, 20 * finished + 0.01) * 0.5 * (1 + math.cos(math.pi * finished))
            examples = draw(range(step * BATCH, (step + 1) * BATCH))
            x, truth = (torch.from_numpy(part.astype(np.float32)) for part in (examples.x, examples.truth))
            compared = torch.from_numpy(examples.compared)
            if compared.any():
                loss = (net(x, torch.from_numpy(examples.given)) - truth)[compared].square().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
            step, spent = step + 1, spent + time.monotonic() - start
            finished, stopped = max(step / steps if steps else 0.0, spent / seconds), is_stopped()
            bar.update(int(100 * min(1.0, finished)) - bar.done)
            if state is not None and (spent - saved >= SAVE_SECONDS or finished >= 1 or stopped):
                content = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
                with atomic_replace(state) as temporary:
                    torch.save(content | {"step": step, "spent": spent, "progress": finished}, temporary)
                saved = spent
                log.info(f"regression U-Net: step {step}, {spent / 60:.1f} min, loss {loss.item():.3g}")
    return net if finished >= 1 else None


class _Block(nn.Module):
    """Two convolutions, added to their input; the second starts at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        nn.init.zeros_(self.second.weight)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + self.second(functional.silu(self.first(functional.silu(h))))
        return out
