"""Batches of latents; order and noise depend only on the seed and the sample.

Legend: n samples of this part, B global batch, K draws of a held-out tile; Z latent channels, h, w latent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dithc.config import training
from dithc.core.logging import UserError, user_error
from dithc.data import Rows, Tiles
from dithc.latents.reader import Latents

SAMPLE_STREAM = 0
ORDER_STREAM = 1
VALIDATION_STREAM = 3
MASK_STREAM = 5
CONDITION_STREAM = 6
LEVEL_STREAM = 7
MAX_VALIDATION_TILES = 256
CLEAN_SHARE = 0.5  # of the images, in which a modeled group of bands has level 0
UINT64_MASK = (1 << 64) - 1

Noise = npt.NDArray[np.float32]
Times = Callable[[npt.NDArray[np.float64]], npt.NDArray[Any]]
"""Uniform draws of [0, 1), (n,) -> timesteps (n,), elementwise."""


@dataclass(frozen=True)
class Batch:
    """Inputs of a training step."""

    x: torch.Tensor  # Scaled latents, float32 (n, Z, h, w)
    # Labels, int64 (n,); `num_classes` if dropped; with conditions and levels float32 (n, 1 + K), NaN if dropped
    y: torch.Tensor
    t: torch.Tensor  # Timesteps (n,) of the objective: int64, or float32 for a flow
    noise: torch.Tensor  # Standard normal noise, float32 (n, Z, h, w)
    visible: torch.Tensor | None = None  # Pixels of x in the input, bool (n, 1, h, w); None for all
    weight: torch.Tensor | None = None  # Weights of pixels in the loss, float32 (n, 1, h, w); None for 1


def generator(*, seed: int, epoch: int, row: int = 0, stream: int = SAMPLE_STREAM) -> np.random.Generator:
    """Return the independent random generator of one sample in one epoch: Philox 4x64 (Salmon et al. 2011).

    The key is (seed, epoch). Row and stream are the upper words of the counter; its lowest word counts draws.
    """
    key = np.array([seed & UINT64_MASK, epoch], dtype=np.uint64)
    counter = np.array([0, row, stream, 0], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def no_training_tiles_error(message: str, *, got: str) -> UserError:
    fix = "add tiles to the dataset or increase `split.train_fraction`, then rerun its tiles stage"
    return user_error(message, got=got, expected="at least 1", fix=fix)


class SampleOrder:
    """Endless stream of rows: successive epochs, each a permutation of `rows` from (seed, epoch)."""

    def __init__(self, rows: Rows, *, seed: int) -> None:
        self.rows, self.seed = rows, seed
        self._epoch = lru_cache(maxsize=2)(self._permutation)  # because a batch rarely spans more epochs

    def lookup(self, positions: Rows) -> tuple[Rows, Rows]:
        """Return epoch and row of each position of the stream, which starts at 0."""
        epochs, places = np.divmod(positions, len(self.rows))
        rows = np.empty(len(positions), np.int64)
        for epoch in np.unique(epochs).tolist():
            selected = epochs == epoch
            rows[selected] = self._epoch(epoch)[places[selected]]
        return epochs, rows

    def _permutation(self, epoch: int) -> Rows:
        return generator(seed=self.seed, epoch=epoch, stream=ORDER_STREAM).permutation(self.rows)


class Batches:
    """Batches of a training run: batch `step` is a pure function of the settings, for any history and number of ranks.

    Sample i of a step has position (step * global_batch_size + i) * M + k in the stream, for worker k of M. (seed, epoch, row)
    determines its view, label dropout, timestep, noise and posterior noise, in this order. All are drawn whether used or
    not, so that disabling one does not change the others.

    `global_batch_size` counts samples over all ranks of a worker and may exceed the rows of the train split. Raises UserError
    if that split is empty, or the latents lack the views of `augment`, which are used with equal frequency.
    """

    def __init__(
        self,
        latents: Latents,
        *,
        seed: int,
        global_batch_size: int,
        label_dropout: float,
        augment: training.Augment,
        times: Times,
        masked: training.MaskedTrainingConfig | None = None,
        conditions: Sequence[str] = (),
        groups: Sequence[training.BandGroupConfig] = (),
        worker: tuple[int, int] = (0, 1),
    ) -> None:
        """Prepare the batches; `worker` is (k, M), the number of the worker and the count of workers."""
        rows = latents.rows("train")
        if not len(rows):
            got = f"0 of {latents.count} rows in the train split"
            raise no_training_tiles_error(f"latents in {latents.folder} have no training samples", got=got)
        self._num_views = {"none": 1, "mirror": 2, "dihedral": Tiles.NUM_VIEWS}[augment]
        if self._num_views > latents.num_views:
            raise user_error(
                f"latents in {latents.folder} lack views for `augment: {augment}`",
                got=f"{latents.num_views} views of each tile",
                expected=f"{self._num_views}",
                fix=f"set `views: {self._num_views}` of the dataset, then rerun its latents stage",
            )
        self.latents, self.seed, self.global_batch_size = latents, seed, global_batch_size
        self.label_dropout, self.times, self.masked = label_dropout, times, masked
        self.conditions = [name for name, _ in latents.widths(conditions)] if conditions else []
        self.groups = groups
        self.worker, self.num_workers = worker
        self.order = SampleOrder(rows, seed=seed)

    def epoch(self, step: int) -> float:
        """Return the number of passes over the train rows before this step."""
        return step * self.global_batch_size * self.num_workers / len(self.order.rows)

    def batch(self, step: int, part: slice = slice(None)) -> Batch:
        """Return the samples `part` (a slice of 0 to global_batch_size) of a step, counted from 0."""
        inside = np.arange(*part.indices(self.global_batch_size), dtype=np.int64)
        epochs, rows = self.order.lookup(self._positions(step, inside))
        uniform, noise, posterior = self._draw(epochs, rows)
        views = self._views(uniform[:, 0])  # (n,)
        labels: npt.NDArray[Any] = self.latents.labels[rows].astype(np.int64)  # (n,)
        labels[uniform[:, 1] < self.label_dropout] = self.latents.num_classes
        timesteps = self.times(uniform[:, 2])  # (n,)
        x = sample_posterior(self.latents, rows, views=views, posterior=posterior)  # (n, Z, h, w)
        if self.conditions or self.groups:
            values = self._conditions(epochs, rows, views) if self.conditions else []
            labels = with_conditions(labels, [*values, self._levels(epochs, rows)])  # (n, 1 + K)
        masks = () if self.masked is None else self._masks(epochs, rows, views, share=self.masked.hidden_share)
        return Batch(*(torch.from_numpy(array) for array in (x, labels, timesteps, noise, *masks)))

    def rows(self, step: int) -> Rows:
        """Return the latent rows of a step's samples, (global_batch_size,)."""
        return self.order.lookup(self._positions(step, np.arange(self.global_batch_size, dtype=np.int64)))[1]

    def _positions(self, step: int, inside: Rows) -> Rows:
        """Return the positions of samples of a step in the stream, (n,)."""
        return (step * self.global_batch_size + inside) * self.num_workers + self.worker

    def _draw(self, epochs: Rows, rows: Rows) -> tuple[npt.NDArray[np.float64], Noise, Noise]:
        """Return uniform draws (n, 3), noise and posterior noise (n, Z, h, w) each."""
        uniform = np.empty((len(rows), 3))
        normal = np.empty((2, len(rows), *self.latents.shape), np.float32)
        for place, (epoch, row) in enumerate(zip(epochs.tolist(), rows.tolist(), strict=True)):
            rng = generator(seed=self.seed, epoch=epoch, row=row)
            rng.random(out=uniform[place])
            rng.standard_normal(out=normal[0, place], dtype=np.float32)
            if self.latents.has_logvar:
                rng.standard_normal(out=normal[1, place], dtype=np.float32)
        return uniform, normal[0], normal[1]

    def _masks(self, epochs: Rows, rows: Rows, views: Rows, *, share: float) -> tuple[npt.NDArray[np.bool_], Noise]:
        """Return visible pixels and weights (n, 1, h, w) each; a share of the images loses the gaps of another tile.

        The weights of clear pixels are equal over the training run, with mean 1 over all pixels of the train split.
        """
        clear = self.latents.clear(rows, views=views)
        uniform = self._uniform(epochs, rows, 3, stream=MASK_STREAM)
        others = self.order.rows[(uniform[:, 1] * len(self.order.rows)).astype(np.int64)]
        kept = self.latents.clear(others, views=(uniform[:, 2] * Tiles.NUM_VIEWS).astype(np.int64))
        kept[uniform[:, 0] >= share] = True
        return clear & kept, clear.astype(np.float32) / np.float32(self.latents.info["clear_fraction"])

    def _conditions(self, epochs: Rows, rows: Rows, views: Rows) -> list[Noise]:
        """Return the conditions (n, k); each is dropped independently, at the rate of labels."""
        uniform = self._uniform(epochs, rows, len(self.conditions), stream=CONDITION_STREAM)
        values = self.latents.conditions(rows, self.conditions, views=views)
        for number, value in enumerate(values):
            value[uniform[:, number] < self.label_dropout] = np.nan
        return values

    def _levels(self, epochs: Rows, rows: Rows) -> npt.NDArray[np.float64]:
        """Return the levels of the groups of bands (n, G), each drawn independently; see `BandLevels`."""
        uniform = self._uniform(epochs, rows, len(self.groups), stream=LEVEL_STREAM)
        is_modeled = np.array([group.role == "modeled" for group in self.groups], np.bool_)
        is_clean = uniform < np.where(is_modeled, CLEAN_SHARE, 1 - self.label_dropout)
        return np.where(is_clean, 0.0, np.where(is_modeled, np.nan, self.times(np.ones(1))))

    def _uniform(self, epochs: Rows, rows: Rows, count: int, *, stream: int) -> npt.NDArray[np.float64]:
        """Return uniform draws (n, count) of a separate stream."""
        uniform = np.empty((len(rows), count))
        for place, (epoch, row) in enumerate(zip(epochs.tolist(), rows.tolist(), strict=True)):
            generator(seed=self.seed, epoch=epoch, row=row, stream=stream).random(out=uniform[place])
        return uniform

    def _views(self, uniform: npt.NDArray[np.float64]) -> Rows:
        """Map draws in [0, 1) to views, (n,)."""
        if self._num_views == 2:
            return (uniform < 0.5).astype(np.int64)  # the lower half is the mirror image, view 1
        return (uniform * self._num_views).astype(np.int64)


