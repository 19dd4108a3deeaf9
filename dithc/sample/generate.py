"""A batch of images: labels and noise by index, the reverse process, the decoder.

Legend: N images, Z latent channels, h, w latent; C bands, H, W image.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dithc import diffusion
from dithc.config import training
from dithc.log import problem
from dithc.model import DiT
from dithc.parallel import Denoiser, Team, windows
from dithc.sample.seeds import generator_of, label_of, noise_by_place

Both = Callable[[Callable[[], Tensor], Callable[[], Tensor]], tuple[Tensor, Tensor]]
"""Two calls -> what they return."""

OnStep = Callable[[int, int], None]
"""Called after each step with the number of steps done and of all."""


Predictor = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x (N, Z, h, w), timesteps (N), labels (N)) -> output (N, Z or 2Z, h, w) fp32."""

ALONE = Team()
# Places of a latent, where the codec sees so far and no further: sides of the tiles that a scene is decoded by, all of a row of
# them, and rows at least.
TILE, TILE_ROWS, LEAST_ROWS = 64, 1 << 14, 8


class Decoder(Protocol):
    """What is needed of a codec."""

    @property
    def id(self) -> str:
        """Kind and digest of what decides every latent."""

    @property
    def scale(self) -> float:
        """Factor on latents."""

    @property
    def bound(self) -> float | None:
        """Magnitude that no scaled latent exceeds; None where there is none."""

    @property
    def factor(self) -> int:
        """Side of an image over side of its latent."""

    @property
    def reach(self) -> int | None:
        """Places of a latent on each side of one that its pixels depend on; None for all of them."""

    def decode(self, latent: Tensor) -> Tensor:
        """Scaled latents (N, Z, h, w) to images (N, C, H, W)."""

    def to_rgb(self, x: Tensor) -> npt.NDArray[np.uint8]:
        """Images (N, C, H, W) by the fixed display stretch, (N, 3, H, W)."""


