"""Members of a block: observation of its pixels, and the reverse process given the observation.

Legend: N members, C bands, h, w block, M observed values.
"""

import math
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.ndimage import distance_transform_edt
from torch import Tensor

from dithc import diffusion
from dithc.config import evaluations
from dithc.core.logging import get_logger
from dithc.diffusion.restoration import (
    BandGroups,
    LinearOperator,
    Observation,
    RadialCovariance,
    Resampling,
    Selection,
    measure_errors,
    posterior_denoiser,
    restoration_times,
)
from dithc.engine.comm import Group
from dithc.model import DiT
from dithc.sample.parallel import ParallelDenoiser, windows
from dithc.sample.restoration.blocks import Block
from dithc.sample.restoration.latent_space import LatentSpace
from dithc.sample.restoration.scenes import Flag, RestorableScenes
from dithc.sample.seeds import noise_by_place

INCOMPLETE = 1e-3  # largest share of gaps in an observed coarse pixel
log = get_logger(__name__)


class BlockSampler:
    """Members of the blocks of scenes, sampled by one rank."""

    def __init__(
        self,
        model: DiT,
        scenes: RestorableScenes,
        settings: evaluations.RestorationConfig,
        *,
        objective: diffusion.Objective,
        covariance: RadialCovariance,
        images: Tensor,
        labels: Tensor,
        bf16: bool,
        sampler: str | evaluations.PluginSampler,
        latents: LatentSpace | None = None,
    ) -> None:
        """Prepare the network.

        Args:
            model: Network of the prior.
            scenes: Scenes to restore.
            settings: Settings of the restoration.
            objective: Meaning of the network's output.
            covariance: Covariance of the pixels of the train tiles.
            images: Train tiles in the values of the network, float32 (n, Z, h, w), NaN in gaps. They measure its errors.
            labels: Labels (n) of these tiles.
            bf16: Whether to compute products in bf16.
            sampler: Solver of the reverse process.
            latents: Space of a prior of latents.
        """
        self._latents = latents
        self.factor = 1 if latents is None else latents.codec.downsampling_factor
        self._model, self._scenes, self._settings = model.requires_grad_(False), scenes, settings
        self._objective, self.covariance, self._sampler = objective, covariance, sampler
        self._images, self._labels = images, labels
        self._errors: dict[tuple[tuple[int, ...], ...], dict[float, RadialCovariance]] = {}  # by held and absent bands
        times = -(-settings.steps // evaluations.sampler_spec(sampler).evaluations)
        self._times = restoration_times(objective, times)
        self._predict: windows.Predictor = ParallelDenoiser(model, bf16=bf16)

    def grid(self, block: Block) -> windows.WindowGrid:
        """Return the windows of a block, cut from the grid of the scene."""
        chosen = self._settings.windows
        size, seed = self._model.config.size, self._settings.seed
        (top, left), (height, width) = (block.rows.domain.start, block.columns.domain.start), block.size
        origin, extent = (top // self.factor, left // self.factor), (height // self.factor, width // self.factor)
        return windows.WindowGrid(
            size=extent, window=size, overlap=chosen.overlap, shift=chosen.random_shift, seed=seed, origin=origin
        )

    def members(
        self, scene: int, block: Block, numbers: Sequence[int]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return members of the domain of a block, float32 (N, C, h, w) in scaled units, and errors of the solver (N)."""
        settings, objective = self._settings, self._objective
        observation, levels = self.observe(scene, block), self.levels(scene, block)
        y = torch.full((len(numbers),), self._label(scene))
        if len(given := self._conditions(scene, block)):
            y = torch.cat([y[:, None].float(), given.expand(len(y), -1)], dim=1)
        grid = self.grid(block)
        shape = self._model.config.in_channels, *grid.size
        noise = self._noise(scene, numbers, shape, origin=grid.origin)
        held = self._bands(levels, 0.0)
        clean = self._clean(scene, block, held)
        prior, posterior = self._prior(y, grid, levels, clean, noise), None
        clear, covariance = observation, self.covariance
        if self._latents is not None:
            clear, covariance = self._observe_latents(scene, block), self._latents.covariance
        if clear is not None:
            posterior = posterior_denoiser(prior, objective, clear, covariance, errors=self.measured(levels))
        options: dict[str, Any] = {"steps": settings.steps, "times": self._times, "shape": shape, "noise": noise}
        options["clip"] = 1.0 if self._latents is None else self._latents.codec.bound
        schedule, integrand = objective.schedule, objective.sampled(posterior or prior)
        if schedule is None:
            x = diffusion.sample_flow(self._sampler, velocity=integrand, **options)
        else:
            x = diffusion.sample(self._sampler, denoise=integrand, schedule=schedule, **options)
        if held:
            x[:, held] = clean
        if self._latents is not None:
            x = self._latents.codec.decode(x)
        remaining = torch.zeros(len(x)) if posterior is None else posterior.error
        return (x if observation is None else observation.project(x)).numpy(), remaining.float().numpy()

    def _noise(
        self, scene: int, numbers: Sequence[int], shape: tuple[int, int, int], *, origin: tuple[int, int]
    ) -> Callable[[int], Tensor]:
        """Return the noise of members. Members 2 k and 2 k + 1 have opposite noise (antithetic variates)."""
        indices = [self._scenes.noise_index(scene, number // 2) for number in numbers]
        draw = noise_by_place(self._settings.seed, indices, shape, origin=origin)
        sign = torch.tensor([1.0 - 2.0 * (number % 2) for number in numbers])[:, None, None, None]
        return lambda step: sign * draw(step)

    def _prior(
        self,
        y: Tensor,
        grid: windows.WindowGrid,
        levels: dict[str, float],
        clean: Tensor,
        noise: Callable[[int], Tensor],
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the network on the windows of a grid, with held and absent bands.

        Args:
            y: (N, ...), labels and conditions.
            grid: Windows.
            levels: Level of each group of bands.
            clean: (c, H, W) or (N, c, H, W), values of the bands held clean.
            noise: Noise (N, C, H, W) of a draw; the first draw is the value of absent bands.
        """
        network = windows.WindowedDenoiser(self._predict, grid, batch=self._settings.batch_size)
        prior = diffusion.guided_denoiser(network, y, scale=1.0)
        held, absent = self._bands(levels, 0.0), self._bands(levels, self._objective.last)
        if not held and not absent:
            return prior
        values = noise(0)
        values[:, held] = clean
        return diffusion.BandLevels.hold(prior, self._objective, values, held + absent)

    def measured(self, levels: dict[str, float], group: Group | None = None) -> dict[float, RadialCovariance]:
        """Return the covariances of the errors of the network on train tiles, with the bands of the levels held or absent.

        Conditions are unknown, except the view of the tiles. Held and absent bands have no error. The bits do not depend on
        ranks and threads. The first call takes as long as some members. With a group, its ranks share the work, and all have
        to call.
        """
        group = group or Group()
        held, absent = self._bands(levels, 0.0), self._bands(levels, self._objective.last)
        key = tuple(held), tuple(absent)
        if key not in self._errors:
            start, config, images = time.monotonic(), self._model.config, self._images.clone()
            y = self._labels if config.null_label is None else torch.full((len(images),), config.null_label)
            conditions = (
                [1.0] + [0.0] * (width - 1) if name == "view" else [math.nan] * width
                for name, width in config.conditions
            )
            if given := [*chain(*conditions), *levels.values()]:
                y = torch.cat([y[:, None].float(), torch.tensor(given).expand(len(y), -1)], dim=1)
            shape = images.shape[1], images.shape[2], images.shape[3]
            grid = windows.WindowGrid(size=shape[1:], window=shape[1:])
            noise = noise_by_place(self._settings.seed, range(len(images)), shape)
            images[:, held] = images[:, held].nan_to_num(0)
            images[:, absent] = noise(0)[:, absent]  # the clean values of absent bands, see `BandLevels.hold`
            prior = self._prior(y, grid, levels, images[:, held], noise)
            share = measure_errors(prior, self._objective, images, noise, self._times, part=(group.rank, group.size))
            self._errors[key] = {ratio: one for found in group.gather_objects(share) for ratio, one in found.items()}
            seconds = time.monotonic() - start
            if group.rank == 0:
                log.info(f"measured the errors of the network at {len(self._errors[key])} timesteps in {seconds:.0f} s")
        return self._errors[key]

    def _observe_latents(self, scene: int, block: Block) -> Observation | None:
        """Return the clear latents of a block; None without any."""
        assert self._latents is not None
        place = scene, block.rows.domain, block.columns.domain
        observed = torch.from_numpy((self._scenes.states(*place) == Flag.OBSERVED).all(0))  # (h, w)
        pixels = torch.from_numpy(self._scenes.scaling.scaled(self._scenes.stored(*place)[None]))[0]  # (C, h, w)
        return self._latents.observe(pixels, observed)

    def levels(self, scene: int, block: Block) -> dict[str, float]:
        """Return the level of each group of bands in a block; see `BandLevels`.

        A group without gaps is held clean. Another group has the level of the image, or is absent if it is a condition.
        """
        levels: dict[str, float] = {}
        if not (groups := self._model.config.band_groups):
            return levels
        states = self._scenes.states(scene, block.rows.domain, block.columns.domain)
        for name, bands, role in groups:
            own = states[list(bands)]
            is_clean = (own != Flag.RESTORED).all() and (own == Flag.OBSERVED).any()
            levels[name] = 0.0 if is_clean else (math.nan if role == "modeled" else self._objective.last)
        return levels

    def _bands(self, levels: dict[str, float], level: float) -> list[int]:
        """Return the bands of the groups at a level."""
        return [band for name, bands, _ in self._model.config.band_groups if levels[name] == level for band in bands]

    def _clean(self, scene: int, block: Block, bands: list[int]) -> Tensor:
        """Return the pixels of bands without gaps, scaled (c, h, w). Pixels outside have the value of the nearest pixel."""
        place = scene, block.rows.domain, block.columns.domain
        pixels = self._scenes.scaling.scaled(self._scenes.stored(*place)[None])[0, bands]
        if (outside := (self._scenes.states(*place)[bands] == Flag.OUTSIDE).any(0)).any():
            nearest = distance_transform_edt(outside, return_distances=False, return_indices=True)
            pixels = pixels[:, *nearest]
        return torch.from_numpy(pixels)

    def _conditions(self, scene: int, block: Block) -> Tensor:
        """Return the conditions at the center of a block, NaN if unknown, and the levels of its groups of bands (K)."""
        row, column = ((span.core.start + span.core.stop) / 2 for span in (block.rows, block.columns))
        names = [name for name, _ in self._model.config.conditions]
        found = self._scenes.conditions(scene, row=row, column=column) if names else {}
        levels = torch.tensor([*self.levels(scene, block).values()])
        return torch.cat([*(torch.from_numpy(found[name][0]) for name in names), levels])

    def observe(self, scene: int, block: Block) -> Observation | None:
        """Return the observed values of a block in scaled units; None if no pixel is observed, except of bands held clean.

        A coarse pixel is observed if it has no gap. Its value is the mean of its block of pixels, or with `hide` the pixels
        seen by the sensor.
        """
        place = scene, block.rows.domain, block.columns.domain
        observed = torch.from_numpy(self._scenes.states(*place) == Flag.OBSERVED)  # (C, h, w)
        levels = self.levels(scene, block)
        absent, held = self._bands(levels, self._objective.last), self._bands(levels, 0.0)
        observed[absent] = False
        gaps = torch.from_numpy(self._scenes.gaps(*place))  # (h, w)
        pixels = torch.from_numpy(self._scenes.scaling.scaled(self._scenes.stored(*place)[None]))  # (1, C, h, w)
        sensed: dict[tuple[int, ...], LinearOperator] = {}
        measured: dict[tuple[int, ...], LinearOperator] = {}
        if whole := tuple(observed.flatten(1).any(1).nonzero()[:, 0].tolist()):
            sensed[whole] = measured[whole] = Selection(observed[list(whole)])
        mtf = self._settings.mtf
        coarse = {band: factor for band, factor in self._scenes.coarse.items() if band not in absent}
        for factor in sorted(set(coarse.values())):
            bands = tuple(band for band, other in coarse.items() if other == factor)
            shape = len(bands), *gaps.shape
            share = Resampling((1, *gaps.shape), factor, mtf).apply(gaps[None, None].float())[0] if gaps.any() else None
            valid = None
            if share is not None:
                grid = gaps.shape[0] // factor, gaps.shape[1] // factor
                valid = (share < INCOMPLETE).reshape(1, *grid).expand(len(bands), -1, -1)
            sensed[bands] = Resampling(shape, factor, mtf, valid)
            measured[bands] = sensed[bands] if self._settings.hide else Resampling(shape, factor, None, valid)
        if not any(operator.size for bands, operator in sensed.items() if not set(bands) <= set(held)):
            return None
        full = len(observed), *gaps.shape
        values = BandGroups(full, measured).apply(pixels)[0]  # (M)
        return Observation(BandGroups(full, sensed), values, torch.full_like(values, 2 * self._settings.noise))

    def _label(self, scene: int) -> int:
        """Return the null label, or the label of the scene for a network that was trained without dropped labels."""
        null = self._model.config.null_label
        return int(self._scenes.column("label", scene)) if null is None else null