def with_conditions(labels: Rows, values: Sequence[npt.NDArray[Any]]) -> Noise:
    """Return labels (n,) and the numbers of conditions (n, k) as the condition of a network, float32 (n, 1 + K)."""
    return np.concatenate([labels[:, np.newaxis], *values], axis=1, dtype=np.float32)


def sample_posterior(latents: Latents, rows: Rows, *, views: Rows, posterior: Noise) -> Noise:
    """Return scaled posterior samples of rows, float32 (n, Z, h, w), from standard normal noise of that shape."""
    # By torch, whose cast is faster than numpy's.
    moments = torch.from_numpy(latents.moments(rows, views=views)).float().numpy()  # (n, M, h, w)
    if not latents.has_logvar:
        return moments * np.float32(latents.scale)  # (n, Z, h, w)
    mean, logvar = np.split(moments, 2, axis=1)  # (n, Z, h, w) each
    x: Noise = mean + np.exp(np.float32(0.5) * logvar) * posterior
    return x * np.float32(latents.scale)  # (n, Z, h, w)


class ValidationLatents:
    """Up to 256 tiles of the validation split, evenly spaced; `rows` are their int64 row numbers in the latents.

    (seed, row) determines the posterior noise of a tile and then the noise of each of its `draws`. Modeled groups of bands
    have the level of the image, conditions are clean.
    """

    def __init__(
        self,
        latents: Latents,
        *,
        seed: int,
        draws: int,
        conditions: Sequence[str] = (),
        groups: Sequence[training.BandGroupConfig] = (),
    ) -> None:
        rows = latents.rows("val")
        count = min(len(rows), MAX_VALIDATION_TILES)
        self.rows = rows[np.arange(count) * len(rows) // max(count, 1)]
        self.latents, self.seed, self.draws, self.conditions = latents, seed, draws, conditions
        self._levels = [0.0 if group.role == "condition" else np.nan for group in groups]

    def batch(self, part: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return scaled latents, float32 (n, Z, h, w); `Batch.y` (n, ...); noise, float32 (K, n, Z, h, w)."""
        rows, latents = self.rows[part], self.latents
        posterior = np.empty((len(rows), *latents.shape), np.float32)
        noise = np.empty((self.draws, *posterior.shape), np.float32)
        for place, row in enumerate(rows.tolist()):
            rng = generator(seed=self.seed, epoch=0, row=row, stream=VALIDATION_STREAM)
            rng.standard_normal(out=posterior[place], dtype=np.float32)
            noise[:, place] = rng.standard_normal((self.draws, *latents.shape), dtype=np.float32)
        views = np.zeros(len(rows), np.int64)
        x = sample_posterior(latents, rows, views=views, posterior=posterior)  # (n, Z, h, w)
        labels: npt.NDArray[Any] = latents.labels[rows].astype(np.int64)  # (n,)
        if self.conditions or self._levels:
            values = latents.conditions(rows, self.conditions, views=views) if self.conditions else []
            labels = with_conditions(labels, [*values, np.full((len(rows), len(self._levels)), self._levels)])
        return torch.from_numpy(x), torch.from_numpy(labels), torch.from_numpy(noise)

    def masks(self, part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return clear pixels, bool, and their weights, float32, (n, 1, h, w) each; weights have mean 1 over all tiles."""
        clear = self._clear[part]
        return torch.from_numpy(clear), torch.from_numpy(clear.astype(np.float32) / self._clear.mean(dtype=np.float32))

    @cached_property
    def _clear(self) -> npt.NDArray[np.bool_]:
        return self.latents.clear(self.rows, views=np.zeros(len(self.rows), np.int64))
