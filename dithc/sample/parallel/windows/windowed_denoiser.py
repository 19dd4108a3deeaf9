"""Network call on a scene larger than its native images: in windows, averaged where they overlap.

N scenes per call, Z latent channels, H, W latent of a scene; h, w window, n windows of a batch.
Sources: Bar-Tal et al. 2023 (arXiv 2302.08113): every window is denoised at each step, and overlapping predictions are
averaged. Frolov et al. 2024 (arXiv 2407.15507): windows need not overlap, and the grid shifts from step to step.
"""

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from dithc.sample.parallel.windows.window_grid import WindowGrid, window_weights

Predictor = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x (N, Z, h, w), timesteps (N), labels (N)) -> output (N, Z or 2Z, h, w) fp32."""


class WindowedDenoiser:
    """Network for samplers on scenes, `(x (N, Z, H, W), t (N), y (N)) -> (N, Z or 2Z, H, W)`.

    Windows are rows of the network's batches, shared like other rows, and summed in grid order. The bits depend neither
    on ranks nor on `batch` if those of a row do not. A single window is returned unchanged. `last` holds the start rows
    and columns of the last call's windows.
    """

    def __init__(self, denoise: Predictor, grid: WindowGrid, *, batch: int) -> None:
        """Wrap a network, called with at most `batch` rows of the window size."""
        self._denoise, self._grid, self._batch = denoise, grid, batch
        self.last: tuple[list[int], list[int]] = ([0], [0])

    @torch.no_grad()
    def __call__(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """Return the output for x (N, Z, H, W), equal timesteps t (N) and labels y (N)."""
        (height, width), (rows, columns) = self._grid.window, self._grid.starts(float(t[0]))
        self.last = rows, columns
        row_weights = window_weights(rows, height, self._grid.size[0])
        column_weights = window_weights(columns, width, self._grid.size[1])
        windows = list(product(range(len(x)), range(len(rows)), range(len(columns))))
        result: Tensor | None = None
        for first in range(0, len(windows), self._batch):
            part = windows[first : first + self._batch]
            scene_index = torch.tensor([scene for scene, _, _ in part])
            crops = [_window(x[scene], rows[i], columns[j], height, width) for scene, i, j in part]
            outputs = self._denoise(torch.stack(crops), t[scene_index], y[scene_index])  # (n, Z or 2Z, h, w)
            if result is None:
                result = outputs.new_zeros(len(x), outputs.shape[1], *x.shape[2:])
            for (scene, i, j), output in zip(part, outputs, strict=True):
                target = _window(result[scene], rows[i], columns[j], height, width)
                target += output * (row_weights[i][:, None] * column_weights[j])
        assert result is not None, "a call without scenes"
        return result


def _window(x: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
    return x[:, top : top + height, left : left + width]
