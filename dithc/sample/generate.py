"""A batch of images: labels and noise by index, the reverse process, the decoder.

Legend: N images, Z latent channels, h, w latent; C bands, H, W image.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dithc import diffusion
from dithc.config import training
from dithc.model import DiT
from dithc.parallel import Denoiser, Team
from dithc.sample.seeds import generator_of, label_of

Both = Callable[[Callable[[], Tensor], Callable[[], Tensor]], tuple[Tensor, Tensor]]
"""Two calls -> what they return."""

OnStep = Callable[[int, int], None]
"""Called after each step with the number of steps done and of all."""


Predictor = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x (N, Z, h, w), timesteps (N), labels (N)) -> output (N, Z or 2Z, h, w) fp32."""

ALONE = Team()


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
    ) -> None:
        """Takes what decides the images, and the ranks that make them together."""
        self.model, self.guide, self.codec, self.evaluation = model, guide, codec, evaluation
        self.team = team
        self.classes, self.objective, self.bf16 = classes, objective, bf16
        self.count, self.steps = evaluation.images, evaluation.steps
        self.shape = (model.config.in_channels, *model.config.size)
        self.tally = torch.zeros(4, dtype=torch.float64)

    def labels(self, indices: Sequence[int]) -> list[int]:
        """The label of each image."""
        return [label_of(self.evaluation.seed, index, self.classes) for index in indices]

    def latents(self, indices: Sequence[int], *, on_step: OnStep | None = None) -> Tensor:
        """Samples of the reverse process, float32 (N, Z, h, w), scaled as in training."""
        model = self._predictor(self.model)
        guide = self._predictor(self.guide) if self.guide is not None else None
        latents = self._sample(
            model,
            guide=guide,
            labels=torch.tensor(self.labels(indices)),
            noise=[generator_of(self.evaluation.seed, index) for index in indices],
            shape=self.shape,
            on_step=on_step,
            both=self.team.both,
        )
        self.tally += model.tally if guide is None else model.tally + guide.tally
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
        """Samples, decoded: float32 (N, C, H, W) in scaled units.

        Image by image: the bits of a convolution may depend on how many go through it at once.
        """
        latents = self.latents(indices, on_step=on_step)
        return torch.cat([self.codec.decode(latent) for latent in torch.split(latents, 1)])

    def _sample(
        self,
        model: Predictor,
        *,
        guide: Predictor | None,
        labels: Tensor,
        noise: Sequence[torch.Generator],
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

    def _predictor(self, model: DiT) -> Denoiser:
        """A network for one batch, of whose steps it may keep something."""
        team, cache = self.team, self.evaluation.cache
        rows = team.rows if self.guide is None else ALONE.rows  # else each branch is a call of its own, of all its rows
        over = team.over(model.config.num_tokens)
        return Denoiser(model, bf16=self.bf16, rows=rows, tokens=team.tokens, over=over, cache=cache)
