"""Codec reconstructions of real tiles instead of samples: an upper bound on the scores of samples with that codec.

Legend: N images; C bands, H, W image.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from dithc.config import training
from dithc.data import Rows, Tiles
from dithc.latents import Codec
from dithc.log import problem
from dithc.parallel import Team
from dithc.sample.generate import ALONE, OnStep


class Reconstructions:
    """Reconstructions of tiles of the evaluation's split, by index, from the posterior's mean.

    The evaluation's seed draws its number of images from the split. `rows` are tiles in the order of the images,
    `steps` the steps of an image, and `team` is the group of ranks that processes a shard together.
    """

    steps = 1
    team: Team

    def __init__(self, codec: Codec, tiles: Tiles, *, evaluation: training.Evaluation) -> None:
        self.codec, self._tiles, self.team = codec, tiles, ALONE
        self.rows = _drawn(tiles.rows(evaluation.real_split), evaluation)
        self.count = len(self.rows)

    def labels(self, indices: Sequence[int]) -> list[int]:
        return [int(label) for label in self._tiles.labels[self.rows[list(indices)]]]

    def images(self, indices: Sequence[int], *, on_step: OnStep | None = None) -> Tensor:
        """Return reconstructions, float32 (N, C, H, W) in scaled units."""
        mean, _ = self.codec.encode(self.codec.input(self._tiles, self.rows[list(indices)]))  # (N, Z, h, w)
        decoded = self.codec.decode(mean * self.codec.scale)
        if on_step is not None:
            on_step(1, 1)
        return decoded


def _drawn(rows: Rows, evaluation: training.Evaluation) -> Rows:
    if len(rows) < 2:
        raise problem(
            f"split {evaluation.real_split} is too small to evaluate the codec",
            got=f"{len(rows)} tiles",
            expected="at least 2",
            fix="set `real_split` to another split, or increase its share in the dataset's `split`",
        )
    return np.random.default_rng(evaluation.seed).permutation(rows)[: evaluation.images]