class Images:
    """Makes images of an evaluation, by index.

    Attributes:
        count: number of images.
        steps: of an image, of which `images` tells.
        shape: (Z, h, w) of a latent.
        grid: of the windows of a scene; None for images of the network's own size.
        tally: (4), what a cache has saved so far, see `parallel.cache.Cached`.
    """

    def __init__(
        self,
        model: DiT,
        codec: Decoder,
        *,
        evaluation: training.Evaluation,
        classes: npt.NDArray[np.int64],
        objective: diffusion.Objective,
        bf16: bool,
        guide: DiT | None = None,
        team: Team = ALONE,
        parallel_vae: Literal["auto"] | bool = False,
    ) -> None:
        """Takes what decides the images, and the ranks that make them together."""
        self.model, self.guide, self.codec, self.evaluation = model, guide, codec, evaluation
        self.team, self._parallel_vae = team, parallel_vae
        self.classes, self.objective, self.bf16 = classes, objective, bf16
        self.count, self.steps = evaluation.images, evaluation.steps
        self.grid = self._grid()
        self.shape = (model.config.in_channels, *(self.grid.size if self.grid else model.config.size))
        self._windows: windows.Windows | None = None
        self._of_batches: dict[int, tuple[Team, DiT, Any, Any]] = {}  # by network
        self.tally = torch.zeros(4, dtype=torch.float64)

    def labels(self, indices: Sequence[int]) -> list[int]:
        """The label of each image."""
        return [label_of(self.evaluation.seed, index, self.classes) for index in indices]

    def latents(self, indices: Sequence[int], *, on_step: OnStep | None = None) -> Tensor:
        """Samples of the reverse process, float32 (N, Z, h, w), scaled as in training."""
        seed, is_scene = self.evaluation.seed, self.grid is not None
        model = self._predictor(self.model)
        guide = self._predictor(self.guide) if self.guide is not None else None
        latents = self._sample(
            model,
            guide=guide,
            labels=torch.tensor(self.labels(indices)),
            noise=noise_by_place(seed, indices, self.shape)
            if is_scene
            else [generator_of(seed, index) for index in indices],
            shape=self.shape,
            on_step=on_step,
            both=ALONE.both if is_scene else self.team.both,  # of a scene all ranks share the windows of either network
        )
        for network in (model, guide):
            if isinstance(network, Denoiser):
                self.tally += network.tally
        return latents

    def changed(self, **settings: Any) -> "Images":
        """The same network with other settings of the evaluation."""
        evaluation = self.evaluation.model_copy(update=settings)
        return Images(
            self.model,
            self.codec,
            evaluation=evaluation,
            classes=self.classes,
            objective=self.objective,
            bf16=self.bf16,
            guide=self.guide,
            team=self.team,
            parallel_vae=self._parallel_vae,
        )

    def network_evaluations(self) -> int:
        """How often an image goes through a network, guidance included; counted on an image of one latent pixel."""
        rows = 0

        def count(x: Tensor, t: Tensor, y: Tensor) -> Tensor:
            nonlocal rows
            rows += len(x)
            return torch.zeros_like(x)

        guide = count if self.guide is not None else None
        self._sample(
            count, guide=guide, both=ALONE.both, labels=torch.zeros(1), noise=[torch.Generator()], shape=(1, 1, 1)
        )
        return rows

    def images(self, indices: Sequence[int], *, on_step: OnStep | None = None) -> Tensor:
        """Samples, decoded: float32 (N, C, H, W) in scaled units; nothing but on the first of the ranks that make them."""
        latents = self.latents(indices, on_step=on_step)
        if self.grid is not None:
            return torch.stack([torch.cat(list(self.rows(latent)), dim=1) for latent in latents])
        return self._decoding(latents)

    def rows(self, latent: Tensor) -> Iterator[Tensor]:
        """The image of a scene's latent (Z, h, w) by rows, (C, rows, W) each, on the team's first rank; all call it."""
        height, width = latent.shape[1:]
        tile = self.model.config.size
        if self.codec.reach is not None:  # of a wide scene fewer rows at once
            tile = min(height, max(LEAST_ROWS, min(TILE, TILE_ROWS // width))), min(width, TILE)
        return windows.decoded(self.codec, latent, tile=tile, ranks=self.team.members)

    @property
    def image_size(self) -> tuple[int, int]:
        """H, W of an image."""
        height, width = (side * self.codec.factor for side in self.shape[1:])
        return height, width

    def check_size(self, name: str) -> None:
        """Refuses an evaluation of this name of other images than its network makes, by itself, by windows or in patches."""
        factor, size = self.codec.factor, self.evaluation.size
        own = [side * factor for side in self.model.config.size]
        if size is not None and (size % factor or size < max(own) or (self.grid is None and own != [size, size])):
            raise problem(
                f"size of evaluation {name}",
                got=f"{size} pixels{' in windows' if self.grid else ''}, and a network of {own[0]} x {own[1]}",
                expected=f"its own size, or with `windows` a larger multiple of {factor}",
                fix="correct `size`, add `windows: {overlap: 0.25}`, or take a run on tiles of that size",
            )

        Denoiser(self.model, pipefusion=self.evaluation.pipefusion)  # refuses more patches than there are tokens

    def seams(self, latents: Tensor) -> float:
        """How much more neighbours differ across borders of windows than elsewhere, in the latents (N, Z, h, w) made last."""
        assert self._windows is not None
        assert self.grid is not None
        return windows.seam_ratio(latents, *self._windows.last, window=self.grid.window)

    def _grid(self) -> windows.Grid | None:
        chosen = self.evaluation
        if chosen.windows is None or chosen.size is None:
            return None
        side = chosen.size // self.codec.factor
        overlap, shift = chosen.windows.overlap, chosen.windows.shift
        return windows.Grid(
            size=(side, side), window=self.model.config.size, overlap=overlap, shift=shift, seed=chosen.seed
        )

    def _sample(
        self,
        model: Predictor,
        *,
        guide: Predictor | None,
        labels: Tensor,
        noise: Sequence[torch.Generator] | Callable[[int], Tensor],
        shape: tuple[int, int, int],
        both: Both,
        on_step: OnStep | None = None,
    ) -> Tensor:
        chosen, last = self.evaluation, self.objective.last
        interval = chosen.guidance_interval
        denoise = diffusion.guided(
            model,
            labels,
            null_label=self.model.config.null_label,
            scale=chosen.guidance,
            channels=chosen.guidance_channels,
            guide=guide,
            interval=(interval[0] * last, interval[1] * last) if interval is not None else None,
            both=both,
        )
        denoise = self.objective.sampled(denoise, epsilon_scaling=chosen.epsilon_scaling)
        # Pixels are clipped to [-1, 1] in the training data, so their prediction may be; latents have no bound.
        clip = self.codec.bound
        if self.objective.schedule is None:
            return diffusion.sample_flow(
                chosen.sampler,
                velocity=denoise,
                steps=chosen.steps,
                shape=shape,
                noise=noise,
                times=chosen.times,
                clip=clip,
                on_step=on_step,
            )
        return diffusion.sample(
            chosen.sampler,
            denoise=denoise,
            schedule=self.objective.schedule,
            steps=chosen.steps,
            shape=shape,
            noise=noise,
            order=chosen.order,
            times=chosen.times,
            clip=clip,
            on_step=on_step,
        )

    @cached_property
    def _decoding(self) -> Callable[[Tensor], Tensor]:
        """Latents to images, by the team as it is at the first of them."""
        return self.team.decoding(self.codec, by_rows=self._parallel_vae)

    def _common(self, model: DiT) -> tuple[Any, Any]:
        """What all batches of a network have: the attention of those who share tokens, and the blocks, with arranged weights."""
        kept = self._of_batches.get(id(model))
        if kept is None or kept[0] is not self.team:
            blocks = model.chain(to_patches=self.evaluation.cache is None) if isinstance(model, DiT) else None
            kept = self._of_batches[id(model)] = self.team, model, self.team.over(model.config.num_tokens), blocks
        return kept[2:]

    def _predictor(self, model: DiT) -> Denoiser | windows.Windows:
        """A network for one batch, of whose steps it may keep something."""
        team = self.team
        over, blocks = self._common(model)
        # Of images with a guide each of two ranks calls one network on all rows.
        rows = team.rows if self.guide is None or self.grid is not None else ALONE.rows
        denoiser = Denoiser(
            model,
            bf16=self.bf16,
            rows=rows,
            tokens=team.tokens,
            over=over,
            blocks=blocks,
            cache=self.evaluation.cache,
            stages=team.stages,
            pipefusion=self.evaluation.pipefusion,
        )
        if self.grid is None:
            return denoiser
        of_scene = windows.Windows(denoiser, self.grid, batch=self.evaluation.batch * rows.size)
        if model is self.model:
            self._windows = of_scene
        return of_scene
