"""Held-out latents with seeded noise, so that their losses are comparable across steps and ranks.

Legend: n tiles of a part, K draws of a tile; Z latent channels, h, w latent.
"""

import numpy as np
import torch

from dithc.latents.batches import generator, sampled
from dithc.latents.reader import Latents

HELD_OUT_STREAM = 3
MOST_TILES = 256


class ValidationLatents:
    """Up to 256 tiles of the validation split, evenly spaced; `rows` are their int64 row numbers in the latents.

    (seed, row) determines the posterior noise of a tile and then the noise of each of its `draws`.
    """

    def __init__(self, latents: Latents, *, seed: int, draws: int) -> None:
        every = latents.rows("val")
        count = min(len(every), MOST_TILES)
        self.rows = every[np.arange(count) * len(every) // max(count, 1)]
        self.latents, self.seed, self.draws = latents, seed, draws

    def batch(self, part: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return scaled latents, float32 (n, Z, h, w); labels, int64 (n,); noise, float32 (K, n, Z, h, w)."""
        rows, latents = self.rows[part], self.latents
        posterior = np.empty((len(rows), *latents.shape), np.float32)
        noise = np.empty((self.draws, *posterior.shape), np.float32)
        for place, row in enumerate(rows.tolist()):
            draws = generator(seed=self.seed, epoch=0, row=row, stream=HELD_OUT_STREAM)
            draws.standard_normal(out=posterior[place], dtype=np.float32)
            noise[:, place] = draws.standard_normal((self.draws, *latents.shape), dtype=np.float32)
        x = sampled(latents, rows, views=np.zeros(len(rows), np.int64), posterior=posterior)  # (n, Z, h, w)
        labels = latents.labels[rows].astype(np.int64)  # (n,)
        return torch.from_numpy(x), torch.from_numpy(labels), torch.from_numpy(noise)
